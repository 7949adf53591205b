package experiment

import (
	"context"
	"sync"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// answered reports whether a client stops asking: it takes the operation for done.
func answered(o strategy.Outcome) bool {
	return o == strategy.Executed || o == strategy.Replayed || o == strategy.Dropped
}

// callLimit bounds one call of a client, patience all its calls for a key.
const (
	callLimit = 10 * time.Second
	patience  = 30 * time.Second
)

// operation is the request for a key; every retry is equal to it.
func operation(key, caller string) strategy.Op {
	return strategy.Op{Key: key, Payload: []byte("payload of " + key), Result: 16, Caller: caller}
}

// settle calls until an answer is definite, as a client does that wants the operation
// done. It returns false when it gave up, with the last error.
func settle(ctx context.Context, r strategy.Runner, op strategy.Op) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := 5 * time.Millisecond
	for {
		call, done := context.WithTimeout(ctx, callLimit)
		o, err := r.Do(call, op)
		done()
		if err == nil && answered(o) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(pause):
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// settleAll settles keys side by side and returns those that were answered.
func settleAll(ctx context.Context, r strategy.Runner, ops []strategy.Op, callers int) map[string]bool {
	done := make(map[string]bool)
	var mu sync.Mutex
	next := make(chan strategy.Op, len(ops))
	for _, op := range ops {
		next <- op
	}
	close(next)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for op := range next {
				ok, _ := settle(ctx, r, op)
				mu.Lock()
				done[op.Key] = done[op.Key] || ok
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return done
}
