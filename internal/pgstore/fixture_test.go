package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

// setup is how a pool of the application is set up.
type setup struct {
	name      string
	isolation string
	mode      pgx.QueryExecMode // zero: pgx's default
	size      int32
}

// setups are those that every test of the contract should hold under.
func setups() []setup {
	return []setup{
		{"read committed", "read committed", pgx.QueryExecModeCacheStatement, 12},
		{"repeatable read", "repeatable read", pgx.QueryExecModeCacheStatement, 12},
		{"serializable", "serializable", pgx.QueryExecModeCacheStatement, 12},
		{"unprepared", "read committed", pgx.QueryExecModeExec, 12},
		{"simple protocol", "read committed", pgx.QueryExecModeSimpleProtocol, 12},
	}
}

// base is one database with one store, whose tables have a prefix of their own.
type base struct {
	t     testing.TB
	url   string
	admin *pgxpool.Pool
	names Names
	now   string // expression of its clock
}

// lint:const the database and the pools are shared by the tests of the package
var shared struct {
	sync.Mutex
	counter atomic.Int64
}

// newBase returns an empty store in a database of url; an empty url means the one that
// the tests of the package share, since making and dropping one takes a second or two.
// What a test makes there has the store's prefix, and its sessions bear it as their
// application_name, see mine.
func newBase(t testing.TB, url string) *base {
	t.Helper()
	if url == "" {
		url = testdb.Postgres(t).AdminURL()
	}
	b := &base{t: t}
	b.name()
	b.url = url + "&application_name=" + b.names.Prefix
	b.admin = newPool(t, b.url, setup{size: 4, mode: pgx.QueryExecModeCacheDescribe})
	b.create()
	return b
}

// mine selects the sessions of this test.
const mine = "application_name = current_setting('application_name')"

// again returns another empty store in the same database.
func (b *base) again(t testing.TB) *base {
	c := *b
	c.t = t
	c.name()
	c.create()
	return &c
}

// reset empties the store for the next test, which spares it the making of tables
// and the preparing of statements.
func (b *base) reset(t testing.TB) *base {
	c := *b
	c.t = t
	c.exec(fmt.Sprintf("DELETE FROM %s; UPDATE %s SET t = clock_timestamp()", b.names.Records, b.clock()))
	return &c
}

// clock is the table that the store's time stands in, still between two calls of
// advance.
func (b *base) clock() string { return pgx.Identifier{b.names.Prefix + "clock"}.Sanitize() }

func (b *base) name() {
	b.t.Helper()
	n, err := NewNames("", fmt.Sprintf("t%d_", shared.counter.Add(1)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.names = n
	b.now = "(SELECT t FROM " + b.clock() + ")"
}

func (b *base) create() {
	b.t.Helper()
	n := b.names
	var all strings.Builder
	fmt.Fprintf(&all, "CREATE TABLE %s AS SELECT clock_timestamp() AS t;\n", b.clock())
	for _, m := range Migrations(n, PostgreSQL()) {
		all.WriteString(strings.Join(m.statements(), ";\n") + ";\n")
	}
	b.exec(all.String())
}

// exec runs statements as the administrator.
func (b *base) exec(text string, args ...any) {
	b.t.Helper()
	mode := []any{pgx.QueryExecModeSimpleProtocol}
	if _, err := b.admin.Exec(b.t.Context(), text, append(mode, args...)...); err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
}

// ask returns the one value of a query as text.
func (b *base) ask(query string, args ...any) (answer string) {
	b.t.Helper()
	if err := b.admin.QueryRow(b.t.Context(), "SELECT ("+query+")::text", args...).Scan(&answer); err != nil {
		b.t.Fatalf("%s: %v", query, err)
	}
	return answer
}

func (b *base) advance(d time.Duration) {
	b.exec(fmt.Sprintf("UPDATE %s SET t = t + %d * interval '1 microsecond'", b.clock(), d.Microseconds()))
}

func (b *base) config() Config {
	return Config{
		Names: b.names, Dialect: PostgreSQL(), Now: b.now,
		Guarantees: backend.Guarantees{ProcessCrash: backend.Survives, MachineCrash: backend.Survives, ServerClock: true, Shared: true},
	}
}

// harness is b for the conformance suite.
func (b *base) harness(open func(t testing.TB) backend.Backend) *backendtest.Harness {
	return &backendtest.Harness{
		Open: open, Advance: b.advance, Tick: time.Microsecond, FenceOutlivesRecord: true,
		Put: func(t testing.TB, r backend.Record) { b.put(r) },
		Damage: func(t testing.TB, id backend.ID) {
			b.exec(fmt.Sprintf("UPDATE %s SET state = 99 WHERE key = $1", b.names.Records), id.Key)
		},
		Future: func(t testing.TB, id backend.ID) {
			b.exec(fmt.Sprintf("UPDATE %s SET format = 99 WHERE key = $1", b.names.Records), id.Key)
		},
	}
}

// put stores r as it is.
func (b *base) put(r backend.Record) {
	b.t.Helper()
	pool := PgxDB{Pool: b.admin}
	insert := fmt.Sprintf(`INSERT INTO %s (id, %s, sweep_after) VALUES ($1, $2, $3, $4, 1, 1, 1, $5, 1, 1, false, 1, NULL, '', 0, NULL, now(), NULL, NULL, NULL, NULL, '', NULL, now())`, b.names.Records, columns)
	if err := pool.Do(b.t.Context(), &Stmt{SQL: insert, Args: []any{token(r.ID.Sum()), r.ID.Tenant, r.ID.Operation, r.ID.Key, token(r.Owner)}}); err != nil && !isUnique(err) {
		b.t.Fatal(err)
	}
	x := newTexts(b.names, PostgreSQL(), b.now)
	cur := row{rev: 1}
	if err := pool.Do(b.t.Context(), x.writeStmt(&cur, &r, nil)); err != nil {
		b.t.Fatal(err)
	}
}

// newPool opens a pool of the application on url.
func newPool(t testing.TB, url string, s setup) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(dsn(url, s))
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = s.size
	if s.mode != 0 {
		c.ConnConfig.DefaultQueryExecMode = s.mode
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// newSQL is newPool for database/sql.
func newSQL(t testing.TB, url string, s setup) *sql.DB {
	t.Helper()
	c, err := pgx.ParseConfig(dsn(url, s))
	if err != nil {
		t.Fatal(err)
	}
	if s.mode != 0 {
		c.DefaultQueryExecMode = s.mode
	}
	db := stdlib.OpenDB(*c)
	db.SetMaxOpenConns(int(s.size))
	db.SetMaxIdleConns(int(s.size))
	t.Cleanup(func() { db.Close() })
	return db
}

// dsn is server with the isolation of s as the default of its sessions.
func dsn(server string, s setup) string {
	if s.isolation == "" {
		return server
	}
	return server + "&default_transaction_isolation=" + strings.ReplaceAll(s.isolation, " ", "%20")
}
