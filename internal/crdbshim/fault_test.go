package crdbshim

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// commits are the ways in which one row is written and committed.
var commits = map[string]func(ctx context.Context, c *pgx.Conn) error{ // lint:const a table of the tests
	"block": func(ctx context.Context, c *pgx.Conn) error {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1)", 1); err != nil {
			return err
		}
		return tx.Commit(ctx)
	},
	"autocommit simple": func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "INSERT INTO t VALUES (1)")
		return err
	},
	"autocommit prepared": func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "INSERT INTO t VALUES ($1)", 1)
		return err
	},
	"several in a query": func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT 1; INSERT INTO t VALUES (1); SELECT 2")
		return err
	},
	"writing CTE": func(ctx context.Context, c *pgx.Conn) error {
		var id int
		return c.QueryRow(ctx, "WITH w AS (INSERT INTO t VALUES ($1) RETURNING id) SELECT id FROM w", 1).Scan(&id)
	},
	"batch": func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("SELECT count(*) FROM t")
		b.Queue("INSERT INTO t VALUES ($1)", 1)
		return c.SendBatch(ctx, &b).Close()
	},
	"block in a pipeline": func(ctx context.Context, c *pgx.Conn) error {
		return inPipeline(ctx, c, "BEGIN", "INSERT INTO t VALUES (1)", "COMMIT")
	},
}

func TestFaultsAtCommit(t *testing.T) {
	t.Parallel()
	for name, do := range commits {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plain=%v", name, plain), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, Options{Plain: plain})
				for _, test := range []struct {
					fault Fault
					code  string // "" for a connection that is cut
					rows  int
				}{
					{Fault{Kind: Serialization}, "40001", 0},
					{Fault{Kind: Ambiguous}, "40003", 0},
					{Fault{Kind: Ambiguous, Applied: true}, "40003", 1},
					{Fault{Kind: CutBeforeCommit}, "", 0},
					{Fault{Kind: CutBeforeCommit, Deliver: true}, "", 0},
					{Fault{Kind: CutAfterCommit}, "", 1},
					{Fault{Kind: CutAfterCommit, Deliver: true}, "", 1},
				} {
					mustExec(t, f.past, "TRUNCATE t")
					c := f.conn(t)
					test.fault.AtCommit = true
					fault := f.Inject(test.fault)
					err := do(f.ctx, c)
					if err == nil {
						t.Fatalf("%+v: no error", test.fault)
					}
					if fault.Fired() != 1 {
						t.Fatalf("%+v: fired %d times; the error is %v", test.fault, fault.Fired(), err)
					}
					if got := f.rows(t); got != test.rows {
						t.Fatalf("%+v: %d rows, want %d", test.fault, got, test.rows)
					}
					if test.code == "" {
						if code := sqlState(err); code != "" {
							t.Fatalf("%+v: got SQLSTATE %s from a cut connection", test.fault, code)
						}
						if pgconn.SafeToRetry(err) {
							t.Fatalf("%+v: pgx takes it for unsent: %v", test.fault, err)
						}
						continue
					}
					fails(t, err, test.code)
					wantStatus(t, c, 'I')
					mustExec(t, f.past, "TRUNCATE t")
					if err := do(f.ctx, c); err != nil { // the fault is used up, the connection works
						t.Fatal(err)
					}
					f.wantRows(t, 1)
				}
			})
		}
	}
}

func TestFaultsAtStatement(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Plain: true})
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			c := f.conn(t)
			fault := f.Inject(Fault{Kind: Serialization, Match: regexp.MustCompile(`(?i)^update\s`), After: 1, Times: 2})
			update := func() error {
				_, err := c.Exec(f.ctx, "UPDATE t SET v = v + 1", mode)
				return err
			}
			if err := update(); err != nil {
				t.Fatalf("the first goes by, but: %v", err)
			}
			fails(t, update(), "40001")
			wantStatus(t, c, 'I')
			mustExec(t, c, "BEGIN")
			mustExec(t, c, "SAVEPOINT a")
			fails(t, update(), "40001")
			wantStatus(t, c, 'E')
			mustExec(t, c, "ROLLBACK TO SAVEPOINT a") // as in PostgreSQL
			mustExec(t, c, "COMMIT")
			if err := update(); err != nil {
				t.Fatal(err)
			}
			if fault.Fired() != 2 {
				t.Errorf("fired %d times", fault.Fired())
			}
		})
	}
}

func TestFaultCutsAtStatement(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for _, kind := range []Kind{CutBeforeCommit, CutAfterCommit} {
		c := f.conn(t)
		fault := f.Inject(Fault{Kind: kind, SQL: "INSERT INTO t"})
		mustExec(t, c, "BEGIN")
		if _, err := c.Exec(f.ctx, "INSERT INTO t VALUES (1)"); err == nil || sqlState(err) != "" {
			t.Errorf("got %v, want a cut connection", err)
		}
		if fault.Fired() != 1 {
			t.Error("the fault did not fire")
		}
		f.wantRows(t, 0) // the block dies with its session
	}
}

// TestFaultChoosesTransaction: a commit is chosen by what its transaction did.
func TestFaultChoosesTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	fault := f.Inject(Fault{Kind: Serialization, AtCommit: true, SQL: "values (2)"})
	run := func(sql string) error {
		mustExec(t, c, "BEGIN")
		mustExec(t, c, sql)
		_, err := c.Exec(f.ctx, "COMMIT")
		return err
	}
	if err := run("INSERT INTO t VALUES (1)"); err != nil {
		t.Error(err)
	}
	fails(t, run("INSERT INTO t VALUES (2)"), "40001")
	if err := run("INSERT INTO t VALUES (3)"); err != nil {
		t.Error(err)
	}
	if fault.Fired() != 1 {
		t.Errorf("fired %d times", fault.Fired())
	}
	f.wantRows(t, 2)
}

// TestCommitInFlight: the client has lost its connection, and the commit arrives later. In between, a
// client that looks sees nothing, and one that inserts the same key waits.
func TestCommitInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	fault := f.Inject(Fault{Kind: CutAfterCommit, AtCommit: true, Delay: time.Second})
	mustExec(t, c, "BEGIN")
	mustExec(t, c, "INSERT INTO t VALUES (1)")
	if _, err := c.Exec(f.ctx, "COMMIT"); err == nil {
		t.Fatal("no error")
	}
	if n := f.rows(t); n != 0 {
		t.Fatalf("%d rows while the commit is in flight, want 0", n)
	}
	_, err := f.past.Exec(f.ctx, "INSERT INTO t VALUES (1)") // waits for the commit
	fails(t, err, "23505")
	if fault.Fired() != 1 {
		t.Error("the fault did not fire")
	}
	f.wantRows(t, 1)
}

// TestTransactionLingers: the client has lost its connection, and its transaction stays open.
func TestTransactionLingers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	f.Inject(Fault{Kind: CutBeforeCommit, AtCommit: true, Delay: time.Second})
	mustExec(t, c, "BEGIN")
	mustExec(t, c, "INSERT INTO t VALUES (1)")
	if _, err := c.Exec(f.ctx, "COMMIT"); err == nil {
		t.Fatal("no error")
	}
	_, err := f.past.Exec(f.ctx, "SET lock_timeout = '1ms'; INSERT INTO t VALUES (1)")
	fails(t, err, "55P03")
	mustExec(t, f.past, "SET lock_timeout = 0; INSERT INTO t VALUES (1)") // waits for the end
	f.wantRows(t, 1)
}

func TestStall(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		fault Fault
		rows  int
		fails bool
	}{
		{"until the client leaves", Fault{Kind: Stall}, 0, true},
		{"the answer until the client leaves", Fault{Kind: Stall, Applied: true}, 1, true},
		{"for a time", Fault{Kind: Stall, Delay: time.Millisecond}, 1, false},
		{"the answer for a time", Fault{Kind: Stall, Applied: true, Delay: time.Millisecond}, 1, false},
		{"beyond the client's patience", Fault{Kind: Stall, Delay: 2 * time.Second}, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, block := range []bool{false, true} {
				f := newFixture(t, Options{})
				c := f.conn(t)
				if block {
					mustExec(t, c, "BEGIN")
					mustExec(t, c, "INSERT INTO t VALUES (1)")
				}
				test.fault.AtCommit = true
				fault := f.Inject(test.fault)
				ctx, stop := f.ctx, func() {}
				if test.fails {
					ctx, stop = context.WithTimeout(f.ctx, 500*time.Millisecond)
				}
				sql := "INSERT INTO t VALUES (1)"
				if block {
					sql = "COMMIT"
				}
				_, err := c.Exec(ctx, sql)
				stop()
				if test.fails != (err != nil) {
					t.Errorf("block %v: got %v", block, err)
				}
				f.eventually(t, func() bool { return fault.Fired() == 1 })
				if test.rows == 1 {
					f.eventually(t, func() bool { return f.rows(t) == 1 })
				} else {
					f.eventually(t, func() bool { return f.sessions() == 0 })
					f.wantRows(t, 0)
				}
			}
		})
	}
}

func (f *fixture) eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		if f.ctx.Err() != nil {
			t.Fatal("it does not come true")
		}
		time.Sleep(time.Millisecond)
	}
}

// sessions counts the connections of the shim, on both sides.
func (f *fixture) sessions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

func TestFaultsAfterRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	for _, sql := range []string{"BEGIN", "SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (1)", "RELEASE SAVEPOINT cockroach_restart"} {
		mustExec(t, c, sql)
	}
	atCommit := f.Inject(Fault{Kind: Serialization, AtCommit: true})
	atText := f.Inject(Fault{Kind: CutBeforeCommit, SQL: "commit"})
	if _, err := c.Exec(f.ctx, "COMMIT"); err == nil {
		t.Error("no error at COMMIT")
	}
	if atCommit.Fired() != 0 || atText.Fired() != 1 {
		t.Errorf("fired %d and %d times, want 0, because RELEASE was the commit, and 1", atCommit.Fired(), atText.Fired())
	}
	f.wantRows(t, 1)
}

func TestFaultsAtRelease(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fault Fault
		code  string
		rows  int
	}{
		{Fault{Kind: Serialization}, "40001", 0},
		{Fault{Kind: Ambiguous}, "40003", 0},
		{Fault{Kind: Ambiguous, Applied: true}, "40003", 1},
		{Fault{Kind: CutBeforeCommit}, "", 0},
		{Fault{Kind: CutAfterCommit}, "", 1},
	} {
		f := newFixture(t, Options{})
		c := f.conn(t)
		test.fault.AtCommit = true
		fault := f.Inject(test.fault)
		for _, sql := range []string{"BEGIN", "SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (1)"} {
			mustExec(t, c, sql)
		}
		_, err := c.Exec(f.ctx, "RELEASE SAVEPOINT cockroach_restart")
		if err == nil || sqlState(err) != test.code || fault.Fired() != 1 {
			t.Fatalf("%+v: got %v, fired %d times", test.fault, err, fault.Fired())
		}
		f.wantRows(t, test.rows)
		if test.code == "" {
			continue
		}
		wantStatus(t, c, 'E')
		_, err = c.Exec(f.ctx, "SELECT 1")
		fails(t, err, "25P02")
		mustExec(t, c, "ROLLBACK TO SAVEPOINT cockroach_restart")
		wantStatus(t, c, 'T')
		mustExec(t, c, "INSERT INTO t VALUES (2)")
		mustExec(t, c, "RELEASE SAVEPOINT cockroach_restart")
		mustExec(t, c, "COMMIT")
		wantStatus(t, c, 'I')
		f.wantRows(t, test.rows+1)
	}
}

// TestFaultsAreSharedOut: sessions that reach faults at the same time meet each of them once.
func TestFaultsAreSharedOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Plain: true})
	fault := f.Inject(Fault{Kind: Serialization, AtCommit: true, Times: 20})
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for worker := range 4 {
		c := f.conn(t)
		wg.Go(func() {
			for i := range 25 {
				if _, err := c.Exec(f.ctx, "INSERT INTO t VALUES ($1)", 100*worker+i); err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if failed != 20 || fault.Fired() != 20 || f.Fired() != 20 {
		t.Errorf("%d calls failed, %d and %d faults fired, want 20", failed, fault.Fired(), f.Fired())
	}
	f.wantRows(t, 80)
}

func TestFaultsTakenBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	f.Inject(Fault{Kind: Serialization, AtCommit: true}).Remove()
	f.Inject(Fault{Kind: Serialization, SQL: "INSERT"})
	f.ClearFaults()
	mustExec(t, c, "INSERT INTO t VALUES (1)")
	if f.Fired() != 0 {
		t.Errorf("%d faults fired", f.Fired())
	}
	// A fault whose statement is never reached has not happened, and stays.
	fault := f.Inject(Fault{Kind: CutAfterCommit, SQL: "VALUES (2)"})
	fails(t, inPipeline(f.ctx, c, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)"), "23505")
	fails(t, inPipeline(f.ctx, c, "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (1)"), "23505")
	if fault.Fired() != 0 {
		t.Errorf("fired %d times", fault.Fired())
	}
	if _, err := c.Exec(f.ctx, "INSERT INTO t VALUES (2)"); err == nil || fault.Fired() != 1 {
		t.Errorf("got %v, fired %d times", err, fault.Fired())
	}
	f.wantRows(t, 2)
}

// TestCutIsOver: when the client sees the cut, the server has rolled back, so that what a test does
// next never meets the old transaction's locks by chance.
func TestCutIsOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	mustExec(t, f.past, "SET lock_timeout = '1ms'")
	f.Inject(Fault{Kind: CutBeforeCommit, AtCommit: true, Times: 20})
	for range 20 {
		c := f.conn(t)
		mustExec(t, c, "BEGIN")
		mustExec(t, c, "INSERT INTO t VALUES (1)")
		if _, err := c.Exec(f.ctx, "COMMIT"); err == nil {
			t.Fatal("no error")
		}
		mustExec(t, f.past, "BEGIN; INSERT INTO t VALUES (1); ROLLBACK")
	}
	if f.Fired() != 20 {
		t.Errorf("%d faults fired", f.Fired())
	}
}
