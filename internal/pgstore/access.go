package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goidem/idem/backend"
)

// Why a store could not be opened, matched with errors.Is. Nothing was stored.
var (
	// ErrUnreachable: no server answered in time. Trying again is right.
	ErrUnreachable = errors.New("idem: database unreachable")
	// ErrAccess: the server refused the role, its password or a right, or there is no
	// such database.
	ErrAccess = errors.New("idem: database access refused")
	// ErrReadOnly: the server takes no writes: a replica, or a role or database that is
	// set so.
	ErrReadOnly = errors.New("idem: database is read-only")
	// ErrServer: the server is too old, or another product than the package is for.
	ErrServer = errors.New("idem: wrong server")
)

// explain turns an error of opening into one that says in words what is wrong and
// what would be right. where names the database, without secrets.
func explain(ctx context.Context, err error, where string, n Names, d Dialect) error {
	var schema *SchemaError
	if err == nil || errors.As(err, &schema) || errors.Is(err, ErrServer) || errors.Is(err, ErrReadOnly) || errors.Is(err, ErrAccess) {
		return err
	}
	if over := ctx.Err(); errors.Is(over, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %s did not answer in time; nothing was stored: check host and port, or give it more time: %w", ErrUnreachable, where, over)
	} else if over != nil {
		return over
	}
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}
	// A Failure's own text is about a move; this one is about opening.
	kind := ErrUnreachable
	what, right := f.words()
	switch {
	case f.Code == codeReadOnly:
		kind = ErrReadOnly
	case f.Code == codeNoPermission:
		kind = ErrAccess
		right = "grant what idem migrate --print lists at its end, or migrate as a role that may create tables"
	case f.Code == codeNoDatabase, class(f.Code, "28"):
		kind = ErrAccess
	case class(f.Code, "42", "0A"):
		kind, what = ErrServer, d.Name+" as this package knows it would have understood a statement that was refused"
		right = "the tables were changed by hand, or it is another server"
	}
	if f.Code != "" {
		what += " (SQLSTATE " + f.Code + ")"
	}
	if right != "" {
		what += "; " + right
	}
	return fmt.Errorf("%w: %s: %s; nothing was stored", kind, where, what)
}

// Open is what opening a store does before there is one: it finds out what the
// server is and gives, migrates if asked to, and checks the schema. where names the
// database in errors, without secrets.
func Open[Tx any](ctx context.Context, db DB[Tx], where string, n Names, d Dialect, migrate bool) (backend.Guarantees, error) {
	g, err := open(ctx, db, where, n, d, migrate)
	return g, explain(ctx, err, where, n, d)
}

func open[Tx any](ctx context.Context, db DB[Tx], where string, n Names, d Dialect, migrate bool) (backend.Guarantees, error) {
	probe := probePostgres[Tx]
	if !d.isPostgres() {
		probe = probeCockroach[Tx]
	}
	g, err := probe(ctx, db, where)
	if err != nil {
		return backend.Guarantees{}, err
	}
	if migrate {
		err = Migrate(ctx, db, n, d)
	} else {
		err = CheckSchema(ctx, db, n, d)
	}
	if err != nil {
		return backend.Guarantees{}, err
	}
	return g, checkTables(ctx, db, n, d, &g)
}

// class reports whether a SQLSTATE is of one of the classes.
func class(code string, classes ...string) bool {
	return slices.ContainsFunc(classes, func(c string) bool { return strings.HasPrefix(code, c) })
}
