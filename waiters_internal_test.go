package idem

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
)

// Nothing stays in the list of waiting calls, however they end.
func TestWaitersListEmpties(t *testing.T) {
	store, err := New(memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	scope := Scope{Operation: "o"}
	var all sync.WaitGroup
	for k := range 20 {
		key := Key(fmt.Sprint(k))
		for c := range 10 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(c)*time.Millisecond/2+time.Microsecond)
				defer cancel()
				if c%2 == 0 {
					ctx = t.Context()
				}
				_, _ = Execute(ctx, store, scope, key, NoFingerprint(), func(context.Context) (int, error) {
					if c%3 == 0 {
						return 0, context.Canceled
					}
					return c, nil
				}, Wait(time.Duration(c%4)*time.Millisecond))
			})
		}
	}
	all.Wait()
	w := &store.waiting
	if n, keys := w.count.Load(), len(w.keys); n != 0 || keys != 0 {
		t.Errorf("%d calls on %d keys are still in the list", n, keys)
	}

	// One of several leaves before it is woken.
	id := backend.ID{Operation: "o", Key: "k"}
	a, b, c := w.add(id), w.add(id), w.add(id)
	w.remove(id, a)
	w.wake(id)
	for _, ch := range []chan struct{}{b, c} {
		select {
		case <-ch:
		default:
			t.Error("a waiting call was not woken")
		}
	}
	w.remove(id, b)
	if n := w.count.Load(); n != 0 || len(w.keys) != 0 {
		t.Errorf("count %d, %d keys", n, len(w.keys))
	}
}
