package testdb

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

// PG is a PostgreSQL server. It trusts every connection of the machine.
type PG struct {
	srv     *throwaway.PG
	counter atomic.Int64 // numbers databases and roles
}

// PGOptions are the options of [StartPostgres].
type PGOptions = throwaway.PGOptions

// Postgres returns the PostgreSQL server that the tests of this binary share. The first call starts
// it. The test is skipped when PostgreSQL is not installed, or fails when IDEM_TEST_REQUIRE asks for
// it.
func Postgres(tb testing.TB) *PG {
	tb.Helper()
	pg, err := session.postgres.get(func() (*PG, error) { return startPostgres(starting(tb), PGOptions{}) })
	need(tb, "postgres", err)
	return pg
}

// StartPostgres starts a PostgreSQL server of the test's own, which goes when the test ends. It skips
// and fails as [Postgres] does.
func StartPostgres(tb testing.TB, o PGOptions) *PG {
	tb.Helper()
	pg, err := startPostgres(starting(tb), o)
	need(tb, "postgres", err)
	tb.Cleanup(pg.srv.Close)
	return pg
}

func startPostgres(ctx context.Context, o PGOptions) (*PG, error) {
	host, err := open()
	if err != nil {
		return nil, err
	}
	srv, err := host.Postgres(ctx, o)
	return &PG{srv: srv}, err
}

// Addr returns the server's address, host and port.
func (pg *PG) Addr() string { return pg.srv.Addr() }

// AdminURL returns the URL of the maintenance database, as superuser.
func (pg *PG) AdminURL() string { return pg.srv.AdminURL() }

// URL returns the URL of a database for a role.
func (pg *PG) URL(role, database string) string { return pg.srv.URL(role, database) }

// Database makes an empty database, which goes when the test ends, whoever is still connected, and
// returns its URL as superuser.
func (pg *PG) Database(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("test%d", pg.counter.Add(1))
	url, err := pg.srv.CreateDatabase(name)
	if err != nil {
		tb.Fatalf("testdb: make a database: %v", err)
	}
	tb.Cleanup(func() {
		if pg.srv.Alive() { // else the test killed it, and the database goes with its server
			pg.Exec(tb, "postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		}
	})
	return url
}

// Role makes a role that may log in, with attributes such as "NOINHERIT" or "IN ROLE app", and returns
// its name. It has no right but what it is granted, and stays until the server goes.
func (pg *PG) Role(tb testing.TB, attributes ...string) string {
	tb.Helper()
	name := fmt.Sprintf("role%d", pg.counter.Add(1))
	pg.Exec(tb, "postgres", "CREATE ROLE "+name+" LOGIN "+strings.Join(attributes, " "))
	return name
}

// Exec runs a statement as superuser in a database, named by its name or its URL, and returns the
// first column of its rows.
func (pg *PG) Exec(tb testing.TB, database, sql string) []string {
	tb.Helper()
	column, err := pg.srv.Exec(database, sql)
	if err != nil {
		tb.Fatalf("testdb: %s: %v", sql, err)
	}
	return column
}

// Kill ends the server and all its backends at once, as a power cut of the machine's processes. What
// the kernel has in its cache survives; what PostgreSQL has in memory does not.
func (pg *PG) Kill(tb testing.TB) {
	tb.Helper()
	if err := pg.srv.Kill(); err != nil {
		tb.Fatal(err)
	}
}

// Restart starts the server again, after Kill, after Stop or while it runs, on the same port and data.
// It returns when the server answers, crash recovery included.
func (pg *PG) Restart(tb testing.TB) {
	tb.Helper()
	if err := pg.srv.Restart(starting(tb)); err != nil {
		tb.Fatal(err)
	}
}

// Stop shuts the server down in order: it ends all connections and flushes everything.
func (pg *PG) Stop() { pg.srv.Stop() }
