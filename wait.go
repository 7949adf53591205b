package idem

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goidem/idem/backend"
)

// waiters lets calls of this process that wait for a key learn at once that the
// call which held it has ended, instead of at their next look. Nothing is kept for
// a key that nobody waits for.
type waiters struct {
	count atomic.Int64
	mu    sync.Mutex
	keys  map[backend.ID][]chan struct{}
}

// add registers a waiter. The caller looks at the store once more before it
// blocks: the holder may have ended between the first look and the registration.
func (w *waiters) add(id backend.ID) chan struct{} {
	ch := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		w.keys = make(map[backend.ID][]chan struct{})
	}
	w.keys[id] = append(w.keys[id], ch)
	w.count.Add(1)
	return ch
}

// remove takes back a waiter that was not woken.
func (w *waiters) remove(id backend.ID, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.keys[id]
	for i, other := range list {
		if other == ch {
			list[i] = list[len(list)-1]
			if list = list[:len(list)-1]; len(list) == 0 {
				delete(w.keys, id)
			} else {
				w.keys[id] = list
			}
			w.count.Add(-1)
			return
		}
	}
}

// wake tells all who wait for id that its holder has ended.
func (w *waiters) wake(id backend.ID) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range w.keys[id] {
		close(ch)
		w.count.Add(-1)
	}
	delete(w.keys, id)
}

// Bounds of the looks at a key that another process holds. The first look comes
// soon, because most operations are short; jitter keeps waiters apart.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// waiting is one call's wait for a key.
type waiting struct {
	w    *waiters
	id   backend.ID
	end  time.Time // zero: do not wait
	ch   chan struct{}
	look time.Duration
}

func newWaiting(w *waiters, id backend.ID, max time.Duration) waiting {
	x := waiting{w: w, id: id, look: firstLook}
	if max > 0 {
		x.end = now().Add(max)
	}
	return x
}

// left is how long the call may still wait.
func (x *waiting) left() time.Duration {
	if x.end.IsZero() {
		return 0
	}
	return max(0, x.end.Sub(now()))
}

// next blocks until it is time to look at the key again, because its holder ended
// here, its lease is over (in leaseLeft, if positive), or some time has passed. It
// reports false when the call has waited long enough, and ctx's error when that
// ended first.
func (x *waiting) next(ctx context.Context, leaseLeft time.Duration) (bool, error) {
	left := x.left()
	if left <= 0 {
		return false, nil
	}
	if x.ch == nil {
		x.ch = x.w.add(x.id)
		return true, nil
	}
	pause := x.look/2 + rand.N(x.look/2)
	x.look = min(2*x.look, lastLook)
	if leaseLeft > 0 {
		pause = min(pause, leaseLeft)
	}
	timer := time.NewTimer(min(pause, left))
	defer timer.Stop()
	select {
	case <-x.ch:
		x.ch = nil
	case <-timer.C:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return true, nil
}

// done takes the call out of the list of waiters.
func (x *waiting) done() {
	if x.ch != nil {
		x.w.remove(x.id, x.ch)
	}
}
