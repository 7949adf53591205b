package cockroach

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
)

// R21: no setting of idem's stays in the caller's transaction, and none of the
// caller's is lost, whether it was made in the transaction or in the session.
func TestR21SettingsAreTheCallers(t *testing.T) {
	t.Parallel()
	url, admin, _ := cluster(t)
	s := site{admin: newPool(t, admin), pool: newPool(t, and(url, "pool_max_conns=1"))}
	h, store := s.fresh(t)
	ctx := soon(t)
	show := func(q interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}) (v string) {
		t.Helper()
		if err := q.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	request := func(key string, owner byte) backend.ReserveRequest {
		return backend.ReserveRequest{
			Ref: backend.Ref{ID: backend.ID{Operation: "op", Key: key}, Owner: [16]byte{owner}},
			TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun, Wait: time.Second,
		}
	}
	failed := errors.New("failed")
	work := func(want string, undo bool, err error) backend.Work[pgx.Tx] {
		return func(_ context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
			if got := show(tx); got != want {
				t.Errorf("the function runs with lock_timeout %s; want %s", got, want)
			}
			c := backend.Completion{State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour}
			if undo {
				c.State, c.Undo = backend.Failed, true
			}
			return c, err
		}
	}
	// An abandoned record, to be taken over.
	over := request("over", 1)
	old, err := store.Reserve(ctx, over)
	if err != nil {
		t.Fatal(err)
	}
	h.Advance(10 * time.Minute)
	over.Owner[0], over.TakeOver = 2, old.Record.Fence

	if _, err := s.pool.Exec(ctx, "SET lock_timeout = '7s'"); err != nil {
		t.Fatal(err)
	}
	session := show(s.pool)
	if _, err := store.Transact(ctx, request("transact", 3), work(session, false, nil)); err != nil {
		t.Fatal(err)
	}
	finish := request("finish", 4)
	if _, err := store.Reserve(ctx, finish); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Finish(ctx, finish.Ref, work(session, false, nil)); err != nil {
		t.Fatal(err)
	}
	if got := show(s.pool); got != session {
		t.Errorf("afterwards the session has lock_timeout %s; want %s", got, session)
	}
	for _, own := range []string{"", "1234ms"} {
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			want := session
			if own != "" {
				if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+own+"'"); err != nil {
					return err
				}
				want = show(tx)
			}
			for _, c := range []struct {
				name string
				r    backend.ReserveRequest
				work backend.Work[pgx.Tx]
				err  error
			}{
				{"a new key", request("new"+own, 5), work(want, false, nil), nil},
				{"a duplicate", request("new"+own, 6), nil, nil},
				{"an effect that is undone", request("undo"+own, 7), work(want, true, nil), nil},
				{"a function that fails", request("fails"+own, 8), work(want, false, failed), failed},
				{"a takeover", over, work(want, false, nil), nil},
			} {
				if _, err := store.Join(ctx, tx, c.r, c.work); !errors.Is(err, c.err) || c.err == nil && err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				if got := show(tx); got != want {
					t.Errorf("after %s the transaction has lock_timeout %s; want %s", c.name, got, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// R20: the moves of lease mode do not wait for ever behind another's transaction, and
// say in one round trip how long they will.
func TestR20MovesDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	url, admin, shim := cluster(t)
	s := site{admin: newPool(t, admin), pool: newPool(t, url)}
	_, store := s.fresh(t)
	ctx := soon(t)
	ref := func(key string) backend.Ref {
		return backend.Ref{ID: backend.ID{Operation: "op", Key: key}, Owner: [16]byte{1}}
	}
	complete := func(key string) func() error {
		return func() error {
			_, err := store.Complete(ctx, backend.CompleteRequest{Ref: ref(key), State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour})
			return err
		}
	}
	reserve := func(key string) {
		t.Helper()
		r := backend.ReserveRequest{Ref: ref(key), TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun}
		if res, err := store.Reserve(ctx, r); err != nil || res.Outcome != backend.Acquired {
			t.Fatalf("Reserve: %v, %v", res.Outcome, err)
		}
	}
	moves := map[string]func() error{
		"complete": complete("complete"),
		"release":  func() error { return store.Release(ctx, ref("release")) },
		"renew":    func() error { return store.Renew(ctx, ref("renew"), time.Hour) },
	}
	for key := range moves {
		reserve(key)
	}
	lock := lockAll(t, ctx, s.admin, store.config.Names.Records)
	var wg sync.WaitGroup
	for name, move := range moves {
		wg.Go(func() {
			began := time.Now()
			if err := move(); err == nil || errors.Is(err, backend.ErrOutcomeUnknown) || errors.Is(err, backend.ErrLeaseLost) || ctx.Err() != nil {
				t.Errorf("%s behind a lock: %v after %v; want a definite failure", name, err, time.Since(began))
			}
		})
	}
	wg.Wait()
	if err := lock.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for name, move := range moves {
		if err := move(); err != nil {
			t.Errorf("%s, with the lock gone: %v", name, err)
		}
	}
	if shim == nil {
		return
	}
	store = newStore(newPool(t, and(url, "pool_max_conns=1")), store.config)
	reserve("warm")
	if err := complete("warm")(); err != nil {
		t.Fatal(err)
	}
	before := shim.Trips()
	reserve("k")
	if n := shim.Trips() - before; n != 1 {
		t.Errorf("a reserve takes %d round trips", n)
	}
	before = shim.Trips()
	if err := complete("k")(); err != nil {
		t.Fatal(err)
	}
	if n := shim.Trips() - before; n != 1 {
		t.Errorf("a completion takes %d round trips", n)
	}
}

// lockAll locks every row of a table.
func lockAll(t *testing.T, ctx context.Context, pool *pgxpool.Pool, table string) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(ctx)) })
	if _, err := tx.Exec(ctx, "SELECT 1 FROM "+table+" FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	return tx
}
