package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goidem/idem/bench/strategy"
)

// outcome is what became of an operation, in one byte of a log.
type outcome uint8

const (
	executed outcome = iota
	replayed
	dropped
	inFlight
	mismatch
	unknown
	failed
	outcomes
)

func (o outcome) answered() bool { return o <= dropped }

func classify(o strategy.Outcome, err error) (outcome, error) {
	if err != nil {
		return failed, err
	}
	switch o {
	case strategy.Executed:
		return executed, nil
	case strategy.Replayed:
		return replayed, nil
	case strategy.Dropped:
		return dropped, nil
	case strategy.InFlight:
		return inFlight, nil
	case strategy.Mismatch:
		return mismatch, nil
	case strategy.Unknown:
		return unknown, nil
	}
	return failed, fmt.Errorf("workload: the strategy answered %q, which is no outcome", o)
}

// longest is the longest latency that a histogram tells from longer ones.
const longest = time.Hour

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(longest), 3) }

func record(h *hdrhistogram.Histogram, d time.Duration) {
	if h.RecordValue(int64(d)) != nil {
		h.RecordValue(int64(min(max(d, 0), longest)))
	}
}

// drive is one pass over the stream by all callers.
type drive struct {
	stream *stream
	runner strategy.Runner
	length time.Duration // 0: no limit
	limit  uint64        // operations; 0: no limit
	open   bool

	begun time.Time
	stop  atomic.Bool

	// What all callers write has a cache line of its own.
	_    [64]byte
	next atomic.Uint64 // number of the next operation
	_    [64]byte
}

// worker is one caller and its tallies; nobody else touches them while it runs.
type worker struct {
	*drive
	maker   *maker
	log     log
	latency *hdrhistogram.Histogram
	lag     *hdrhistogram.Histogram
	problem error // the first one that was not asked for
	ended   time.Duration
	_       [64]byte // two workers never write to one cache line
}

// callers makes the callers of a pass, with all that they need.
func (d *drive) callers(n int) []*worker {
	workers := make([]*worker, n)
	for i := range workers {
		workers[i] = &worker{drive: d, maker: d.stream.maker(i), latency: newHistogram()}
		if d.open {
			workers[i].lag = newHistogram()
		}
	}
	return workers
}

// run lets the callers work until the end.
func (d *drive) run(ctx context.Context, workers []*worker) {
	defer context.AfterFunc(ctx, func() { d.stop.Store(true) })()
	var wg sync.WaitGroup
	d.begun = time.Now()
	for _, w := range workers {
		wg.Go(func() {
			if d.open {
				w.openLoop(ctx)
			} else {
				w.closedLoop(ctx)
			}
		})
	}
	wg.Wait()
}

// note keeps what became of operation n.
func (w *worker) note(n uint64, o outcome, err error, took time.Duration) {
	w.log.add(n, o)
	if o.answered() {
		record(w.latency, took)
		return
	}
	if err != nil && w.problem == nil && !errors.Is(err, ErrAsked) {
		w.problem = err
	}
}

// A caller of a closed loop takes several operations at once while they last it for
// less than quick altogether, up to most: taking one costs more than doing nothing.
const (
	quick = 20 * time.Microsecond
	most  = 64
)

// closedLoop starts each operation when the one before it has ended.
func (w *worker) closedLoop(ctx context.Context) {
	requests := make([]request, most)
	for some := uint64(1); !w.stop.Load(); {
		first := w.next.Add(some) - some
		taken := requests[:some]
		if w.limit > 0 && first+some > w.limit {
			taken = taken[:max(w.limit, first)-first]
		}
		for i := range taken {
			w.maker.make(first+uint64(i), &taken[i])
		}
		began := time.Since(w.begun)
		// One look at the clock ends an operation and starts the next: between them is
		// only the recording, some nanoseconds.
		start := began
		for i := range taken {
			if w.length > 0 && start >= w.length {
				return
			}
			o, err := classify(w.runner.Do(ctx, taken[i].Op))
			end := time.Since(w.begun)
			w.ended = end
			w.note(first+uint64(i), o, err, end-start)
			start = end
		}
		if w.limit > 0 && first+some >= w.limit {
			return
		}
		if start-began < quick {
			some = min(2*some, most)
		} else {
			some = 1
		}
	}
}

// openLoop starts each operation when it is due. An operation that finds all callers
// busy starts late, and its latency counts from when it was due all the same: a
// stall shows in every operation that it held up, not in one for each caller.
func (w *worker) openLoop(ctx context.Context) {
	var r request
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !w.stop.Load() {
		free := time.Since(w.begun)
		if w.length > 0 && free >= 2*w.length {
			return // hopelessly behind; what never started is counted as failed
		}
		n := w.next.Add(1) - 1
		due := w.stream.due(n)
		if w.limit > 0 && n >= w.limit || w.length > 0 && due >= w.length {
			return
		}
		w.maker.make(n, &r)
		if wait := due - time.Since(w.begun); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		// What a busy caller adds is the strategy's doing. What is left is the
		// generator's own: it was free and still came late.
		record(w.lag, time.Since(w.begun)-max(due, free))
		o, err := classify(w.runner.Do(ctx, r.Op))
		w.ended = time.Since(w.begun)
		w.note(n, o, err, w.ended-due)
	}
}
