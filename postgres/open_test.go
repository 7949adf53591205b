package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// ways are the constructors, each closing what it opened.
func ways(t testing.TB) map[string]func(ctx context.Context, url string, o *Options) error {
	return map[string]func(ctx context.Context, url string, o *Options) error{
		"Open": func(ctx context.Context, url string, o *Options) error {
			s, err := Open(ctx, url, o)
			if err == nil {
				_ = s.Close()
			}
			return err
		},
		"New": func(ctx context.Context, url string, o *Options) error {
			_, err := New(ctx, newPool(t, url), o)
			return err
		},
		"NewSQL": func(ctx context.Context, url string, o *Options) error {
			_, err := NewSQL(ctx, newDB(t, url), o)
			return err
		},
	}
}

const secret = "correct-horse"

// as turns a URL into that of another role, with a password and other parts.
func as(t testing.TB, plain, role string, change func(u *url.URL)) string {
	t.Helper()
	u, err := url.Parse(plain)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, secret)
	if change != nil {
		change(u)
	}
	return u.String()
}

// Whatever is wrong gives one error that says so, in time, and without the
// driver's words or the password.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	hba := filepath.Join(t.TempDir(), "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(hba); dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755) // the server is another user's process
	}
	pg := testdb.StartPostgres(t, testdb.PGOptions{Settings: map[string]string{"hba_file": hba}})
	admin := pg.Database(t)
	role := pg.Role(t, "PASSWORD '"+secret+"'")
	good := as(t, admin, role, nil)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never says a word
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })

	for _, tt := range []struct {
		name    string
		url     string
		migrate bool
		wait    time.Duration // zero: a minute
		is      error
		says    []string
	}{
		{"no schema", good, false, 0, nil, []string{"no schema", "idem_schema", "brings version 1", "idem migrate"}},
		{"no right to create tables", good, true, 0, ErrAccess, []string{"may create tables", "42501"}},
		{"wrong password", strings.Replace(good, secret, secret+"-wrong", 1), false, 0, ErrAccess, []string{"password", role}},
		{"no such role", as(t, admin, "nobody", nil), false, 0, ErrAccess, []string{"role", "nobody"}},
		{"no such database", as(t, admin, role, func(u *url.URL) { u.Path = "/nowhere" }), false, 0, ErrAccess, []string{"no such database", "nowhere"}},
		{"nobody listens", as(t, admin, role, func(u *url.URL) { u.Host = closed.Addr().String() }), false, 0, ErrUnreachable, []string{"nothing listens", closed.Addr().String()}},
		{"no such host", as(t, admin, role, func(u *url.URL) { u.Host = "nowhere.invalid:5432" }), false, 0, ErrUnreachable, []string{"nowhere.invalid"}},
		{"nobody answers", as(t, admin, role, func(u *url.URL) { u.Host = mute.Addr().String() }), false, time.Second, ErrUnreachable, []string{"did not answer in time"}},
		{"read-only role", good + "&default_transaction_read_only=on", false, 0, ErrReadOnly, []string{"default_transaction_read_only"}},
	} {
		for way, open := range ways(t) {
			t.Run(tt.name+"/"+way, func(t *testing.T) {
				t.Parallel()
				wait := time.Minute
				if tt.wait > 0 {
					wait = tt.wait
				}
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				begun := time.Now()
				err := open(ctx, tt.url, &Options{Migrate: tt.migrate})
				if took := time.Since(begun); took > wait+10*time.Second {
					t.Errorf("it took %v; the deadline was %v", took, wait)
				}
				if err == nil {
					t.Fatal("it opened")
				}
				checkClean(t, err)
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("%v does not match %v", err, tt.is)
				}
				if tt.is == nil {
					var schema *SchemaError
					if !errors.As(err, &schema) {
						t.Errorf("%v is not a SchemaError", err)
					}
				}
				if tt.wait > 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v does not match the context's error", err)
				}
				for _, part := range tt.says {
					// A *sql.DB does not tell what it is connected to.
					if !strings.Contains(err.Error(), part) && way != "NewSQL" {
						t.Errorf("%v\ndoes not say %q", err, part)
					}
				}
			})
		}
	}
}

// checkClean insists that an error is idem's, says one thing and no secret.
func checkClean(t testing.TB, err error) {
	t.Helper()
	text := err.Error()
	if !strings.HasPrefix(text, "idem: ") || strings.Contains(text, "\n") {
		t.Errorf("not one line of idem's: %q", text)
	}
	for _, word := range []string{secret, "pq:", "pgx", "FATAL", "ERROR", "dial tcp", "failed to connect", "hostname resolving"} {
		if strings.Contains(text, word) {
			t.Errorf("it says %q: %s", word, text)
		}
	}
}

func TestOpenURLs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, says string }{
		{"", "postgres://user:password@host"},
		{"nonsense", "postgres://user:password@host"},
		{"postgres://anna:" + secret + "@host:port/db", "postgres://user:password@host"},
		{"postgres://anna:" + secret + "@host/db?sslmode=perhaps", "postgres://user:password@host"},
		{"postgres://anna:" + secret + "%zz@host/db", "postgres://user:password@host"},
		{"cockroach://anna:" + secret + "@host/db", "not with cockroach://"},
		{"anna:" + secret + "://host", "something else"},
		{"host=h port=x password=" + secret, "postgres://user:password@host"},
	} {
		_, err := Open(soon(t), tt.url, nil)
		if !errors.Is(err, backend.ErrInvalidRequest) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v, want it to say %q", tt.url, err, tt.says)
			continue
		}
		checkClean(t, err)
	}
	if _, err := New(soon(t), nil, nil); !errors.Is(err, backend.ErrInvalidRequest) {
		t.Errorf("a nil pool: %v", err)
	}
	if _, err := NewSQL(soon(t), nil, nil); !errors.Is(err, backend.ErrInvalidRequest) {
		t.Errorf("a nil database: %v", err)
	}
	for _, o := range []Options{{Schema: "Bad"}, {Schema: `a"b`}, {TablePrefix: "1st"}, {TablePrefix: strings.Repeat("a", 41)}, {Schema: "a.b"}} {
		if _, err := Migrations(&o); !errors.Is(err, backend.ErrInvalidRequest) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A role with the rights that are documented, and no others, works; without any of
// them opening says what is missing.
func TestOpenAsRoleWithoutDDL(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"", "keys"} {
		t.Run("schema "+schema, func(t *testing.T) {
			t.Parallel()
			pg := testdb.Postgres(t)
			admin := pg.Database(t)
			pg.Exec(t, admin, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
			o := &Options{Schema: schema, TablePrefix: "app_"}
			if err := Migrate(soon(t), newPool(t, admin), o); err != nil {
				t.Fatal(err)
			}
			role := pg.Role(t)
			grants, err := Grants(o, role)
			if err != nil {
				t.Fatal(err)
			}
			url := as(t, admin, role, nil)
			for i, g := range grants { // each of them is needed
				if _, err := New(soon(t), newPool(t, url), o); !errors.Is(err, ErrAccess) && !isMissing(err) {
					t.Errorf("with %d of %d grants: %v", i, len(grants), err)
				}
				pg.Exec(t, admin, g)
			}
			for way, open := range ways(t) {
				for _, migrate := range []bool{false, true} { // nothing to do is no reason to need more
					c := *o
					c.Migrate = migrate
					if err := open(soon(t), url, &c); err != nil {
						t.Errorf("%s, Migrate %v: %v", way, migrate, err)
					}
				}
			}
			s, err := New(soon(t), newPool(t, url), o)
			if err != nil {
				t.Fatal(err)
			}
			everyMove(t, s)
		})
	}
}

// isMissing: without USAGE on the schema the server says that the table does not exist.
func isMissing(err error) bool {
	var schema *SchemaError
	return errors.As(err, &schema) && schema.Found == 0
}

// everyMove makes each move once.
func everyMove(t testing.TB, b backend.Backend) {
	t.Helper()
	ctx := soon(t)
	id := func(n int) backend.ID { return backend.ID{Operation: "op", Key: fmt.Sprint("key ", n)} }
	reserve := func(n int) backend.ReserveRequest {
		r := backend.ReserveRequest{Ref: backend.Ref{ID: id(n)}, TTL: time.Minute, KnownFor: time.Hour, ReplayFor: time.Hour, OnAbandoned: backend.Rerun}
		r.Owner[0] = byte(n)
		res, err := b.Reserve(ctx, r)
		if err != nil || res.Outcome != backend.Acquired {
			t.Fatalf("Reserve: %v, %v", res.Outcome, err)
		}
		return r
	}
	first := reserve(1)
	if err := b.Renew(ctx, first.Ref, time.Hour); err != nil {
		t.Errorf("Renew: %v", err)
	}
	done := backend.CompleteRequest{Ref: first.Ref, State: backend.Completed, Body: []byte("42"), ReplayFor: time.Hour, KnownFor: time.Hour}
	if rec, err := b.Complete(ctx, done); err != nil || string(rec.Body) != "42" {
		t.Errorf("Complete: %+v, %v", rec, err)
	}
	if err := b.Release(ctx, reserve(2).Ref); err != nil {
		t.Errorf("Release: %v", err)
	}
	rec, err := b.Get(ctx, id(1))
	if err != nil || string(rec.Body) != "42" {
		t.Errorf("Get: %+v, %v", rec, err)
	}
	n := 0
	for _, err := range b.List(ctx, backend.Filter{}) {
		if n++; err != nil {
			t.Errorf("List: %v", err)
		}
	}
	if n == 0 {
		t.Error("List yields nothing")
	}
	if err := b.Forget(ctx, backend.ForgetRequest{ID: id(1), Fence: rec.Fence}); err != nil {
		t.Errorf("Forget: %v", err)
	}
	if _, err := b.Expire(ctx, backend.ExpireRequest{}); err != nil {
		t.Errorf("Expire: %v", err)
	}
}

func TestReplicaIsRefused(t *testing.T) {
	t.Parallel()
	pg := testdb.StartPostgres(t, testdb.PGOptions{})
	url := pg.AdminURL() // no database of the test's own: none can be dropped on a replica
	if err := Migrate(soon(t), newPool(t, url), nil); err != nil {
		t.Fatal(err)
	}
	dir := pg.Exec(t, url, "SHOW data_directory")[0]
	pg.Kill(t)
	// With this file a server stays in recovery, as a standby does.
	if err := os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644); err != nil {
		t.Skipf("the data directory cannot be written: %v", err)
	}
	pg.Restart(t)
	for way, open := range ways(t) {
		err := open(soon(t), url, nil)
		if !errors.Is(err, ErrReadOnly) || !strings.Contains(err.Error(), "replica") {
			t.Errorf("%s: %v", way, err)
			continue
		}
		checkClean(t, err)
	}
	if err := os.Remove(filepath.Join(dir, "standby.signal")); err != nil {
		t.Error(err)
	}
}

// Close belongs to Open alone.
func TestCloseClosesOnlyWhatOpenMade(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	url := pg.Database(t)
	own, err := Open(soon(t), url, &Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, url)
	lent, err := New(soon(t), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{own, lent, own, lent} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := pool.Ping(soon(t)); err != nil {
		t.Errorf("the caller's pool: %v", err)
	}
	if own.Pool().Ping(soon(t)) == nil {
		t.Error("the pool that Open made still answers")
	}
}

// What Guarantees returns belongs to the caller.
func TestGuaranteesAreTheCallers(t *testing.T) {
	t.Parallel()
	s, err := Open(soon(t), testdb.Postgres(t).Database(t), &Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	g := s.Guarantees()
	if g.MachineCrash != backend.Survives || g.Failover != backend.Survives || len(g.Findings) == 0 {
		t.Errorf("%+v", g)
	}
	g.Findings[0].Value = "changed"
	if again := s.Guarantees(); again.Findings[0].Value == "changed" {
		t.Error("the store's own findings were changed")
	}
}
