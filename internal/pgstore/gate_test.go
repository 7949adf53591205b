package pgstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestGate(t *testing.T) {
	const brief = 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var g gates
		enter := func(ctx context.Context, wait time.Duration) *pass {
			p, ok, err := g.enter(ctx, token{1}, wait, brief)
			if !ok && err == nil {
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		first := enter(t.Context(), 0)
		if other, ok, _ := g.enter(t.Context(), token{2}, 0, brief); !ok {
			t.Fatal("another key had to wait")
		} else {
			other.leave(false)
		}

		// One that fails fast outwaits a look, and no work.
		began := time.Now()
		var fast atomic.Bool
		go func() {
			if enter(t.Context(), 0) != nil {
				t.Error("it got past the work of another")
			}
			fast.Store(true)
		}()
		time.Sleep(time.Hour)
		if fast.Load() {
			t.Fatal("a look was not waited for")
		}
		first.works()
		first.works()
		time.Sleep(brief)
		synctest.Wait()
		if !fast.Load() {
			t.Fatalf("after %v behind somebody's work it still waits", time.Since(began))
		}

		// A roll-back lets one through, in order of arrival; a settled key all.
		var mu sync.Mutex
		var order []int
		passes := make(chan *pass, 10)
		for i := range 4 {
			go func() {
				p := enter(t.Context(), time.Hour)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				passes <- p
			}()
			synctest.Wait()
		}
		first.leave(false)
		synctest.Wait()
		mu.Lock()
		if len(order) != 1 || order[0] != 0 {
			t.Fatalf("after a roll-back %v came through", order)
		}
		mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, _, err := g.enter(ctx, token{1}, time.Hour, brief)
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Fatalf("a cancelled waiter: %v", err)
		}
		(<-passes).leave(true)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(order) != 4 {
			t.Fatalf("a settled key let %v through", order)
		}
		for range 3 {
			(<-passes).leave(false)
		}
		if len(g.held) != 0 {
			t.Fatalf("%d gates are left", len(g.held))
		}
		if p := enter(t.Context(), time.Nanosecond); p == nil {
			t.Fatal("a free gate was not free")
		} else {
			p.leave(true)
		}
	})
}

// A turn that comes at the very moment in which its waiter gives up is not lost.
func TestGateLosesNoTurn(t *testing.T) {
	for range 200 {
		var g gates
		first, _, _ := g.enter(t.Context(), token{1}, 0, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if p, ok, _ := g.enter(ctx, token{1}, time.Minute, time.Second); ok {
				p.leave(false)
			}
		}()
		go cancel()
		first.leave(false)
		<-done
		p, ok, err := g.enter(t.Context(), token{1}, time.Minute, time.Second)
		if !ok || err != nil {
			t.Fatal("the gate stayed shut", err)
		}
		p.leave(false)
		cancel()
	}
}

func TestKnown(t *testing.T) {
	var k known
	a, b := token{0: 1, 15: 1}, token{0: 1, 15: 2} // one slot
	if k.has(a) {
		t.Fatal("an empty hint knows something")
	}
	k.add(a)
	k.drop(b)
	if !k.has(a) || k.has(b) {
		t.Fatal("the hint confuses keys of one slot")
	}
	k.add(b)
	if k.has(a) || !k.has(b) {
		t.Fatal("the later key did not take the slot")
	}
	k.drop(b)
	if k.has(b) {
		t.Fatal("a dropped hint is still there")
	}
}
