package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/internal/pgstore"
)

// DefaultTablePrefix begins the names of the tables where the options say nothing
// else.
const DefaultTablePrefix = "idem_"

// Options change how a store is opened. The zero value and nil are the defaults.
// Whatever belongs to connections is set on the caller's pool.
type Options struct {
	// Schema is where the tables are; empty means the first schema of the search
	// path, usually public. Migrations create it if it is not there. Schema and
	// TablePrefix are lower-case letters, digits and underscores.
	Schema string

	// TablePrefix begins the name of each table; empty means DefaultTablePrefix.
	// Stores with different prefixes know nothing of each other.
	TablePrefix string

	// Migrate brings the schema to this release's version before the store is used.
	// It is safe while other processes do the same. Without it a schema that is
	// missing or too old is a [*SchemaError]. The role needs the right to create
	// tables only when there is something to create.
	Migrate bool

	// LockWait bounds how long a call that fails fast waits for a transaction that
	// holds its key: zero means 20 ms, long enough for one that is just committing.
	LockWait time.Duration

	now string // SQL for the server's clock, which tests move
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.TablePrefix == "" {
		c.TablePrefix = DefaultTablePrefix
	}
	return c
}

func (o *Options) names() (pgstore.Names, error) {
	c := o.withDefaults()
	return pgstore.NewNames(c.Schema, c.TablePrefix)
}

// Why a store could not be opened, matched with errors.Is. Nothing was stored.
var (
	// ErrUnreachable: no server answered in time. Trying again is right.
	ErrUnreachable = pgstore.ErrUnreachable
	// ErrAccess: the server refused the role, its password or a right, or there is no
	// such database.
	ErrAccess = pgstore.ErrAccess
	// ErrReadOnly: the server takes no writes: a replica, or a role or database that is
	// set so.
	ErrReadOnly = pgstore.ErrReadOnly
	// ErrServer: the server is older than PostgreSQL 13, or it is CockroachDB, which
	// has package cockroach.
	ErrServer = pgstore.ErrServer
)

// SchemaError says that the tables are not those that this release can use, and
// names both versions: its fields are Schema, Prefix, Found (0: there are no tables),
// Oldest (what the found version asks of programs), Needs and Known (what this
// release can use). If they are too new it matches backend.ErrUnknownVersion: update
// the program. Otherwise migrate.
type SchemaError = pgstore.SchemaError

// Migration is one step of the schema: its fields are Version, Name ("0001_records")
// and SQL.
type Migration = pgstore.Migration

// Migrations returns the schema as SQL, step by step, for goose, atlas and other
// tools. Each step ends by writing its version into the schema table, which is what
// opening a store looks at. Only Schema and TablePrefix of the options matter.
func Migrations(o *Options) ([]Migration, error) {
	n, err := o.names()
	if err != nil {
		return nil, err
	}
	return pgstore.Migrations(n, pgstore.PostgreSQL()), nil
}

// Script returns all migrations as one text, with the rights that a program needs as
// comments at its end. It is what idem migrate --print prints.
func Script(o *Options) (string, error) {
	n, err := o.names()
	if err != nil {
		return "", err
	}
	return pgstore.Script(n, pgstore.PostgreSQL()), nil
}

// Grants returns the statements that give a role the rights which a program needs
// that does not migrate. The role is written as it is.
func Grants(o *Options, role string) ([]string, error) {
	n, err := o.names()
	if err != nil {
		return nil, err
	}
	return pgstore.Grants(n, pgstore.PostgreSQL(), role), nil
}

// Migrate brings the schema to this release's version and opens no store. It is for
// a role that may create tables, in the deployment of a release, while the program
// itself runs with less.
func Migrate(ctx context.Context, pool *pgxpool.Pool, o *Options) error {
	c := o.withDefaults()
	c.Migrate = true
	_, err := New(ctx, pool, &c)
	return err
}

// opened is what all constructors do: look at the server, migrate if asked to, and
// check the schema.
func opened[Tx any](ctx context.Context, db pgstore.DB[Tx], where string, o *Options) (pgstore.Config, error) {
	c := o.withDefaults()
	n, err := c.names()
	if err != nil {
		return pgstore.Config{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	g, err := pgstore.Open(ctx, db, where, n, pgstore.PostgreSQL(), c.Migrate)
	if err != nil {
		return pgstore.Config{}, err
	}
	return pgstore.Config{Names: n, Dialect: pgstore.PostgreSQL(), LockWait: c.LockWait, Guarantees: g, Now: c.now}, nil
}

// openLimit bounds opening where the caller's context does not.
const openLimit = 30 * time.Second
