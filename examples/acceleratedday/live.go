package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

const (
	callers    = 8
	resultSize = 300
	perHour    = 2 // samples
)

// traffic is how many times the ordinary rate arrives at a time of the day: once by
// day, three times in the rush at nine and at six, less than half at night.
func traffic(hour float64) float64 {
	rush := func(at float64) float64 { return math.Exp(-(hour - at) * (hour - at) / 2) }
	after := func(at float64) float64 { return 1 / (1 + math.Exp(-3*(hour-at))) }
	return 0.4 + 0.6*after(6)*(1-after(22)) + 2*(rush(9)+rush(18))
}

// live runs one store through the day.
func live(ctx context.Context, sub *subject, s *settings) (day, error) {
	policy, err := expiry.New(expiry.Rule{Operation: "*", Replay: 2 * s.hour, Dedup: 6 * s.hour})
	if err != nil {
		return day{}, err
	}
	// A lease is short beside an hour, as in life: PostgreSQL looks at a record for the
	// first time when its lease and its replay window would be over.
	store, err := idem.New(sub.backend, &idem.Options{Retention: policy, LeaseTTL: max(s.hour/2, 500*time.Millisecond)})
	if err != nil {
		return day{}, err
	}
	sweeper, err := expiry.NewSweeper(sub.backend, &expiry.SweeperOptions{Interval: max(time.Second, s.hour/2)})
	if err != nil {
		return day{}, err
	}
	ctx, stop := context.WithTimeout(ctx, 24*s.hour)
	defer stop()
	midnight := time.Now()
	l := &load{store: store, rate: s.rate, hour: s.hour, midnight: midnight}
	var all sync.WaitGroup
	all.Go(func() { _ = sweeper.Run(ctx) })
	for i := range callers {
		all.Go(func() { l.call(ctx, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	d := day{store: sub.name}
	tick := time.NewTicker(s.hour / perHour)
	defer tick.Stop()
	for len(d.samples) < 24*perHour-1 && err == nil {
		select {
		case <-tick.C:
			var at sample
			if at, err = observe(ctx, sub, l); err == nil {
				at.clock = time.Since(midnight).Hours() / s.hour.Hours()
				d.samples = append(d.samples, at)
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	stop()
	all.Wait()
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // the day is over
	}
	d.executed, d.retried = l.executed, l.retried
	d.removed, d.bodies = sweeper.Status().Removed, sweeper.Status().Bodies
	return d, errors.Join(err, l.failed)
}

// observe looks at the store, and at the calls since the last look.
func observe(ctx context.Context, sub *subject, l *load) (s sample, err error) {
	s.backlog = -1
	if b, ok := sub.backend.(backend.Backlogger); ok {
		due, err := b.Backlog(ctx)
		if err != nil {
			return s, err
		}
		s.backlog = due.Due
	}
	if s.size, err = sub.size(ctx); err != nil {
		return s, err
	}
	took := l.taken()
	if s.calls = len(took); s.calls > 0 {
		slices.Sort(took)
		s.p50, s.p99 = took[len(took)/2], took[len(took)*99/100]
	}
	return s, nil
}

// load makes the calls of the day.
type load struct {
	store    *idem.Store
	rate     int
	hour     time.Duration
	midnight time.Time

	mu                sync.Mutex
	took              []time.Duration
	keys              []string // of late, for retries
	executed, retried int
	failed            error
}

// call makes calls one after the other until ctx ends. The day says when each is due,
// and not the end of the one before: a slow store would have no rush otherwise.
func (l *load) call(ctx context.Context, r *rand.Rand) {
	for due := l.midnight; ctx.Err() == nil; {
		hour := float64(due.Sub(l.midnight)) / float64(l.hour)
		due = due.Add(time.Duration(r.ExpFloat64() * callers / (float64(l.rate) * traffic(hour)) * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return
		}
		key := l.pick(r)
		begun := time.Now()
		res, err := idem.Execute(ctx, l.store, idem.Scope{Operation: "day.charge"}, idem.Key(key), idem.FingerprintBytes([]byte(key)),
			func(context.Context) ([]byte, error) { return make([]byte, resultSize), nil })
		l.note(ctx, key, time.Since(begun), res.Replayed, err)
	}
}

// pick returns a new key, or one call in five the key of a call before.
func (l *load) pick(r *rand.Rand) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.keys); n > 0 && r.IntN(5) == 0 {
		return l.keys[r.IntN(n)]
	}
	return fmt.Sprintf("%016x", r.Uint64())
}

func (l *load) note(ctx context.Context, key string, took time.Duration, replayed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, idem.ErrInFlight), errors.Is(err, idem.ErrResultExpired):
		l.retried++ // answered, without a result
	case err != nil:
		if ctx.Err() == nil && l.failed == nil {
			l.failed = err
		}
		return
	case replayed:
		l.retried++
	default:
		l.executed++
		if l.keys = append(l.keys, key); len(l.keys) > 1000 {
			l.keys = l.keys[1:]
		}
	}
	l.took = append(l.took, took)
}

// taken returns how long the calls since the last time took.
func (l *load) taken() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	return took
}
