package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// C03: a commit that times out has often committed. The answer is the truth, and the
// function runs again only where the first transaction is certainly undone.
func TestC03LostCommit(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  cut
		runs int64
	}{{"before", cutBefore, 2}, {"after", cutAfter, 1}, {"silence", cutStall, 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, "", setup{size: 1})
			ctx, cancel := context.WithTimeout(g.ctx, 500*time.Millisecond)
			if c.cut == cutBefore {
				ctx, cancel = context.WithCancel(g.ctx) // it has to live for the second run
			}
			defer cancel()
			var ran atomic.Int64
			work := func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
				if ran.Add(1) == 1 {
					g.wire.next(c.cut)
				}
				return g.effect("k")(context.WithoutCancel(ctx), tx, res)
			}
			r := request("k")
			res, err := g.s.Transact(ctx, r, work)
			if err != nil || res.Outcome != backend.Acquired || res.Record.Owner != r.Owner || string(res.Record.Body) != "answer" {
				t.Fatalf("Transact: %v, %v", res.Outcome, err)
			}
			if ran.Load() != c.runs {
				t.Errorf("the function ran %d times; want %d", ran.Load(), c.runs)
			}
			g.want(1, "k")
			again, err := g.s.Transact(g.ctx, request("k"), work)
			if err != nil || again.Outcome != backend.Existing || string(again.Record.Body) != "answer" {
				t.Fatalf("the next call: %v, %v", again.Outcome, err)
			}
			g.want(1, "k")
			g.idle("a lost commit")
		})
	}
}

// The same for Finish.
func TestLostCommitOfFinish(t *testing.T) {
	t.Parallel()
	for _, c := range []cut{cutBefore, cutAfter} {
		g := newRig(t, "", setup{size: 1})
		r := request("k")
		if _, err := g.s.Reserve(g.ctx, r); err != nil {
			t.Fatal(err)
		}
		first := true
		rec, err := g.s.Finish(g.ctx, r.Ref, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
			if first {
				g.wire.next(c)
			}
			first = false
			return g.effect("k")(ctx, tx, res)
		})
		if err != nil || rec.State != backend.Completed {
			t.Fatalf("Finish: %v, %v", rec.State, err)
		}
		g.want(1, "k")
		g.idle("a lost commit")
	}
}

// A store that stays away leaves the question open, within the limit; when it is
// back, the same call learns the truth.
func TestUnreachableStoreLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	pg := testdb.StartPostgres(t, testdb.PGOptions{Settings: map[string]string{"max_prepared_transactions": "2"}})
	g := newRig(t, pg.Database(t), setup{size: 2})
	preparedTransaction(t, g)
	r := request("k")
	began := time.Now()
	_, err := g.s.Transact(g.ctx, r, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
		c, err := g.effect("k")(ctx, tx, res)
		pg.Kill(t)
		return c, err
	})
	if !errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Fatalf("Transact: %v; want ErrOutcomeUnknown", err)
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, err := g.s.Transact(g.ctx, request("other"), g.effect("other")); err == nil || errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("a call that cannot begin: %v; want a definite error", err)
	}
	pg.Restart(t)
	for g.ctx.Err() == nil {
		if _, err = g.s.Transact(g.ctx, request("k"), g.effect("k")); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	g.admin.Reset()
	g.want(1, "k")
}

// preparedTransaction: a function that has its transaction prepared puts it out of
// idem's hands. That is no definite failure, and what is committed later is no licence
// to run again (R19).
func preparedTransaction(t *testing.T, g *rig) {
	t.Helper()
	_, err := g.s.Transact(g.ctx, request("prepared"), func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
		if _, err := g.effect("prepared")(ctx, tx, res); err != nil {
			t.Error(err)
		}
		_, err := tx.Exec(ctx, "PREPARE TRANSACTION 'idem'")
		return completed("x"), err
	})
	if !errors.Is(err, backend.ErrOutcomeUnknown) || !errors.Is(err, backend.ErrTransactionEnded) {
		t.Errorf("Transact: %v; want an unknown outcome", err)
	}
	g.exec("COMMIT PREPARED 'idem'")
	if res, err := g.s.Transact(g.ctx, request("prepared"), g.effect("prepared")); err != nil || res.Outcome != backend.Existing || res.Record.State != backend.Uncertain {
		t.Errorf("the next call: %v, %v, %v; want it uncertain", res.Outcome, res.Record.State, err)
	}
	g.want(1, "prepared")
}

// C08: an insert that conflicts, and a row that is not to be seen.
func TestC08ConflictWithoutARow(t *testing.T) {
	for _, iso := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(iso, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, "", setup{size: 6, isolation: iso})
			// Another process: a store of its own has a gate of its own.
			other := New(PgxDB{Pool: g.pool}, g.config())
			hold := func(key string, end error) (release func()) {
				inside, open, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
				go func() {
					defer close(over)
					_, err := other.Transact(g.ctx, request(key), func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
						close(inside)
						<-open
						c, err := g.effect(key)(ctx, tx, res)
						return c, errors.Join(err, end)
					})
					if end == nil && err != nil {
						t.Error(err)
					}
				}()
				<-inside
				return func() { close(open); <-over }
			}
			blocked := func() {
				t.Helper()
				for g.ask("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND pid IN (SELECT pid FROM pg_stat_activity WHERE "+mine+")") == "0" {
					if g.ctx.Err() != nil {
						t.Fatal("nobody came to wait in the database")
					}
				}
			}
			for _, end := range []error{nil, errors.New("roll back")} {
				key := fmt.Sprint("a-", end)
				release := hold(key, end)
				got := make(chan error, 1)
				go func() {
					res, err := g.s.Transact(g.ctx, request(key), g.effect(key))
					want := backend.Existing
					if end != nil {
						want = backend.Acquired
					}
					if err == nil && (res.Outcome != want || string(res.Record.Body) != "answer") {
						err = fmt.Errorf("answered %v, want %v", res.Outcome, want)
					}
					got <- err
				}()
				blocked()
				release()
				if err := <-got; err != nil {
					t.Errorf("the first ended with %v: %v", end, err)
				}
				g.want(1, key)
			}
			release := hold("c", nil)
			ctx, cancel := context.WithTimeout(g.ctx, 500*time.Millisecond)
			began := time.Now()
			res, err := g.s.Transact(ctx, request("c"), g.effect("c"))
			cancel()
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) && res.Outcome != backend.Busy || took > 20*time.Second {
				t.Errorf("a waiter whose context ends: %v, %v after %v", res.Outcome, err, took)
			}
			release()
			if res, err := g.s.Transact(g.ctx, request("c"), g.effect("c")); err != nil || res.Outcome != backend.Existing {
				t.Errorf("afterwards: %v, %v", res.Outcome, err)
			}
			// Many callers, many keys, and a sweeper that takes rows away in between.
			seed := uint64(time.Now().UnixNano())
			rng := rand.New(rand.NewPCG(seed, 8))
			const keys, callers = 40, 200
			var wg sync.WaitGroup
			var acquired [keys]atomic.Int64
			for range callers {
				k := rng.IntN(keys)
				s := []*Store[pgx.Tx]{g.s, other}[rng.IntN(2)]
				wg.Go(func() {
					key := fmt.Sprint("m-", k)
					res, err := s.Transact(g.ctx, request(key), g.effect(key))
					if err != nil || string(res.Record.Body) != "answer" {
						t.Errorf("seed %d: %v, %v", seed, res.Outcome, err)
					}
					if res.Outcome == backend.Acquired {
						acquired[k].Add(1)
					}
				})
			}
			wg.Wait()
			for k := range acquired {
				if n := acquired[k].Load(); n > 1 || g.count(t, fmt.Sprint("m-", k)) != int(n) {
					t.Errorf("seed %d: key %d was acquired %d times and has %d effects", seed, k, n, g.count(t, fmt.Sprint("m-", k)))
				}
			}
			g.idle("all of it")
		})
	}
}
