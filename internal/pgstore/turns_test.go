package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
)

// Callers that wait for others' open transactions, on more keys than the pool has
// connections, hold up neither who ends an attempt nor who comes with a free key: what
// begins does not stand in the way of what ends.
func TestWaitersLeaveConnections(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{size: 4})
	first, second := reserveOf("first"), reserveOf("second")
	l.acquire(first)
	l.acquire(second)

	tx, err := l.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	const keys = 12
	for i := range keys {
		r := normal(reserveOf(fmt.Sprint("held", i)))
		st := l.reserveStmt(&r, "1s")
		if err := l.db.Adopt(tx).Do(t.Context(), st); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			r := reserveOf(fmt.Sprint("held", i))
			r.Wait = 5 * time.Minute // longer than the test takes
			if res, err := l.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
				t.Errorf("%s: %v, %v; want the key after the roll-back", r.ID.Key, res.Outcome, err)
			}
		})
	}
	for l.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "+mine) == "0" {
		time.Sleep(time.Millisecond)
	}
	// Many times: a connection that came free by chance would do for one.
	for range 20 {
		for _, ref := range []backend.Ref{first.Ref, second.Ref} {
			if err := l.Renew(soon(t), ref, time.Hour); err != nil {
				t.Fatalf("a renewal behind waiters: %v", err)
			}
		}
	}
	for _, ref := range []backend.Ref{first.Ref, second.Ref} {
		if _, err := l.Complete(soon(t), mergedCompletion(ref, "x")); err != nil {
			t.Fatalf("a completion behind waiters: %v", err)
		}
	}
	if res, err := l.Reserve(soon(t), reserveOf("free")); err != nil || res.Outcome != backend.Acquired {
		t.Fatalf("a free key behind waiters: %v, %v", res.Outcome, err)
	}
	hasty := reserveOf("held0")
	if res, err := l.Reserve(soon(t), hasty); err != nil || res.Outcome != backend.Busy {
		t.Fatalf("a caller that fails fast behind waiters: %v, %v", res.Outcome, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// Who finds all turns to wait taken notices that its own key has come free.
func TestWaiterWithoutATurnLooksAgain(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{size: 4}) // one turn to wait
	l.hold(reserveOf("long"))
	short := l.hold(reserveOf("short"))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	patient := func(key string) backend.ReserveRequest {
		r := reserveOf(key)
		r.Wait = 5 * time.Minute
		return r
	}
	wg.Go(func() { _, _ = l.Reserve(ctx, patient("long")) })
	for len(l.turns.wait) == 0 {
		time.Sleep(time.Millisecond)
	}
	done := make(chan error, 1)
	go func() {
		res, err := l.Reserve(soon(t), patient("short"))
		if err == nil && res.Outcome != backend.Acquired {
			err = errors.New(res.Outcome.String())
		}
		done <- err
	}()
	for _, looking := range []int{1, 0} { // it has looked in vain
		for len(l.turns.look) != looking {
			time.Sleep(100 * time.Microsecond)
		}
	}
	if err := short.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatalf("the key that came free: %v", err)
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	for conns, want := range map[int][2]int{-1: {8, 4}, 0: {8, 4}, 1: {1, 1}, 2: {1, 1}, 3: {1, 1}, 4: {2, 1}, 8: {4, 2}, 100: {50, 25}} {
		if got := newTurns(conns, true); cap(got.look) != want[0] || cap(got.wait) != want[1] {
			t.Errorf("a pool of %d: %d turns to look, %d to wait; want %v", conns, cap(got.look), cap(got.wait), want)
		}
		if got := newTurns(conns, false); got.look != nil || cap(got.wait) != want[1] {
			t.Errorf("a pool of %d without merging: %d turns to look, %d to wait", conns, cap(got.look), cap(got.wait))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		one := newTurn(1)
		began := time.Now()
		err := one.do(t.Context(), 0, func() {
			if err := one.do(t.Context(), time.Second, func() { t.Error("two had a turn at once") }); err != errNoTurn || time.Since(began) != time.Second {
				t.Errorf("a limited wait: %v after %v", err, time.Since(began))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := one.do(ctx, 0, func() { t.Error("two had a turn at once") }); err != context.DeadlineExceeded {
				t.Errorf("a wait whose context ended: %v", err)
			}
		})
		if err != nil || len(one) != 0 {
			t.Errorf("%v, %d turns taken afterwards", err, len(one))
		}
		func() {
			defer func() { _ = recover() }()
			_ = one.do(t.Context(), 0, func() { panic("in a turn") })
		}()
		if len(one) != 0 {
			t.Error("a panic kept its turn")
		}
	})
}

// A statement for which the pool opens a connection does not wait for that one while
// another comes free, and the connection is opened all the same.
func TestStatementDoesNotWaitForADial(t *testing.T) {
	t.Parallel()
	b := newBase(t, "")
	config, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 3
	var slow atomic.Bool
	open := make(chan struct{})
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			<-open
		}
		return dial(ctx, network, addr)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	opened := sync.OnceFunc(func() { close(open) })
	defer opened()
	db := PgxDB{Pool: pool}
	one := func() *Stmt { return &Stmt{SQL: "SELECT 1"} }
	if err := db.Do(soon(t), one()); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	for _, do := range map[string]func(context.Context) error{
		"Do":    func(ctx context.Context) error { return db.Do(ctx, one()) },
		"DoAll": func(ctx context.Context) error { return db.DoAll(ctx, one(), one()) },
	} {
		busy, err := pool.Acquire(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- do(soon(t)) }()
		for pool.Stat().ConstructingConns() == 0 {
			time.Sleep(time.Millisecond)
		}
		busy.Release()
		if err := <-done; err != nil {
			t.Errorf("a statement that came while a connection was being opened: %v", err)
		}
	}
	opened()
	for st := pool.Stat(); st.ConstructingConns() > 0 || st.TotalConns() < 2; st = pool.Stat() {
		time.Sleep(time.Millisecond)
	}
	// The context's end is the statement's, whoever dials.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Do(ctx, one()); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}

// Completions whose leases were renewed since they knew their record settle together,
// and not each alone in two statements.
func TestCompletionsBehindRenewalsStayMerged(t *testing.T) {
	t.Parallel()
	b, db, s := mergeFixture(t, 8)
	const n = 32
	refs := make([]backend.Ref, n)
	for i := range refs {
		r := mergeRequest(fmt.Sprint("k", i))
		refs[i] = r.Ref
		if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
			t.Fatalf("%v, %v", res.Outcome, err)
		}
	}
	// A renewal of another store, which this one's memory does not hear of: as one that is
	// on its way while the completion queues.
	other := New[pgx.Tx](PgxDB{Pool: db.Pool}, b.config())
	for _, ref := range refs {
		if err := other.Renew(t.Context(), ref, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	atOnce(n, func(i int) {
		rec, err := s.Complete(t.Context(), mergedCompletion(refs[i], "x"))
		if err != nil || rec.State != backend.Completed {
			t.Errorf("%v, %v", rec.State, err)
		}
	})
	if alone := db.count(s.sql.get); alone > n/4 {
		t.Errorf("%d of %d completions were settled alone", alone, n)
	}
	if db.count(s.merge.sql.complete) == 0 {
		t.Error("no merged completion that reads back")
	}
}
