package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
)

// rig is a store of transactional mode on a pool of its own.
type rig struct {
	*base
	t    testing.TB
	ctx  context.Context
	pool *pgxpool.Pool
	wire *wire
	s    *Store[pgx.Tx]
}

func newRig(t testing.TB, url string, s setup) *rig {
	t.Helper()
	b := newBase(t, url)
	b.exec("CREATE TABLE " + b.effects() + " (name text)")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if s.size == 0 {
		s.size = 8
	}
	if s.mode == 0 {
		s.mode = pgx.QueryExecModeCacheStatement
	}
	pool, w := newWired(t, b.url, s)
	return &rig{base: b, t: t, ctx: ctx, pool: pool, wire: w, s: New(PgxDB{Pool: pool}, b.config())}
}

func request(key string) backend.ReserveRequest {
	r := backend.ReserveRequest{TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun, Wait: 20 * time.Second}
	r.ID = backend.ID{Tenant: "acme", Operation: "billing.invoice", Key: key}
	_, _ = rand.Read(r.Owner[:])
	return r
}

func completed(body string) backend.Completion {
	return backend.Completion{State: backend.Completed, Body: []byte(body), ReplayFor: time.Hour, KnownFor: time.Hour}
}

// effect writes a row and completes.
func (g *rig) effect(name string) backend.Work[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
		_, err := tx.Exec(ctx, "INSERT INTO "+g.effects()+" (name) VALUES ($1)", name)
		return completed("answer"), err
	}
}

func (g *rig) want(n int, name string) {
	g.t.Helper()
	if got := g.count(g.t, name); got != n {
		g.t.Fatalf("%d effects of %s are committed; want %d", got, name, n)
	}
}

// idle insists that no connection is lent and that none is left in a transaction.
func (g *rig) idle(after string) {
	g.t.Helper()
	// The pool closes a broken connection in the background.
	for end := time.Now().Add(10 * time.Second); g.pool.Stat().AcquiredConns() != 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := g.pool.Stat().AcquiredConns(); n != 0 {
		g.t.Fatalf("after %s %d connections are still lent", after, n)
	}
	if n := g.ask("SELECT count(*) FROM pg_stat_activity WHERE " + mine + " AND state LIKE 'idle in%'"); n != "0" {
		g.t.Fatalf("after %s %s sessions are idle in a transaction", after, n)
	}
}

// Two round trips beside fn's own, and one for a replay.
func TestTransactRoundTrips(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1})
	run := func(s *Store[pgx.Tx], key string, work backend.Work[pgx.Tx]) func() {
		return func() {
			t.Helper()
			if _, err := s.Transact(g.ctx, request(key), work); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) {
		return completed("answer"), nil
	}
	undone := func(ctx context.Context, tx pgx.Tx, r backend.Reservation) (backend.Completion, error) {
		c, err := g.effect("undone")(ctx, tx, r)
		c.State, c.Undo = backend.Failed, true
		return c, err
	}
	other := New(PgxDB{Pool: g.pool}, g.config())
	for i := range 2 { // the first use of a statement on a connection prepares it
		run(g.s, fmt.Sprint("warm-", i), g.effect("warm"))()
		run(g.s, fmt.Sprint("warm-", i), nil)()
		run(other, fmt.Sprint("warm-", i), nil)()
		run(g.s, fmt.Sprint("undone-", i), undone)()
	}
	other = New(PgxDB{Pool: g.pool}, g.config())
	for _, c := range []struct {
		what string
		want int64
		do   func()
	}{
		{"an empty function", 2, run(g.s, "a", nothing)},
		{"one statement", 3, run(g.s, "b", g.effect("b"))},
		{"a permanent failure", 3, run(g.s, "c", undone)},
		{"a replay", 1, run(g.s, "b", nil)},
		{"a duplicate that this process has not seen before", 2, run(other, "b", nil)},
		{"its replay", 1, run(other, "b", nil)},
	} {
		if n := g.wire.count(t, c.do); n != c.want {
			t.Errorf("%s: %d round trips; want %d", c.what, n, c.want)
		}
	}
}

// What idem sets for its own waits is not what fn's statements, or the next user of
// the connection, run under.
func TestSettingsDoNotLeak(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			g := newRig(t, "", setup{size: 1, mode: mode})
			show := func(q interface {
				QueryRow(context.Context, string, ...any) pgx.Row
			}) (v string) {
				t.Helper()
				if err := q.QueryRow(g.ctx, "SELECT current_setting('lock_timeout')").Scan(&v); err != nil {
					t.Fatal(err)
				}
				return v
			}
			if _, err := g.pool.Exec(g.ctx, "SET lock_timeout = '7s'"); err != nil {
				t.Fatal(err)
			}
			inside := func(want string) backend.Work[pgx.Tx] {
				return func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
					if got := show(tx); got != want {
						t.Errorf("the function runs with lock_timeout %s; want %s", got, want)
					}
					return completed("answer"), nil
				}
			}
			open := request("open")
			if _, err := g.s.Reserve(g.ctx, open); err != nil {
				t.Fatal(err)
			}
			if err := g.s.Release(g.ctx, open.Ref); err != nil {
				t.Fatal(err)
			}
			rec, err := g.s.Get(g.ctx, open.ID)
			if err != nil {
				t.Fatal(err)
			}
			over := request("open")
			over.TakeOver = rec.Fence
			for _, r := range []backend.ReserveRequest{request("a"), over, request("a")} {
				if _, err := g.s.Transact(g.ctx, r, inside("7s")); err != nil {
					t.Fatal(err)
				}
				if got := show(g.pool); got != "7s" {
					t.Fatalf("afterwards the session has lock_timeout %s", got)
				}
			}
			tx, err := g.pool.Begin(g.ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(g.ctx)
			if _, err := tx.Exec(g.ctx, "SET LOCAL lock_timeout = '3s'"); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"b", "a", "b"} { // new, committed, joined before
				if _, err := g.s.Join(g.ctx, tx, request(key), inside("3s")); err != nil {
					t.Fatal(err)
				}
				if got := show(tx); got != "3s" {
					t.Fatalf("after Join the caller's transaction has lock_timeout %s", got)
				}
			}
			if err := tx.Commit(g.ctx); err != nil {
				t.Fatal(err)
			}
			if got := show(g.pool); got != "7s" {
				t.Fatalf("after the caller's commit the session has lock_timeout %s", got)
			}
		})
	}
}

// C-R20: duplicates wait without a connection.
func TestStormDoesNotEatThePool(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{30 * time.Second, 0} {
		t.Run(wait.String(), func(t *testing.T) {
			g := newRig(t, "", setup{size: 2})
			inside, release := make(chan struct{}), make(chan struct{})
			var ran, busy, replayed atomic.Int64
			var wg sync.WaitGroup
			call := func() {
				r := request("storm")
				r.Wait = wait
				res, err := g.s.Transact(g.ctx, r, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
					ran.Add(1)
					close(inside)
					<-release
					return g.effect("storm")(ctx, tx, res)
				})
				switch {
				case err != nil:
					t.Error(err)
				case res.Outcome == backend.Busy:
					busy.Add(1)
				case res.Outcome == backend.Existing && string(res.Record.Body) == "answer":
					replayed.Add(1)
				}
			}
			wg.Go(call)
			<-inside
			for range 63 {
				wg.Go(call)
			}
			if wait == 0 { // they give up without a look at the work's end
				for busy.Load() != 63 {
					if g.ctx.Err() != nil {
						t.Fatalf("%d of 63 that fail fast were answered", busy.Load())
					}
					runtime.Gosched()
					time.Sleep(time.Millisecond)
				}
			}
			// While all of them wait, one of the two connections is free.
			for i := range 20 {
				if _, err := g.s.Transact(g.ctx, request(fmt.Sprint("other-", i)), g.effect("other")); err != nil {
					t.Fatal(err)
				}
			}
			close(release)
			wg.Wait()
			if ran.Load() != 1 || wait > 0 && replayed.Load() != 63 {
				t.Fatalf("the function ran %d times, %d were busy, %d got the result", ran.Load(), busy.Load(), replayed.Load())
			}
			g.want(1, "storm")
			g.want(20, "other")
			g.idle("the storm")
		})
	}
}

// A roll-back hands the key to the next in line, whatever ended the first.
func TestWorkThatFailsGivesEverythingBack(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1})
	boom := errors.New("boom")
	for name, end := range map[string]func() error{
		"an error": func() error { return boom },
		"a panic":  func() error { panic(boom) },
		"Goexit":   func() error { runtime.Goexit(); return nil },
	} {
		done := make(chan any)
		go func() {
			defer func() { done <- recover() }()
			_, err := g.s.Transact(g.ctx, request("k"), func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
				if _, err := g.effect(name)(ctx, tx, res); err != nil {
					t.Error(err)
				}
				return completed("x"), end()
			})
			if err != boom {
				t.Errorf("after %s Transact returned %v", name, err)
			}
		}()
		if v := <-done; name == "a panic" && v != any(boom) {
			t.Errorf("the panic came up as %v", v)
		}
		g.want(0, name)
		g.idle(name)
	}
	if res, err := g.s.Transact(g.ctx, request("k"), g.effect("k")); err != nil || res.Outcome != backend.Acquired {
		t.Fatalf("afterwards: %v, %v", res.Outcome, err)
	}
}

// R19: what a function does to its transaction.
func TestTransactionIsNotTheFunctionsToEnd(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	sql := func(text string, swallow bool, c backend.Completion) backend.Work[pgx.Tx] {
		return func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
			if _, err := g.effect(res.Record.ID.Key)(ctx, tx, res); err != nil {
				return c, err
			}
			_, err := tx.Exec(ctx, text)
			if swallow {
				err = nil
			}
			return c, err
		}
	}
	undo := completed("no")
	undo.State, undo.Undo = backend.Failed, true
	for _, c := range []struct {
		key, text string
		c         backend.Completion
		want      error
		effects   int
		state     backend.State // 0: none
	}{
		{"commit", "COMMIT", completed("x"), backend.ErrOutcomeUnknown, 1, backend.Uncertain},
		{"commit and begin", "COMMIT; BEGIN", completed("x"), backend.ErrOutcomeUnknown, 1, backend.Uncertain},
		{"commit and chain", "COMMIT AND CHAIN", completed("x"), backend.ErrOutcomeUnknown, 1, backend.Uncertain},
		{"rollback", "ROLLBACK", completed("x"), backend.ErrOutcomeUnknown, 0, 0},
		{"rollback and begin", "ROLLBACK; BEGIN", completed("x"), backend.ErrOutcomeUnknown, 0, 0},
		{"prepare", "PREPARE TRANSACTION 'x'", completed("x"), backend.ErrTransactionEnded, 0, 0}, // refused by this server; see preparedTransaction
		{"commit and begin and undo", "COMMIT; BEGIN", undo, backend.ErrTransactionEnded, 1, backend.Uncertain},
		{"back to the savepoint", "ROLLBACK TO SAVEPOINT idem_fn", completed("x"), nil, 0, backend.Completed}, // its own effects, and no more
		{"release of the savepoint", "RELEASE SAVEPOINT idem_fn", completed("x"), nil, 1, backend.Completed},
		{"release and undo", "RELEASE SAVEPOINT idem_fn", undo, errEnded, 0, 0},
		{"a savepoint of the same name", "SAVEPOINT idem_fn", completed("x"), nil, 1, backend.Completed},
		{"a savepoint of its own left open", "SAVEPOINT mine", completed("x"), nil, 1, backend.Completed},
		{"a savepoint of its own and undo", "SAVEPOINT mine", undo, nil, 0, backend.Failed},
		{"swallowed error", "SELECT 1/0", completed("x"), errSwallowed, 0, 0},
		{"swallowed error and undo", "SELECT 1/0", undo, nil, 0, backend.Failed},
		{"fine", "SELECT 1", completed("x"), nil, 1, backend.Completed},
	} {
		t.Run(c.key, func(t *testing.T) {
			g.t = t
			_, err := g.s.Transact(g.ctx, request(c.key), sql(c.text, true, c.c))
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Fatalf("Transact: %v; want %v", err, c.want)
			}
			g.want(c.effects, c.key)
			rec, err := g.s.Get(g.ctx, request(c.key).ID)
			if rec.State != c.state || (c.state == 0) != errors.Is(err, backend.ErrNotFound) {
				t.Fatalf("the record is %v (%v); want %v", rec.State, err, c.state)
			}
			g.idle(c.key)
		})
	}
	t.Run("through the type", func(t *testing.T) {
		var kept pgx.Tx
		_, err := g.s.Transact(g.ctx, request("typed"), func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
			kept = tx
			if err := tx.Commit(ctx); err == nil {
				t.Error("Commit was not refused")
			}
			if err := tx.Rollback(ctx); err == nil {
				t.Error("Rollback was not refused")
			}
			for i, keep := range []bool{true, false} {
				nested, err := tx.Begin(ctx)
				if err != nil {
					return backend.Completion{}, err
				}
				if _, err := g.effect("nested")(ctx, nested, res); err != nil {
					return backend.Completion{}, err
				}
				end := nested.Rollback
				if keep {
					end = nested.Commit
				}
				if err := end(ctx); err != nil {
					t.Errorf("nested transaction %d: %v", i, err)
				}
			}
			return completed("x"), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		g.t = t
		g.want(1, "nested")
		if _, err := kept.Exec(g.ctx, "SELECT 1"); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a transaction used after its end: %v", err)
		}
		if err := kept.QueryRow(g.ctx, "SELECT 1").Scan(new(int)); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a transaction used after its end: %v", err)
		}
	})
}

// The server's wish for another try is granted, with the function run again.
func TestSerializationFailuresAreRetried(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{isolation: "repeatable read"})
	counter := g.names.Prefix + "counter"
	g.exec("CREATE TABLE " + counter + " AS SELECT 0 AS n")
	const callers, each = 8, 5
	var wg sync.WaitGroup
	var ran atomic.Int64
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				for { // bounded tries are the store's; who runs out of them calls again
					_, err := g.s.Transact(g.ctx, request(fmt.Sprint(c, "-", i)), func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
						ran.Add(1)
						_, err := tx.Exec(ctx, "UPDATE "+counter+" SET n = n + 1")
						return completed("x"), err
					})
					var pg *pgconn.PgError
					if err == nil {
						break
					}
					if !errors.As(err, &pg) || pg.Code != codeSerialization {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if n := g.ask("SELECT n FROM " + counter); n != fmt.Sprint(callers*each) {
		t.Errorf("the counter is %s after %d calls, %d runs", n, callers*each, ran.Load())
	}
	if ran.Load() == callers*each {
		t.Error("no run had to be repeated: nothing was tested")
	}
	g.idle("the race")
}
