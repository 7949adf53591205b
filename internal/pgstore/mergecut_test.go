package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// heldDB keeps its first statement back until it is told, so that those who come
// meanwhile are one batch.
type heldDB struct {
	PgxDB
	first   atomic.Bool
	held    chan struct{} // closed when the first one is here
	release chan struct{}
}

func (d *heldDB) Do(ctx context.Context, s *Stmt) error {
	if d.first.CompareAndSwap(false, true) {
		close(d.held)
		<-d.release
	}
	return d.PgxDB.Do(ctx, s)
}

// queuedCallers returns when n callers wait in a combiner. No other test may run.
func queuedCallers(t *testing.T, ctx context.Context, n int) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for ctx.Err() == nil {
		if bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(").await(")) == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("not %d callers came to be queued", n)
}

// A connection that is cut in the middle of a batch, before or after it took effect:
// each of its callers hears that the outcome is unknown, and nothing that is not true;
// each learns the truth by asking again.
func TestMergedBatchIsCut(t *testing.T) {
	for _, kind := range []string{"reserves", "completions", "both"} {
		for _, c := range []cut{cutBefore, cutAfter} {
			t.Run(fmt.Sprint(kind, []string{" ", " not applied", " applied"}[c]), func(t *testing.T) {
				g := newRig(t, "", setup{size: 2})
				db := &heldDB{PgxDB: PgxDB{Pool: g.pool}, held: make(chan struct{}), release: make(chan struct{})}
				s := New[pgx.Tx](db, g.config())
				const callers = 12
				var done []backend.ReserveRequest // reserved before, completed in the batch
				var keys int                      // reserved in the batch, some by two callers
				switch kind {
				case "reserves":
					keys = 8
				case "completions":
					done = make([]backend.ReserveRequest, callers)
				default:
					keys, done = 4, make([]backend.ReserveRequest, callers/2)
				}
				for i := range done {
					done[i] = request(fmt.Sprint("c", i))
					if _, err := g.s.Reserve(g.ctx, done[i]); err != nil {
						t.Fatal(err)
					}
				}
				// Both connections know the statements: the cut is of their execution.
				always := merged(PgxDB{Pool: g.pool}, g.config())
				a, err := g.pool.Acquire(g.ctx)
				if err != nil {
					t.Fatal(err)
				}
				warm(t, g, always, "warm")
				b, err := g.pool.Acquire(g.ctx)
				if err != nil {
					t.Fatal(err)
				}
				a.Release()
				warm(t, g, always, "warmer")
				b.Release()

				var wg sync.WaitGroup
				wg.Go(func() { // takes the stream
					if _, err := s.Reserve(g.ctx, request("first")); err != nil {
						t.Error(err)
					}
				})
				<-db.held
				var unknown atomic.Int64
				// insist sends a move until it has an answer.
				insist := func(move func() error) {
					for range 5 {
						err := move()
						if err == nil {
							return
						}
						if !errors.Is(err, backend.ErrOutcomeUnknown) {
							t.Errorf("a caller of the batch heard %v; want an unknown outcome", err)
							return
						}
						unknown.Add(1)
					}
					t.Error("a caller never learned the truth")
				}
				owners := make([][]backend.ReserveRequest, keys)
				var mu sync.Mutex
				for i := range callers - len(done) {
					key := i % max(keys, 1)
					r := request(fmt.Sprint("r", key))
					wg.Go(func() {
						insist(func() error {
							res, err := s.Reserve(g.ctx, r)
							if err == nil && res.Outcome == backend.Acquired {
								mu.Lock()
								owners[key] = append(owners[key], r)
								mu.Unlock()
							}
							return err
						})
					})
				}
				for i := range done {
					wg.Go(func() {
						insist(func() error {
							rec, err := s.Complete(g.ctx, mergedCompletion(done[i].Ref, "done"))
							if err == nil && (rec.State != backend.Completed || rec.Owner != done[i].Owner || string(rec.Body) != "done") {
								t.Errorf("%s was answered %v, %q", done[i].ID.Key, rec.State, rec.Body)
							}
							return err
						})
					})
				}
				queuedCallers(t, g.ctx, callers)
				g.wire.mu.Lock()
				g.wire.cut, g.wire.only = c, executes(s.merge.sql.insert)
				if kind != "reserves" {
					g.wire.only = executes(s.merge.sql.complete)
				}
				g.wire.mu.Unlock()
				close(db.release)
				wg.Wait()
				if g.wire.next(cutNothing) != cutNothing {
					t.Fatal("no batch came by to be cut")
				}
				if n := unknown.Load(); n != callers {
					t.Errorf("%d callers heard of an unknown outcome; want all %d of the batch", n, callers)
				}
				for key, who := range owners {
					if len(who) != 1 {
						t.Errorf("key r%d was given to %d callers", key, len(who))
						continue
					}
					if rec, err := g.s.Get(g.ctx, who[0].ID); err != nil || rec.State != backend.InFlight || rec.Owner != who[0].Owner || rec.Attempt != 1 {
						t.Errorf("key r%d: its owner is another: %v, %v", key, rec.State, err)
					}
				}
				for _, r := range done {
					if rec, err := g.s.Get(g.ctx, r.ID); err != nil || rec.State != backend.Completed || string(rec.Body) != "done" {
						t.Errorf("%s: %v, %v", r.ID.Key, rec.State, err)
					}
				}
				g.idle("the batch")
			})
		}
	}
}

// warm prepares the merged statements on a connection.
func warm(t *testing.T, g *rig, s *Store[pgx.Tx], key string) {
	t.Helper()
	r := request(key)
	if _, err := s.Reserve(g.ctx, r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Complete(g.ctx, mergedCompletion(r.Ref, "x")); err != nil {
		t.Fatal(err)
	}
}
