package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/goidem/idem/backend"
)

var _ backend.Transactional[*pgx.Batch] = (*Queued)(nil)

func (g *rig) queued() *Queued { return NewQueued(g.s, PgxDB{Pool: g.pool}) }

// queue queues one effect.
func (g *rig) queue(name string, c backend.Completion) backend.Work[*pgx.Batch] {
	return func(_ context.Context, b *pgx.Batch, _ backend.Reservation) (backend.Completion, error) {
		b.Queue("INSERT INTO "+g.effects()+" (name) VALUES ($1)", name)
		return c, nil
	}
}

func TestQueuedIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			g := newRig(t, "", setup{size: 1, mode: mode})
			q := g.queued()
			call := func(key string, want backend.Outcome) func() {
				return func() {
					t.Helper()
					res, err := q.Transact(g.ctx, request(key), g.queue(key, completed("answer")))
					if err != nil || res.Outcome != want || string(res.Record.Body) != "answer" || res.Record.State != backend.Completed {
						t.Fatalf("%s: %v, %v, %v", key, res.Outcome, res.Record.State, err)
					}
					if rec, err := g.s.Get(g.ctx, res.Record.ID); err != nil || rec.Fence != res.Record.Fence || !rec.CompletedAt.Equal(res.Record.CompletedAt) || !rec.KnownUntil.Equal(res.Record.KnownUntil) {
						t.Fatalf("%s: the stored record is another: %v", key, err)
					}
				}
			}
			call("warm", backend.Acquired)()
			call("warm", backend.Existing)()
			gets := int64(1) // of call itself
			if n := g.wire.count(t, call("k", backend.Acquired)); n != 1+gets {
				t.Errorf("an Execute takes %d round trips; want 1", n-gets)
			}
			if n := g.wire.count(t, call("k", backend.Existing)); n != 1+gets {
				t.Errorf("a replay takes %d round trips; want 1", n-gets)
			}
			g.want(1, "k")
			// A replay that this process has not seen before: one trip with the error that
			// keeps the effects out, and a look. Before the next statement after an error,
			// pgx clears its statement cache.
			want := int64(2)
			if mode == pgx.QueryExecModeCacheStatement {
				want = 3
			}
			other := NewQueued(New(PgxDB{Pool: g.pool}, g.config()), PgxDB{Pool: g.pool})
			var res backend.Reservation
			var err error
			if n := g.wire.count(t, func() {
				res, err = other.Transact(g.ctx, request("k"), g.queue("k", completed("other")))
			}); n != want {
				t.Errorf("a duplicate takes %d round trips; want %d", n, want)
			}
			if err != nil || res.Outcome != backend.Existing || string(res.Record.Body) != "answer" {
				t.Fatalf("a duplicate: %v, %v", res.Outcome, err)
			}
			g.want(1, "k")
			g.idle("queued calls")
		})
	}
}

func TestQueuedOutcomes(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	q := g.queued()
	one := g.names.Prefix + "one"
	g.exec("CREATE TABLE " + one + " (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
	boom := errors.New("boom")
	failed := backend.Completion{State: backend.Failed, Body: []byte("declined"), ReplayFor: time.Hour, KnownFor: time.Hour, Undo: true}
	stored := func(key string) backend.State {
		t.Helper()
		rec, err := g.s.Get(g.ctx, request(key).ID)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		return rec.State
	}
	for _, c := range []struct {
		key     string
		c       backend.Completion
		more    func(b *pgx.Batch) error
		code    string
		want    error
		effects int
		state   backend.State
	}{
		{key: "fine", c: completed("x"), effects: 1, state: backend.Completed},
		{key: "failed", c: failed, state: backend.Failed},
		{key: "uncertain", c: backend.Completion{State: backend.Uncertain, Undo: true}, state: backend.Uncertain},
		{key: "error", c: completed("x"), more: func(*pgx.Batch) error { return boom }, want: boom},
		{key: "invalid", c: backend.Completion{State: backend.Completed}, want: backend.ErrInvalidRequest},
		{key: "commit", c: completed("x"), more: func(b *pgx.Batch) error { b.Queue(" \n commit;"); return nil }, want: backend.ErrInvalidRequest},
		{key: "statement fails", c: completed("x"), more: func(b *pgx.Batch) error { b.Queue("SELECT 1/0"); return nil }, code: "22012"},
		{key: "statement is wrong", c: completed("x"), more: func(b *pgx.Batch) error { b.Queue("SELEC"); return nil }, code: "42601"},
		{key: "commit fails", c: completed("x"), more: func(b *pgx.Batch) error { b.Queue("INSERT INTO " + one + " VALUES (1), (1)"); return nil }, code: "23505"},
		{key: "callback", c: completed("x"), more: func(b *pgx.Batch) error {
			b.Queue("SELECT 1").Exec(func(pgconn.CommandTag) error { return boom })
			return nil
		}, want: boom, effects: 1, state: backend.Completed},
	} {
		t.Run(c.key, func(t *testing.T) {
			g.t = t
			var rows int64
			_, err := q.Transact(g.ctx, request(c.key), func(_ context.Context, b *pgx.Batch, _ backend.Reservation) (backend.Completion, error) {
				b.Queue("INSERT INTO "+g.effects()+" (name) VALUES ($1)", c.key).Exec(func(tag pgconn.CommandTag) error {
					rows = tag.RowsAffected()
					return nil
				})
				if c.more != nil {
					return c.c, c.more(b)
				}
				return c.c, nil
			})
			var pg *pgconn.PgError
			switch {
			case c.code != "" && (!errors.As(err, &pg) || pg.Code != c.code):
				t.Errorf("Transact: %v; want SQLSTATE %s as the function would see it", err, c.code)
			case c.want != nil && !errors.Is(err, c.want), c.code == "" && c.want == nil && err != nil:
				t.Errorf("Transact: %v; want %v", err, c.want)
			}
			if c.key == "callback" && !errors.Is(err, backend.ErrOutcomeUnknown) {
				t.Errorf("a callback that failed behind the commit: %v; want ErrOutcomeUnknown", err)
			}
			g.want(c.effects, c.key)
			if got := stored(c.key); got != c.state {
				t.Errorf("the record is %v; want %v", got, c.state)
			}
			if c.key == "fine" && rows != 1 {
				t.Error("the callback of a queued statement did not run")
			}
			g.idle(c.key)
		})
	}
	g.t = t
	t.Run("takeover", func(t *testing.T) {
		r := request("open")
		if _, err := g.s.Reserve(g.ctx, r); err != nil {
			t.Fatal(err)
		}
		if res, err := q.Transact(g.ctx, request("open"), g.queue("open", completed("x"))); err != nil || res.Outcome != backend.Existing {
			t.Fatalf("beside a lease: %v, %v", res.Outcome, err)
		}
		if err := g.s.Release(g.ctx, r.Ref); err != nil {
			t.Fatal(err)
		}
		rec, err := g.s.Get(g.ctx, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		over := request("open")
		over.TakeOver = rec.Fence
		if res, err := q.Transact(g.ctx, over, g.queue("open", completed("x"))); err != nil || res.Outcome != backend.Acquired {
			t.Fatalf("over an open record: %v, %v", res.Outcome, err)
		}
		g.want(1, "open")
	})
	t.Run("finish", func(t *testing.T) {
		r := request("finish")
		if _, err := g.s.Reserve(g.ctx, r); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if rec, err := q.Finish(g.ctx, r.Ref, g.queue("finish", completed("x"))); err != nil || rec.State != backend.Completed {
				t.Fatalf("Finish: %v, %v", rec.State, err)
			}
		}
		g.want(1, "finish")
	})
	if _, err := q.Join(g.ctx, nil, request("join"), nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Join: %v", err)
	}
}

func TestQueuedLostCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []cut{cutBefore, cutAfter} {
		g := newRig(t, "", setup{size: 1})
		q := g.queued()
		if _, err := q.Transact(g.ctx, request("warm"), g.queue("warm", completed("x"))); err != nil {
			t.Fatal(err)
		}
		r := request("k")
		res, err := q.Transact(g.ctx, r, func(ctx context.Context, b *pgx.Batch, res backend.Reservation) (backend.Completion, error) {
			g.wire.mu.Lock()
			g.wire.any, g.wire.cut = true, c
			g.wire.mu.Unlock()
			return g.queue("k", completed("x"))(ctx, b, res)
		})
		if err != nil || res.Outcome != backend.Acquired || res.Record.Owner != r.Owner {
			t.Fatalf("cut %d: %v, %v", c, res.Outcome, err)
		}
		g.want(1, "k")
		g.idle("a lost commit")
	}
}

func TestQueuedRace(t *testing.T) {
	t.Parallel()
	for _, iso := range []string{"read committed", "serializable"} {
		g := newRig(t, "", setup{size: 6, isolation: iso})
		stores := []*Queued{g.queued(), NewQueued(New(PgxDB{Pool: g.pool}, g.config()), PgxDB{Pool: g.pool})}
		const keys, callers = 10, 120
		var acquired atomic.Int64
		var wg sync.WaitGroup
		for i := range callers {
			key := fmt.Sprint("r-", i%keys)
			wg.Go(func() {
				res, err := stores[i%2].Transact(g.ctx, request(key), g.queue(key, completed("answer")))
				if err != nil || string(res.Record.Body) != "answer" {
					t.Errorf("%s: %v, %v", key, res.Outcome, err)
				}
				if res.Outcome == backend.Acquired {
					acquired.Add(1)
				}
			})
		}
		wg.Wait()
		if acquired.Load() != keys {
			t.Errorf("%d callers acquired %d keys", acquired.Load(), keys)
		}
		for i := range keys {
			g.want(1, fmt.Sprint("r-", i))
		}
		g.idle("the race")
	}
}

// A queued call behind an open transaction heeds its context and its wait.
func TestQueuedWaits(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 3})
	q := g.queued()
	tx := g.begin("")
	if _, err := g.s.Join(g.ctx, tx, request("k"), g.effect("k")); err != nil {
		t.Fatal(err)
	}
	fast := request("k")
	fast.Wait = 0
	if res, err := q.Transact(g.ctx, fast, g.queue("k", completed("x"))); err != nil || res.Outcome != backend.Busy {
		t.Fatalf("fail fast: %v, %v", res.Outcome, err)
	}
	ctx, cancel := context.WithTimeout(g.ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := q.Transact(ctx, request("k"), g.queue("k", completed("x"))); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a waiter whose context ends: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		res, err := q.Transact(g.ctx, request("k"), g.queue("k", completed("second")))
		if err == nil && res.Outcome != backend.Acquired {
			err = fmt.Errorf("%v", res.Outcome)
		}
		got <- err
	}()
	if err := tx.Rollback(g.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatalf("after the roll-back: %v", err)
	}
	g.want(1, "k")
}
