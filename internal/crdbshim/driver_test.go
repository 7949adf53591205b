package crdbshim

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func TestDatabaseSQL(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	db, err := sql.Open("pgx", f.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	insert, err := db.PrepareContext(f.ctx, "INSERT INTO t VALUES ($1, $2)")
	if err != nil {
		t.Fatal(err)
	}
	defer insert.Close()
	tx, err := db.BeginTx(f.ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (9)", "ROLLBACK TO SAVEPOINT cockroach_restart"} {
		if _, err := tx.ExecContext(f.ctx, s); err != nil {
			t.Fatal(s, err)
		}
	}
	if _, err := tx.StmtContext(f.ctx, insert).ExecContext(f.ctx, 1, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(f.ctx, "RELEASE SAVEPOINT cockroach_restart"); err != nil {
		t.Fatal(err)
	}
	f.wantRows(t, 1)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	fault := f.Inject(Fault{Kind: CutAfterCommit, AtCommit: true})
	if _, err := insert.ExecContext(f.ctx, 2, 2); err == nil || fault.Fired() != 1 {
		t.Errorf("got %v, fired %d times", err, fault.Fired())
	}
	f.wantRows(t, 2)
	var version string
	if err := db.QueryRowContext(f.ctx, "SELECT version()").Scan(&version); err != nil || version != Version {
		t.Errorf("version() is %q (%v)", version, err)
	}
}

// TestLikePostgres gives the same statements to the server and to the shims before it, and compares
// everything that a client sees of them.
func TestLikePostgres(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	plain := Start(t, f.server, Options{Plain: true})
	watched := Start(t, f.server, Options{})
	watched.Inject(Fault{Kind: Stall, SQL: "e", Times: 1 << 30, Delay: 1}) // every statement goes the long way
	conns := map[string]*pgx.Conn{
		"": f.past, "shim": f.conn(t), "plain": connect(t, f.ctx, plain.URL()), "watched": connect(t, f.ctx, watched.URL()),
	}
	mustExec(t, f.past, "INSERT INTO t VALUES (1, 10), (2, 20)")
	for _, script := range []string{
		"", ";", "-- nothing", "SELECT 1", "SELECT 1; SELECT 'a;b', $$c;d$$ -- e;f", "SELECT v, id FROM t ORDER BY id;",
		"SELEC 1", "SELECT 1; SELECT 1/0; SELECT 3", "BEGIN; SELECT 1/0; SELECT 2", "SELECT 2", "COMMIT", "COMMIT",
		"BEGIN; SAVEPOINT a; SELECT 1/0", "ROLLBACK TO a; SELECT 4", "RELEASE a; ROLLBACK", "SELECT 5 WHERE false",
		"START TRANSACTION READ ONLY; UPDATE t SET v = 1", "END", "UPDATE t SET v = v WHERE id = 1 RETURNING v; SELECT 1",
		"PREPARE p AS SELECT $1::int; EXECUTE p(3); DEALLOCATE p", "SET LOCAL lock_timeout = 1; SHOW lock_timeout",
		"COPY t TO STDOUT", "SELECT generate_series(1, 3000)", "EXPLAIN (COSTS off) SELECT 1; SELECT 1",
		"BEGIN; DECLARE c CURSOR FOR SELECT generate_series(1,5); FETCH 2 FROM c; MOVE 1 FROM c; FETCH ALL FROM c; ABORT",
	} {
		want := transcript(f.ctx, conns[""], script)
		wantSteps := pipelineTranscript(f.ctx, conns[""], script)
		for name, c := range conns {
			if got := transcript(f.ctx, c, script); name != "" && got != want {
				t.Errorf("%s: %q\ngot  %s\nwant %s", name, script, got, want)
			}
			if got := pipelineTranscript(f.ctx, c, script); name != "" && got != wantSteps {
				t.Errorf("%s: %q in a pipeline\ngot  %s\nwant %s", name, script, got, wantSteps)
			}
		}
	}
}

// transcript is what a client sees of a simple query.
func transcript(ctx context.Context, c *pgx.Conn, script string) string {
	var out strings.Builder
	if strings.HasPrefix(script, "COPY") {
		var rows bytes.Buffer
		tag, err := c.PgConn().CopyTo(ctx, &rows, script)
		fmt.Fprintf(&out, "%s %s %v", rows.String(), tag, err)
	} else {
		results, err := c.PgConn().Exec(ctx, script).ReadAll()
		for _, r := range results {
			writeResult(&out, r)
		}
		fmt.Fprintf(&out, "%v", err)
	}
	fmt.Fprintf(&out, " %c", c.PgConn().TxStatus())
	return out.String()
}

func writeResult(out *strings.Builder, r *pgconn.Result) {
	for _, d := range r.FieldDescriptions {
		fmt.Fprintf(out, "%s:%d,", d.Name, d.DataTypeOID)
	}
	fmt.Fprintf(out, "%q %s %v; ", r.Rows, r.CommandTag, r.Err)
}

// pipelineTranscript is what a client sees of the statements in one pipeline, at whose end a block is
// left.
func pipelineTranscript(ctx context.Context, c *pgx.Conn, script string) string {
	var out strings.Builder
	if strings.HasPrefix(script, "COPY") {
		return ""
	}
	p := c.PgConn().StartPipeline(ctx)
	for _, st := range analyze(script, nil) {
		p.SendQueryParams(st.text, nil, nil, nil, nil)
	}
	p.Sync()
	for {
		r, err := p.GetResults()
		if reader, ok := r.(*pgconn.ResultReader); ok {
			writeResult(&out, reader.Read())
			continue
		}
		if _, ok := r.(*pgconn.PipelineSync); ok {
			break
		}
		fmt.Fprintf(&out, "%v; ", err)
		if err == nil || !strings.Contains(err.Error(), "SQLSTATE") {
			break
		}
	}
	fmt.Fprintf(&out, "%v %c", p.Close(), c.PgConn().TxStatus())
	c.Exec(ctx, "ROLLBACK")
	return out.String()
}

func TestCopyFrom(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	rows := make([][]any, 20000)
	for i := range rows {
		rows[i] = []any{i, i}
	}
	n, err := c.CopyFrom(f.ctx, pgx.Identifier{"t"}, []string{"id", "v"}, pgx.CopyFromRows(rows))
	if err != nil || n != 20000 {
		t.Fatal(n, err)
	}
	f.wantRows(t, 20000)
	_, err = c.CopyFrom(f.ctx, pgx.Identifier{"t"}, []string{"id", "v"}, pgx.CopyFromRows(rows))
	fails(t, err, "23505")
	_, err = c.PgConn().CopyFrom(f.ctx, io.MultiReader(strings.NewReader("77777\t1\n"), errReader{}), "COPY t FROM STDIN")
	if err == nil {
		t.Error("no error of a copy whose source failed")
	}
	mustExec(t, c, "INSERT INTO t VALUES (88888)")
	f.wantRows(t, 20001)
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("no more") }

// TestLongPipeline sends more than all buffers hold before it reads.
func TestLongPipeline(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for _, watch := range []bool{false, true} {
		mustExec(t, f.past, "TRUNCATE t")
		if watch {
			f.Inject(Fault{Kind: Stall, SQL: "no such statement"})
		}
		c := f.conn(t)
		var b pgx.Batch
		padding := strings.Repeat("x", 10_000) // 12 MB: more than all buffers on the way hold
		for i := range 1200 {
			b.Queue("INSERT INTO t VALUES ($1, length($2)) RETURNING v, $2::text", i, padding)
		}
		if err := c.SendBatch(f.ctx, &b).Close(); err != nil {
			t.Fatal(err)
		}
		f.wantRows(t, 1200)
	}
}

func TestPoolStorm(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	pool, err := pgxpool.New(f.ctx, f.URL()+"&pool_max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	mustExec(t, pool, "INSERT INTO t VALUES (0)")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				for {
					_, err := pool.Exec(f.ctx, "UPDATE t SET v = v + 1 WHERE id = $1", 0)
					if err == nil {
						break
					}
					if sqlState(err) != "40001" {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	var v int
	if err := f.past.QueryRow(f.ctx, "SELECT v FROM t").Scan(&v); err != nil || v != 80 {
		t.Errorf("80 increments left %d (%v)", v, err)
	}
}

func TestCancelRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(f.ctx, "SELECT pg_sleep(50)")
		done <- err
	}()
	for {
		select {
		case err := <-done:
			fails(t, err, "57014")
			mustExec(t, c, "SELECT 1")
			return
		case <-time.After(10 * time.Millisecond):
			c.PgConn().CancelRequest(f.ctx)
		}
	}
}

func TestClientLeavesInBlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	mustExec(t, c, "BEGIN")
	mustExec(t, c, "INSERT INTO t VALUES (1)")
	c.PgConn().Conn().Close() // without a farewell
	mustExec(t, f.past, "INSERT INTO t VALUES (1)")
	f.eventually(t, func() bool { return f.sessions() == 0 })
	f.wantRows(t, 1)
}

func TestNoTLS(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	if _, err := pgx.Connect(f.ctx, strings.Replace(f.URL(), "sslmode=disable", "sslmode=require", 1)); err == nil {
		t.Error("TLS was accepted")
	}
	connect(t, f.ctx, strings.Replace(f.URL(), "sslmode=disable", "sslmode=prefer", 1))
}

func TestWrongServer(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres:///db", "://"} {
		if _, err := start(url, Options{}); err == nil {
			t.Errorf("%q was accepted", url)
		}
	}
	s := Start(t, "postgres://u@127.0.0.1:1/db", Options{})
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if _, err := pgx.Connect(ctx, s.URL()); err == nil {
		t.Error("a server that does not exist was reached")
	}
}

// TestCloseEndsEverything: whatever the sessions wait for, Close returns and leaves nothing.
func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.Inject(Fault{Kind: Stall, SQL: "stalled"})
	var wg sync.WaitGroup
	for _, sql := range []string{"SELECT pg_sleep(50)", "SELECT 1 AS stalled", "SELECT 1"} {
		c := f.conn(t)
		wg.Go(func() { c.Exec(f.ctx, sql) })
	}
	raw, err := net.Dial("tcp", f.listener.Addr().String()) // says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	f.eventually(t, func() bool { return f.Fired() == 1 && f.Trips() == 1 })
	f.Close()
	wg.Wait()
	if n := f.sessions(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	f.Close() // again
}

// TestSkipsUntilSync speaks the protocol by hand: after an error everything is ignored until Sync, and
// Flush brings answers early.
func TestSkipsUntilSync(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	pgConn := f.conn(t).PgConn()
	hijacked, err := pgConn.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	defer hijacked.Conn.Close()
	hijacked.Conn.SetDeadline(soon())
	fe := hijacked.Frontend
	expect := func(want string) {
		t.Helper()
		if err := fe.Flush(); err != nil {
			t.Fatal(err)
		}
		got := ""
		for len(got) < len(want) {
			msg, err := fe.Receive()
			if err != nil {
				t.Fatalf("after %q: %v", got, err)
			}
			switch m := msg.(type) {
			case *pgproto3.ParseComplete:
				got += "1"
			case *pgproto3.BindComplete:
				got += "2"
			case *pgproto3.CloseComplete:
				got += "3"
			case *pgproto3.NoData:
				got += "n"
			case *pgproto3.ParameterDescription:
				got += "t"
			case *pgproto3.CommandComplete:
				got += "C"
			case *pgproto3.ErrorResponse:
				got += "E"
			case *pgproto3.ReadyForQuery:
				got += string(m.TxStatus)
			default:
				t.Logf("%#v", m)
				got += "?"
			}
		}
		if got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	send := func(msgs ...pgproto3.FrontendMessage) {
		for _, m := range msgs {
			fe.Send(m)
		}
	}
	flush, sync := &pgproto3.Flush{}, &pgproto3.Sync{}
	prepare := func(name, sql string) *pgproto3.Parse { return &pgproto3.Parse{Name: name, Query: sql} }
	run := func(name string) []pgproto3.FrontendMessage {
		return []pgproto3.FrontendMessage{&pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}}
	}
	send(prepare("b", "BEGIN"), prepare("s", "SAVEPOINT cockroach_restart"), prepare("r", "RELEASE SAVEPOINT cockroach_restart"),
		prepare("to", "ROLLBACK TO SAVEPOINT cockroach_restart"), prepare("c", "COMMIT"), prepare("i", "INSERT INTO t VALUES (1)"),
		&pgproto3.Describe{ObjectType: 'S', Name: "r"}, flush)
	expect("111111tn")
	send(run("b")...)
	send(run("s")...)
	send(flush)
	expect("2C2C")
	send(run("i")...)
	send(run("i")...) // a duplicate
	send(run("r")...)
	send(run("c")...)
	send(&pgproto3.Query{String: "SELECT 1"}, prepare("x", "SELECT 1"), flush, sync)
	expect("2C2EE")
	send(run("s")...) // in place of ROLLBACK TO
	send(run("i")...)
	send(run("to")...)
	send(run("i")...)
	send(run("r")...)
	send(run("i")...) // too late
	send(run("c")...)
	send(sync)
	expect("2C2C2C2C2C2ET")
	send(run("c")...)
	send(&pgproto3.Close{ObjectType: 'S', Name: "c"}, sync)
	expect("2C3I")
	f.wantRows(t, 1)
}
