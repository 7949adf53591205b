package crdbshim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/goidem/idem/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m, func() error { return goleak.Find() }) }

// fixture is a shim before a fresh schema with a table t, and a connection past it. A database for each
// of them would take most of the tests' time.
type fixture struct {
	*Shim
	ctx    context.Context
	server string
	past   *pgx.Conn
}

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	schema := fmt.Sprintf("s%d", schemas.Add(1))
	admin := testdb.Postgres(t).AdminURL()
	url := admin + "?search_path=" + schema
	if strings.Contains(admin, "?") {
		url = admin + "&search_path=" + schema
	}
	past := connect(t, ctx, url)
	mustExec(t, past, "CREATE SCHEMA "+schema)
	t.Cleanup(func() {
		c := connect(t, context.WithoutCancel(ctx), admin)
		mustExec(t, c, "DROP SCHEMA "+schema+" CASCADE")
	})
	f := &fixture{Shim: Start(t, url, o), ctx: ctx, server: url, past: past}
	mustExec(t, f.past, "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL DEFAULT 0)")
	return f
}

var schemas atomic.Int64 // lint:const a counter of the tests

// conn connects through the shim.
func (f *fixture) conn(t *testing.T) *pgx.Conn {
	t.Helper()
	return connect(t, f.ctx, f.URL())
}

func connect(t *testing.T, ctx context.Context, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.WithoutCancel(ctx)) })
	return c
}

type execer interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}

func mustExec(t *testing.T, c execer, sql string, args ...any) pgconn.CommandTag {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	tag, err := c.Exec(ctx, sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag
}

// fails checks that err is the server's error with that code.
func fails(t *testing.T, err error, code string) {
	t.Helper()
	if got := sqlState(err); got != code {
		t.Fatalf("got %v with SQLSTATE %q, want SQLSTATE %s", err, got, code)
	}
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// rows counts the rows of t past the shim.
func (f *fixture) rows(t *testing.T) int {
	t.Helper()
	var n int
	if err := f.past.QueryRow(f.ctx, "SELECT count(*) FROM t").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (f *fixture) wantRows(t *testing.T, want int) {
	t.Helper()
	if got := f.rows(t); got != want {
		t.Fatalf("the table has %d rows, want %d", got, want)
	}
}

func wantStatus(t *testing.T, c *pgx.Conn, want byte) {
	t.Helper()
	if got := c.PgConn().TxStatus(); got != want {
		t.Fatalf("the transaction status is %c, want %c", got, want)
	}
}

// modes are the ways in which pgx sends a statement.
var modes = map[string]pgx.QueryExecMode{ // lint:const a table of the tests
	"simple":   pgx.QueryExecModeSimpleProtocol,
	"exec":     pgx.QueryExecModeExec,
	"prepared": pgx.QueryExecModeCacheStatement,
	"describe": pgx.QueryExecModeCacheDescribe,
}

// inPipeline sends statements as one pipeline that ends in one Sync, and returns the first error.
func inPipeline(ctx context.Context, c *pgx.Conn, statements ...string) error {
	p := c.PgConn().StartPipeline(ctx)
	for _, sql := range statements {
		p.SendQueryParams(sql, nil, nil, nil, nil)
	}
	err := p.Sync()
	for err == nil {
		var r any
		if r, err = p.GetResults(); err != nil {
			break
		}
		switch r := r.(type) {
		case *pgconn.ResultReader:
			_, err = r.Close()
		case *pgconn.PipelineSync:
			return p.Close()
		}
	}
	return errors.Join(err, p.Close())
}
