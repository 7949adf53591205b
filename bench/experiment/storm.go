package experiment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// storm lets many callers ask for the same keys at once. An operation takes some
// milliseconds, as real ones do: that is the room for a race.
func storm(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	for range rounds {
		if err := stormRound(ctx, l, s, t); err != nil {
			return err
		}
	}
	return nil
}

// stormLead is how long after it was fixed a burst begins: both processes must have heard.
const stormLead = 10 * time.Millisecond

func stormRound(ctx context.Context, l *lab, s strategy.Strategy, t *tally) (err error) {
	const keys, callers, work = 6, 8, 5 * time.Millisecond
	w, err := l.world(s, keys)
	if err != nil {
		return err
	}
	defer w.close(ctx)
	w.env.LeaseTTL = 10 * time.Second // this is not about leases
	r, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	var other *worker
	if len(s.Info().Needs) > 0 { // on one machine's file or memory there is no second process
		if other, err = w.worker(ctx, orders{Callers: callers, Storm: true, Work: work}); err != nil {
			return err
		}
		// It says when it has opened the store: until then there is one process.
		if err = other.ready(); err != nil {
			return err
		}
	}
	var took time.Duration
	w.met = make(map[string]bool)
	for _, key := range w.keys {
		// Both processes are done with a key before the next one: who is slower at one
		// would come too late to all that follow.
		begin := time.Now().Add(stormLead)
		if other != nil {
			if err := other.begin(begin); err != nil {
				return err
			}
		}
		own := burst(ctx, r, key, callers, work, begin, "caller")
		w.acks[key], w.met[key] = own.Acked, own.Overlapped
		took += own.To.Sub(own.From)
		if other != nil {
			its, err := other.burst()
			if err != nil {
				return err
			}
			w.acks[key], w.met[key] = own.Acked || its.Acked, its.meets(own)
		}
	}
	if other != nil {
		if _, err := other.wait(); err != nil {
			return err
		}
	}
	return t.count(ctx, w, r, w.anyMet(), took/keys, nil)
}

// bursted is what came of one key's burst in one process.
type bursted struct {
	Acked      bool
	Overlapped bool // two callers were under way at once
	From, To   time.Time
}

// meets says that two processes were at the same key at the same time. Both read the
// clock of one machine.
func (b bursted) meets(other bursted) bool {
	return b.From.Before(other.To) && other.From.Before(b.To)
}

// burst lets all callers ask for one key at once.
func burst(ctx context.Context, r strategy.Runner, key string, callers int, work time.Duration, begin time.Time, name string) (b bursted) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	under := 0
	gate := make(chan struct{})
	for c := range callers {
		wg.Go(func() {
			<-gate
			mu.Lock()
			under++
			b.Overlapped = b.Overlapped || under > 1
			mu.Unlock()
			op := operation(key, fmt.Sprintf("%s %d", name, c))
			op.Work = work
			ok, _ := settle(ctx, r, op) // a key that nobody was told of counts as stuck
			mu.Lock()
			defer mu.Unlock()
			under--
			b.Acked = b.Acked || ok
		})
	}
	time.Sleep(time.Until(begin))
	b.From = time.Now()
	close(gate)
	wg.Wait()
	b.To = time.Now()
	return b
}
