package workload

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// noop is a strategy that does nothing: what is measured of it is the harness.
type noop struct{ strategy.Ledger }

func (noop) Do(context.Context, strategy.Op) (strategy.Outcome, error) {
	return strategy.Executed, nil
}

func (n noop) Effects() strategy.Ledger { return n.Ledger }

func (noop) Usage(context.Context) (strategy.Usage, error) {
	return strategy.Usage{Records: -1, StoredBytes: -1}, nil
}

func (noop) Flushes(context.Context) (int64, error) { return 0, nil }

func (noop) Wire() int64 { return -1 }

func (noop) Close() error { return nil }

// Overhead tells what the harness itself costs: how many operations a second it gets
// through with a strategy that does nothing, and how often a bare loop on as many
// goroutines reads the clock twice and records the difference. number tells one call
// from the next.
func Overhead(ctx context.Context, callers int, length time.Duration, number int) (harness, bare float64, err error) {
	bare = bareLoop(callers, length)
	spec := Spec{Workload: result.Workload{Name: "overhead " + strconv.Itoa(number), Callers: callers, Length: length, Payload: 100}}
	m, err := Run(ctx, noop{NewLedger()}, spec, nil)
	return m.Throughput, bare, err
}

// bareLoop returns the rate of loops that only time nothing and record it.
func bareLoop(callers int, length time.Duration) float64 {
	var sum int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	begun := time.Now()
	for range callers {
		wg.Go(func() {
			h := newHistogram()
			for {
				start := time.Since(begun)
				if start >= length {
					break
				}
				record(h, time.Since(begun)-start)
			}
			mu.Lock()
			defer mu.Unlock()
			sum += h.TotalCount()
		})
	}
	wg.Wait()
	return float64(sum) / time.Since(begun).Seconds()
}
