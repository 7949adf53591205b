package storage

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cockroach"
	"github.com/goidem/idem/postgres"
	"github.com/goidem/idem/redis"
)

// Store is a store that has to be closed.
type Store interface {
	backend.Backend
	Close() error
}

// URL is the name of a store on a server. The zero value is none.
type URL struct {
	Scheme string // "postgres", "cockroach", "redis" or "rediss"
	url    string // for the driver; it may hold a password
	shown  string // without
	// Schema and TablePrefix say where the tables are: the parameters idem_schema and
	// idem_table_prefix.
	Schema, TablePrefix string
	// Redis holds what the parameters idem_prefix, idem_accept_eviction,
	// idem_ack_replicas and idem_ack_fsync say.
	Redis redis.Options
}

// NeedsMigration says that the server has a schema.
func (u *URL) NeedsMigration() bool { return u.Scheme == "postgres" || u.Scheme == "cockroach" }

// String is the URL without its password.
func (u *URL) String() string { return u.shown }

// GoString keeps the password out of %#v.
func (u *URL) GoString() string { return u.shown }

// ParseURL reads a store name. ok says that it is a database's URL, by its scheme; if
// name is empty, IDEM_STORE counts. Errors never hold the name: it may carry a
// password.
func ParseURL(name string) (u URL, ok bool, err error) {
	name = cmp.Or(name, os.Getenv(Env))
	scheme, rest, isURL := strings.Cut(name, "://")
	if !isURL {
		return URL{}, false, nil
	}
	switch scheme {
	case "postgres", "postgresql":
		u.Scheme = "postgres"
	case "cockroach", "cockroachdb":
		u.Scheme = "cockroach"
	case "redis", "rediss":
		u.Scheme = scheme
	default:
		return URL{}, false, nil
	}
	p, perr := url.Parse(u.Scheme + "://" + rest)
	if perr != nil {
		return URL{}, true, &NameError{fmt.Sprintf("idem: the store's URL cannot be read (it is not shown, since it may hold a password): write %s://user:password@host:port/database, with special characters of the password as %%XX", u.Scheme)}
	}
	if u.Scheme == "cockroach" && p.Host != "" && p.Port() == "" {
		p.Host += ":26257"
	}
	q := p.Query()
	ours := make(map[string]string)
	take := func(name string) string {
		value := q.Get(name)
		q.Del(name)
		ours[name] = value
		return value
	}
	if u.NeedsMigration() {
		u.Schema, u.TablePrefix = take("idem_schema"), take("idem_table_prefix")
	} else if u.Redis, err = redisOptions(take); err != nil {
		return URL{}, true, err
	}
	p.RawQuery = q.Encode()
	u.url = p.String()

	// What is shown has no password, wherever libpq allows one to stand.
	shown := *p
	if p.User != nil {
		shown.User = url.User(p.User.Username())
	}
	for name := range q {
		if slices.Contains([]string{"password", "sslpassword", "passfile", "sslkey"}, name) {
			q.Del(name)
		}
	}
	for name, value := range ours {
		if value != "" {
			q.Set(name, value)
		}
	}
	shown.RawQuery = q.Encode()
	u.shown = shown.String()
	return u, true, nil
}

// redisOptions reads the parameters of a redis URL that are idem's. take removes one
// and returns it.
func redisOptions(take func(string) string) (o redis.Options, err error) {
	o.Prefix, o.AcceptEviction = take("idem_prefix"), take("idem_accept_eviction")
	if text := take("idem_ack_replicas"); text != "" {
		if o.AckReplicas, err = strconv.Atoi(text); err != nil || o.AckReplicas < 0 {
			return o, &NameError{fmt.Sprintf("idem: idem_ack_replicas is %q in the store's URL; it must be a number of replicas, such as 1", text)}
		}
	}
	if text := take("idem_ack_fsync"); text != "" {
		if o.AckFsync, err = strconv.ParseBool(text); err != nil {
			return o, &NameError{fmt.Sprintf("idem: idem_ack_fsync is %q in the store's URL; it must be true or false", text)}
		}
	}
	return o, nil
}

// OpenServer opens the store on a server.
func OpenServer(ctx context.Context, u *URL) (Store, error) {
	switch u.Scheme {
	case "cockroach":
		return cockroach.Open(ctx, u.url, &cockroach.Options{Schema: u.Schema, TablePrefix: u.TablePrefix})
	case "redis", "rediss":
		return redis.Open(ctx, u.url, &u.Redis)
	}
	return postgres.Open(ctx, u.url, &postgres.Options{Schema: u.Schema, TablePrefix: u.TablePrefix})
}

// Migrate brings the server's schema to this program's version.
func Migrate(ctx context.Context, u *URL) error {
	var s Store
	var err error
	if u.Scheme == "cockroach" {
		s, err = cockroach.Open(ctx, u.url, &cockroach.Options{Schema: u.Schema, TablePrefix: u.TablePrefix, Migrate: true})
	} else {
		s, err = postgres.Open(ctx, u.url, &postgres.Options{Schema: u.Schema, TablePrefix: u.TablePrefix, Migrate: true})
	}
	if err != nil {
		return err
	}
	return s.Close()
}

// Script is the schema as SQL, with the rights that a program needs as comments.
func Script(u *URL) (string, error) {
	if u.Scheme == "cockroach" {
		return cockroach.Script(&cockroach.Options{Schema: u.Schema, TablePrefix: u.TablePrefix})
	}
	return postgres.Script(&postgres.Options{Schema: u.Schema, TablePrefix: u.TablePrefix})
}
