package experiment

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// slow runs operations that take several leases, and sends a duplicate after each
// lease.
func slow(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	return repeat(rounds, func() error {
		const keys, leases = 4, 3
		w, err := l.world(s, keys)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		w.env.LeaseTTL = 800 * time.Millisecond // it must be renewed in time on a busy machine
		r, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		w.met = make(map[string]bool)
		var wg sync.WaitGroup
		var mu sync.Mutex
		begun := time.Now()
		for _, op := range w.ops("first") {
			var started, ended atomic.Bool
			ask := func(op strategy.Op) {
				ok, _ := settle(ctx, r, op)
				mu.Lock()
				defer mu.Unlock()
				w.acks[op.Key] = w.acks[op.Key] || ok
			}
			wg.Go(func() {
				op.Work = leases * w.env.LeaseTTL
				op.Pause = func(_ context.Context, at strategy.Point) error {
					if at == strategy.AfterReserve {
						started.Store(true)
					}
					return nil
				}
				ask(op)
				ended.Store(true)
			})
			for d := 1; d < leases; d++ {
				wg.Go(func() {
					time.Sleep(time.Duration(d)*w.env.LeaseTTL + w.env.LeaseTTL/3)
					if started.Load() && !ended.Load() {
						mu.Lock()
						w.met[op.Key] = true // this duplicate comes while the first is at it, lease or no lease
						mu.Unlock()
					}
					ask(operation(op.Key, "duplicate"))
				})
			}
		}
		wg.Wait()
		return t.count(ctx, w, r, w.anyMet(), time.Since(begun)-leases*w.env.LeaseTTL, nil)
	})
}

// stepped is a clock that can be moved.
type stepped struct {
	by   atomic.Int64
	asks atomic.Int64
}

func (c *stepped) Now() time.Time {
	c.asks.Add(1)
	return time.Now().Add(time.Duration(c.by.Load()))
}

// serverClock says why a server's clock is not stepped.
func serverClock(server strategy.Server) string {
	if server == strategy.Redis {
		return "its server keeps time, and a run does not build the library that steps a Redis's clock; go test ./redis -run TestFaultServerClockMoves does, and steps it"
	}
	return "its server keeps time, and to step the clock of that server alone takes libfaketime, which a run does not have"
}

// clockStepped moves the clock of strategies that keep time in this process.
func clockStepped(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	if len(s.Info().Needs) > 0 {
		return errSkip{reason: serverClock(s.Info().Needs[0])}
	}
	return repeat(rounds, func() error {
		w, err := l.world(s, 4)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		clock := &stepped{}
		w.env.Now, w.env.LeaseTTL = clock.Now, 30*time.Second
		r, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		ops := w.ops("caller")
		w.acked(settleAll(ctx, r, ops[1:], 1))
		if clock.asks.Load() == 0 {
			return errSkip{reason: "it looks at no clock"}
		}
		struck := time.Now()
		under, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		ops[0].Pause = func(_ context.Context, at strategy.Point) error {
			if at == strategy.AfterReserve {
				once.Do(func() { close(under) })
				<-release
			}
			return nil
		}
		var wg sync.WaitGroup
		var first, second map[string]bool
		wg.Go(func() { first = settleAll(ctx, r, ops[:1], 1) })
		select {
		case <-under:
		case <-time.After(patience):
			close(release)
			wg.Wait()
			return errSkip{reason: "the operation did not begin"}
		}
		// fired says that the strategy has looked at the clock after each step.
		fired, asked := true, int64(0)
		step := func(to time.Duration) { asked = clock.asks.Load(); clock.by.Store(int64(to)) }
		looked := func() { fired = fired && clock.asks.Load() > asked }
		step(time.Hour)
		wg.Go(func() { second = settleAll(ctx, r, w.ops("duplicate")[:1], 1) })
		// Who may begin begins within this; who must wait does.
		time.Sleep(200 * time.Millisecond)
		close(release)
		wg.Wait()
		w.acked(first)
		w.acked(second)
		w.acked(settleAll(ctx, r, w.ops("ahead"), 2))
		looked()
		step(-time.Hour)
		w.acked(settleAll(ctx, r, w.ops("back"), 2))
		looked()
		return t.count(ctx, w, r, fired, time.Since(struck), nil)
	})
}

// expired asks again for keys when they are not remembered any more.
func expired(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	return repeat(rounds, func() error {
		w, err := l.world(s, 4)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		w.env.Known = time.Second
		r, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		w.acked(settleAll(ctx, r, w.ops("caller"), 2))
		time.Sleep(2 * w.env.Known)
		struck := time.Now()
		w.acked(settleAll(ctx, r, w.ops("again"), 2))
		return t.count(ctx, w, r, true, time.Since(struck), nil)
	})
}
