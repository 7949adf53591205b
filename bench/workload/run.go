// Package workload drives a strategy with a stream of operations that a seed fixes,
// and reports what came of them and what it cost.
package workload

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// Run measures all rounds of spec on one runner and merges them. progress, which may
// be nil, is called now and then with the share that is done, from another
// goroutine. The strategy's name is for the caller to fill in.
//
// When ctx ends, Run returns ctx's error and what the finished rounds gave.
//
// The keys of a run follow from its Spec, so the same Spec must not run twice on one
// store.
func Run(ctx context.Context, r strategy.Runner, spec Spec, progress func(done float64)) (result.Measurement, error) {
	if err := spec.check(); err != nil {
		return result.Measurement{}, err
	}
	var rounds []Round
	for i := range spec.Rounds {
		var part func(float64)
		if progress != nil {
			part = func(done float64) { progress((float64(i) + done) / float64(spec.Rounds)) }
		}
		round, err := RunRound(ctx, r, spec, i, part)
		if err != nil {
			return Merge(spec, rounds), err
		}
		rounds = append(rounds, round)
	}
	m := Merge(spec, rounds)
	err := Stored(ctx, r, &m)
	return m, err
}

// Round is what one round gave.
type Round struct{ m result.Measurement }

// RunRound runs the round with this number, for who wants strategies to take turns.
// A round that ctx has cut short is not returned.
func RunRound(ctx context.Context, r strategy.Runner, spec Spec, number int, progress func(done float64)) (Round, error) {
	if err := spec.check(); err != nil {
		return Round{}, err
	}
	// Flushes are asked for before the warm-up and after the round: the question is no part
	// of what is measured, and opens the connections that the round will need.
	before, err := r.Flushes(ctx)
	if err != nil {
		return Round{}, fmt.Errorf("workload: what the store has cost: %w", err)
	}
	var warmed int64
	if spec.Warmup > 0 {
		s, err := newStream(&spec, "warm-up "+strconv.Itoa(number))
		if err != nil {
			return Round{}, err
		}
		warm := &drive{stream: s, runner: r, limit: uint64(spec.Warmup)}
		workers := warm.callers(spec.Callers)
		warm.run(ctx, workers)
		warmed = operations(workers)
	}
	s, err := newStream(&spec, "round "+strconv.Itoa(number))
	if err != nil {
		return Round{}, err
	}
	d := &drive{stream: s, runner: r, length: spec.Length, limit: uint64(spec.Operations), open: spec.Rate > 0}
	workers := d.callers(spec.Callers)
	runtime.GC() // no round pays for what the one before it left behind
	stop := d.watch(progress)
	begun := spent(r, spec.PIDs)
	d.run(ctx, workers)
	ended := spent(r, spec.PIDs)
	stop()
	if err := ctx.Err(); err != nil {
		return Round{}, err
	}
	after, err := r.Flushes(ctx)
	if err != nil {
		return Round{}, fmt.Errorf("workload: what the store has cost: %w", err)
	}
	m, err := d.tally(ctx, workers)
	if err != nil {
		return Round{}, err
	}
	counted := operations(workers)
	ended.since(begun, counted, &m)
	m.Fsyncs, m.RecordBytes = between(before, after, warmed+counted), -1
	m.Workload, m.Rounds = spec.Workload, 1
	return Round{m}, nil
}

// operations is how many the callers have done.
func operations(workers []*worker) (n int64) {
	for _, w := range workers {
		n += w.log.size()
	}
	return n
}

// watch reports progress until stop is called.
func (d *drive) watch(progress func(float64)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	begun, quit, gone := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				progress(1)
				return
			case <-tick.C:
			}
			var done float64
			if d.length > 0 {
				done = float64(time.Since(begun)) / float64(d.length)
			}
			if d.limit > 0 {
				done = max(done, float64(d.next.Load())/float64(d.limit))
			}
			progress(min(done, 1))
		}
	}()
	return func() { close(quit); <-gone }
}

// Merge makes one measurement of rounds of the same spec: rates, latencies and costs are
// those of the round with the median throughput; what became of operations and of keys is
// summed over all, for a duplicate effect or an error in any round is one too many.
func Merge(spec Spec, rounds []Round) result.Measurement {
	if len(rounds) == 0 {
		return result.Measurement{Workload: spec.Workload}
	}
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b Round) int { return cmp.Compare(a.m.Throughput, b.m.Throughput) })
	m := sorted[len(sorted)/2].m
	m.Rounds = len(rounds)
	m.ThroughputLow, m.ThroughputHigh = sorted[0].m.Throughput, sorted[len(sorted)-1].m.Throughput
	m.Counts, m.FirstProblem = result.Counts{}, ""
	m.DistinctKeys, m.Effects, m.Duplicates, m.Lost = 0, 0, 0, 0
	for _, r := range rounds {
		m.Counts.Add(r.m.Counts)
		m.DistinctKeys += r.m.DistinctKeys
		m.Effects += r.m.Effects
		m.Duplicates += r.m.Duplicates
		m.Lost += r.m.Lost
		m.FirstProblem = cmp.Or(m.FirstProblem, r.m.FirstProblem)
	}
	return m
}

func latency(h *hdrhistogram.Histogram) result.Latency {
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) }
	return result.Latency{P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: time.Duration(h.Max())}
}
