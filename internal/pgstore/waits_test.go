package pgstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// elsewhere is a store in another process, as far as the database can tell.
func (g *rig) elsewhere(t testing.TB, size int32) *Store[pgx.Tx] {
	return New(PgxDB{Pool: newPool(t, g.url, setup{size: size})}, g.config())
}

// abandoned is a reserve that takes over what was reserved here and given up.
func (g *rig) abandoned(key string) func(wait time.Duration) backend.ReserveRequest {
	first := request(key)
	first.TTL = time.Second
	res, err := g.s.Reserve(g.ctx, first)
	if err != nil || res.Outcome != backend.Acquired {
		g.t.Fatalf("Reserve: %v, %v", res.Outcome, err)
	}
	g.advance(10 * time.Second)
	return func(wait time.Duration) backend.ReserveRequest {
		r := request(key)
		r.TakeOver, r.Wait = res.Record.Fence, wait
		return r
	}
}

// openTakeOver is a takeover in another process, open until release is called.
func (g *rig) openTakeOver(t testing.TB, take func(time.Duration) backend.ReserveRequest) (release func()) {
	t.Helper()
	entered, leave, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	other := g.elsewhere(t, 1)
	go func() {
		defer close(over)
		_, err := other.Transact(g.ctx, take(0), func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) {
			close(entered)
			<-leave
			return completed("x"), nil
		})
		if err != nil {
			t.Errorf("the open takeover: %v", err)
		}
	}()
	select {
	case <-entered:
	case <-over:
		t.FailNow()
	}
	var once sync.Once
	release = func() { once.Do(func() { close(leave); <-over }) }
	t.Cleanup(release)
	return release
}

// R20: whoever comes second behind an open takeover queues for a lock whose timeout
// does not say that it was the row's. The wait policy holds for it, too, and for all
// waits of one call together.
func TestR20WaitsOfOneCallAreOneWait(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	take := g.abandoned("k")
	release := g.openTakeOver(t, take)
	nop := func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) {
		return completed("y"), nil
	}
	var wg sync.WaitGroup
	second := g.elsewhere(t, 1)
	wg.Go(func() { _, _ = second.Transact(g.ctx, take(40*time.Second), nop) })
	for g.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'tuple' AND relation = '"+g.names.Records+"'::regclass") == "0" {
		if g.ctx.Err() != nil {
			t.Fatal("nobody came to wait in the database")
		}
		time.Sleep(2 * time.Millisecond)
	}
	const wait = 1500 * time.Millisecond
	var both sync.WaitGroup
	timed := func(what string, wait time.Duration, call func(r backend.ReserveRequest) (backend.Reservation, error)) {
		both.Go(func() {
			began := time.Now()
			res, err := call(take(wait))
			took := time.Since(began)
			if err != nil || res.Outcome != backend.Busy || took < wait || took > wait+wait/2 {
				t.Errorf("%s, with a wait of %v: %v, %v after %v", what, wait, res.Outcome, err, took)
			}
		})
	}
	third := g.elsewhere(t, 1)
	timed("Transact", wait, func(r backend.ReserveRequest) (backend.Reservation, error) { return third.Transact(g.ctx, r, nop) })
	fourth := g.elsewhere(t, 1)
	timed("Reserve", wait, func(r backend.ReserveRequest) (backend.Reservation, error) { return fourth.Reserve(g.ctx, r) })
	tx := g.begin(pgx.ReadCommitted)
	timed("Join", wait, func(r backend.ReserveRequest) (backend.Reservation, error) { return g.s.Join(g.ctx, tx, r, nop) })
	both.Wait()
	began := time.Now()
	if res, err := third.Transact(g.ctx, take(0), nop); err != nil || res.Outcome != backend.Busy || time.Since(began) > 2*time.Second {
		t.Errorf("failing fast: %v, %v after %v", res.Outcome, err, time.Since(began))
	}
	release()
	wg.Wait()
}

// R20: a move that meets a row locked by another's open transaction fails in bounded
// time, changes nothing, and succeeds afterwards. A renewal does not wait at all.
func TestR20MovesDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	refs := map[string]backend.Ref{}
	for _, name := range []string{"complete", "uncertain", "release", "renew", "forget", "resolve", "finish"} {
		r := request(name)
		res, err := g.s.Reserve(g.ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if refs[name] = r.Ref; name == "resolve" {
			if _, err := g.s.Complete(g.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain}); err != nil {
				t.Fatal(err)
			}
		}
		_ = res
	}
	fence := func(name string) uint64 {
		rec, err := g.s.Get(g.ctx, refs[name].ID)
		if err != nil {
			t.Error(err)
		}
		return rec.Fence
	}
	moves := map[string]func() error{
		"complete": func() error {
			_, err := g.s.Complete(g.ctx, backend.CompleteRequest{Ref: refs["complete"], State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour})
			return err
		},
		"uncertain": func() error {
			_, err := g.s.Complete(g.ctx, backend.CompleteRequest{Ref: refs["uncertain"], State: backend.Uncertain})
			return err
		},
		"release": func() error { return g.s.Release(g.ctx, refs["release"]) },
		"renew":   func() error { return g.s.Renew(g.ctx, refs["renew"], time.Hour) },
		"forget": func() error {
			return g.s.Forget(g.ctx, backend.ForgetRequest{ID: refs["forget"].ID, Fence: fence("forget"), Force: true})
		},
		"resolve": func() error {
			_, err := g.s.Resolve(g.ctx, backend.ResolveRequest{ID: refs["resolve"].ID, Fence: fence("resolve"), Evidence: "seen"})
			return err
		},
		"finish": func() error {
			_, err := g.s.Finish(g.ctx, refs["finish"], g.effect("finish"))
			return err
		},
	}
	rows := func() string {
		return g.ask("SELECT string_agg(key || rev || state, ' ' ORDER BY key) FROM " + g.names.Records)
	}
	before := rows()
	lock := g.begin(pgx.ReadCommitted)
	if _, err := lock.Exec(g.ctx, "SELECT 1 FROM "+g.names.Records+" FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for name, move := range moves {
		wg.Go(func() {
			began := time.Now()
			err := move()
			took := time.Since(began)
			if !isLockTimeout(err) || errors.Is(err, backend.ErrOutcomeUnknown) || took > 10*moveWait {
				t.Errorf("%s: %v after %v", name, err, took)
			}
			if name == "renew" && took > moveWait {
				t.Errorf("a renewal waited %v", took)
			}
		})
	}
	wg.Wait()
	if got := rows(); got != before {
		t.Errorf("the records are\n%s, and were\n%s", got, before)
	}
	if err := lock.Rollback(g.ctx); err != nil {
		t.Fatal(err)
	}
	for name, move := range moves {
		if err := move(); err != nil {
			t.Errorf("%s, with the lock gone: %v", name, err)
		}
	}
	g.want(1, "finish")
	g.idle("all moves")
}

// R20: of the takeovers in lease mode that wait behind another process's transaction,
// one holds a connection.
func TestR20TakeOversWaitAtTheGate(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 4})
	take := g.abandoned("hot")
	release := g.openTakeOver(t, take)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			res, err := g.s.Reserve(g.ctx, take(30*time.Second))
			if err != nil || res.Outcome != backend.Existing {
				t.Errorf("a waiter: %v, %v", res.Outcome, err)
			}
		})
	}
	g.s.tx.gates.waiting(t, g.ctx, token(take(0).ID.Sum()), 7)
	for range 20 { // the one who waits in the database, and nobody else
		if n := g.pool.Stat().AcquiredConns(); n > 1 {
			t.Fatalf("%d of 4 connections are held for one key", n)
		}
		time.Sleep(5 * time.Millisecond)
	}
	release()
	wg.Wait()
	g.idle("the takeovers")
}

// waiting returns when n callers wait at the gate of id.
func (g *gates) waiting(t testing.TB, ctx context.Context, id token, n int) {
	t.Helper()
	for ctx.Err() == nil {
		g.mu.Lock()
		e := g.held[id]
		got := e != nil && len(e.waiters) == n
		g.mu.Unlock()
		if got {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("not %d callers came to wait at the gate", n)
}

// R20: a renewal behind an open Finish of its own attempt comes back at once, with its
// connection, and a moved lease afterwards is no matter: the key is completed.
func TestR20RenewBehindFinishDoesNotWait(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 2})
	r := request("k")
	if _, err := g.s.Reserve(g.ctx, r); err != nil {
		t.Fatal(err)
	}
	g.advance(10 * time.Second)
	rec, err := g.s.Finish(g.ctx, r.Ref, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
		began := time.Now()
		if err := g.s.Renew(ctx, r.Ref, time.Minute); !isLockTimeout(err) || errors.Is(err, backend.ErrLeaseLost) {
			t.Errorf("Renew: %v; want an error that says nothing about the lease", err)
		}
		if took := time.Since(began); took > moveWait {
			t.Errorf("Renew took %v", took)
		}
		if n := g.pool.Stat().AcquiredConns(); n != 1 {
			t.Errorf("%d connections are lent after it; want that of Finish", n)
		}
		return g.effect("k")(ctx, tx, res)
	})
	if err != nil || rec.State != backend.Completed {
		t.Fatalf("Finish: %v, %v", rec.State, err)
	}
	g.want(1, "k")
}

// The lock timeouts of the moves cost no round trip, and stay in their statement.
func TestMovesTakeOneRoundTrip(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1})
	if _, err := g.pool.Exec(g.ctx, "SET lock_timeout = '7s'"); err != nil {
		t.Fatal(err)
	}
	run := func(key string) map[string]int64 {
		trips := map[string]int64{}
		count := func(what string, move func() error) {
			trips[what] = g.wire.count(t, func() {
				if err := move(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			})
		}
		r := request(key)
		var fence uint64
		reserve := func(what string) {
			count(what, func() error {
				res, err := g.s.Reserve(g.ctx, r)
				fence = res.Record.Fence
				return err
			})
		}
		reserve("reserve")
		count("renew", func() error { return g.s.Renew(g.ctx, r.Ref, time.Hour) })
		count("release", func() error { return g.s.Release(g.ctx, r.Ref) })
		r = request(key) // another attempt
		r.TakeOver = fence
		reserve("take over")
		count("complete", func() error {
			_, err := g.s.Complete(g.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour})
			return err
		})
		count("forget", func() error { return g.s.Forget(g.ctx, backend.ForgetRequest{ID: r.ID, Fence: fence}) })
		r = request(key)
		reserve("again")
		count("finish", func() error {
			_, err := g.s.Finish(g.ctx, r.Ref, func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
				var lock string
				if err := tx.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&lock); err != nil || lock != "7s" {
					t.Errorf("the function runs with lock_timeout %s, %v", lock, err)
				}
				return completed("x"), nil
			})
			return err
		})
		return trips
	}
	for range 2 {
		run("warm") // the first use of a statement prepares it
		g.exec("DELETE FROM " + g.names.Records)
	}
	// A takeover and a deletion look first; Finish has two trips beside its function's.
	want := map[string]int64{"reserve": 1, "renew": 1, "release": 1, "take over": 2, "complete": 1, "forget": 2, "again": 1, "finish": 3}
	got := run("k")
	for what, n := range want {
		if got[what] != n {
			t.Errorf("%s: %d round trips; want %d", what, got[what], n)
		}
	}
	var lock string
	if err := g.pool.QueryRow(g.ctx, "SELECT current_setting('lock_timeout')").Scan(&lock); err != nil || lock != "7s" {
		t.Errorf("the session has lock_timeout %s afterwards, %v", lock, err)
	}
}
