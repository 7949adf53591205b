package workload

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/goidem/idem/bench/result"
)

// set is a set of operation numbers.
type set []uint64

func (s *set) add(n uint64) {
	for n/64 >= uint64(len(*s)) {
		*s = append(*s, make([]uint64, max(1024, len(*s)))...)
	}
	(*s)[n/64] |= 1 << (n % 64)
}

func (s set) has(n uint64) bool { return n/64 < uint64(len(s)) && s[n/64]&(1<<(n%64)) != 0 }

func (s set) size() (n int64) {
	for _, word := range s {
		n += int64(bits.OnesCount64(word))
	}
	return n
}

// tally adds up what the callers noted and holds it against the ledger.
func (d *drive) tally(ctx context.Context, workers []*worker) (result.Measurement, error) {
	var m result.Measurement
	var ended time.Duration
	latencies, lags := newHistogram(), newHistogram()
	var counts [outcomes]int64
	var done, maybe set // keys that were answered, and keys that may have been executed
	for _, w := range workers {
		latencies.Merge(w.latency)
		if w.lag != nil {
			lags.Merge(w.lag)
		}
		ended = max(ended, w.ended)
		if m.FirstProblem == "" && w.problem != nil {
			m.FirstProblem = w.problem.Error()
		}
		for n, o := range w.log.all {
			counts[o]++
			p := d.stream.draws(n)
			key := d.stream.key(n, d.stream.kind(n, &p), &p)
			switch o {
			case executed, replayed, dropped:
				done.add(key)
			case unknown, failed:
				maybe.add(key)
			}
		}
	}
	m.Elapsed = ended
	m.Counts = result.Counts{
		Executed: counts[executed], Replayed: counts[replayed], Dropped: counts[dropped],
		InFlight: counts[inFlight], Mismatch: counts[mismatch], Unknown: counts[unknown], Errors: counts[failed],
	}
	if behind := d.neverStarted(workers); behind > 0 {
		m.Counts.Errors += behind
		m.FirstProblem = fmt.Sprintf("%d operations were due and never started: the rate is beyond what %d callers can do", behind, len(workers))
	}
	if ended > 0 {
		m.Throughput = float64(counts[executed]+counts[replayed]+counts[dropped]) / ended.Seconds()
		m.ThroughputLow, m.ThroughputHigh = m.Throughput, m.Throughput
	}
	m.Latency, m.Lag = latency(latencies), latency(lags)

	m.DistinctKeys = done.size()
	var present int64
	err := effects(ctx, d.runner.Effects(), d.stream.tag, func(n uint64, times int) {
		m.Effects += int64(times)
		m.Duplicates += int64(times - 1)
		switch {
		case done.has(n):
			present++
		case maybe.has(n):
			m.DistinctKeys++
		}
	})
	if err != nil {
		return m, fmt.Errorf("workload: counting the effects: %w", err)
	}
	m.Lost = done.size() - present
	return m, nil
}

// neverStarted is how many operations of an open loop were due within its length
// and were given up.
func (d *drive) neverStarted(workers []*worker) int64 {
	if !d.open || d.length <= 0 {
		return 0
	}
	var started int64
	for _, w := range workers {
		started += w.log.size()
	}
	due := int64(d.length.Seconds() * d.stream.spec.Rate)
	if d.limit > 0 {
		due = min(due, int64(d.limit))
	}
	if missing := due - started; missing > 1 { // one for rounding
		return missing
	}
	return 0
}
