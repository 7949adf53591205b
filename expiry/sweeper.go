package expiry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// SweeperOptions change how a Sweeper works. The zero value and nil are the defaults.
type SweeperOptions struct {
	// Interval is how long after a round that left nothing due the next one begins, a
	// fifth more or less; a second to a day, zero means a minute. After one that left
	// something the next begins soon, and a sweeper that stands by looks twice as often.
	// It is also the longest round, and the length of the lease, so that another
	// sweeper follows a dead one within two intervals.
	Interval time.Duration
	// Limit is about how many records one batch removes; zero means 1,000. After a
	// batch that failed, smaller ones are tried.
	Limit int
	// Latency returns how long foreground calls take now, such as their p99 of the
	// last second; zero means that nobody knows. It is asked at the end of batches and
	// between rounds. Nil: the sweeper times Gets of its own, while batches run.
	Latency func() time.Duration
	// MaxRise is how far latency may rise during batches, as a multiple of what it is
	// between rounds, before the sweeper slows down; zero means 1.5. A rise of less
	// than two milliseconds slows nothing down.
	MaxRise float64
	// OnRound is called after every round, on the sweeper's goroutine.
	OnRound func(Round)
	// OnFailing is called when FailAfter rounds in a row have failed (zero: 5), and for
	// every further one. What was cut off because Run had to end is no failure.
	OnFailing func(failures int, err error)
	FailAfter int
	// Now is the sweeper's clock; nil means time.Now. Only its own lease and pace go by
	// it: records are judged by the store's clock.
	Now func() time.Time
}

// Round is what one round did.
type Round struct {
	Leading                  bool // false: another sweeper works, the server by itself, or Err says why not
	Removed, Bodies, Batches int
	Took                     time.Duration
	More                     bool // something due is left
	Err                      error
	// Backlog is what was left after the round, where the store can tell.
	Backlog      backend.Backlog
	BacklogKnown bool
}

// SweeperStatus is what a Sweeper has done so far.
type SweeperStatus struct {
	Last                            Round
	Removed, Bodies, Rounds, Errors int64
	Failures                        int     // rounds that failed in a row
	Share                           float64 // of the time of a round in which it works
}

// Sweeper removes what has expired, in small batches, for as long as Run runs. Of
// many sweepers on one store, in any number of processes, one works.
type Sweeper struct {
	b     backend.Backend
	o     SweeperOptions
	lease sweepLease
	pace  pace
	limit int // of the next batch
	run   sync.Mutex

	mu     sync.Mutex
	status SweeperStatus
}

const (
	// stopGrace is how long a batch may go on after Run is told to stop.
	stopGrace = time.Second
	// batchLimit is how long a batch may take before it counts as failed, or an
	// interval, if that is longer. A server that has gone silent fails rounds; it does
	// not stop them from being counted.
	batchLimit = 30 * time.Second
)

// NewSweeper returns a Sweeper on b. It does nothing before Run.
func NewSweeper(b backend.Backend, o *SweeperOptions) (*Sweeper, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: the sweeper has no backend", backend.ErrInvalidRequest)
	}
	s := &Sweeper{b: b}
	if o != nil {
		s.o = *o
	}
	if s.o.Interval == 0 {
		s.o.Interval = time.Minute
	}
	if s.o.Limit == 0 {
		s.o.Limit = 1000
	}
	if s.o.MaxRise == 0 {
		s.o.MaxRise = 1.5
	}
	if s.o.FailAfter == 0 {
		s.o.FailAfter = 5
	}
	if s.o.Now == nil {
		s.o.Now = systemClock
	}
	if s.o.Interval < time.Second || s.o.Interval > 24*time.Hour || s.o.Limit < 0 || s.o.FailAfter < 0 || !(s.o.MaxRise > 1) {
		return nil, fmt.Errorf("%w: a sweeper's interval must be 1s to 24h, its limit and FailAfter positive, and MaxRise above 1", backend.ErrInvalidRequest)
	}
	s.lease = sweepLease{b: b, ttl: s.o.Interval, now: s.o.Now}
	s.pace = pace{share: 0.5, rise: s.o.MaxRise}
	s.limit = s.o.Limit
	return s, nil
}

// Status returns what the sweeper has done so far.
func (s *Sweeper) Status() SweeperStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Run sweeps until ctx ends, and returns nil then: within two seconds, with its
// batch ended and its lease released, provided that the backend heeds contexts. It
// leaves no goroutine.
func (s *Sweeper) Run(ctx context.Context) error {
	if !s.run.TryLock() {
		return errors.New("idem: the sweeper is running already")
	}
	defer s.run.Unlock()
	// A batch that has begun is let end, for a while.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	defer stop()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace/2)
		defer cancel()
		s.lease.release(end)
	}()
	for ctx.Err() == nil {
		r := s.round(ctx, work)
		s.note(r)
		wait := s.o.Interval*4/5 + rand.N(s.o.Interval*2/5)
		switch {
		case r.More && r.Err == nil && r.Leading:
			// A round that was slowed down ends with a breath: only a sample from there
			// can tell a store that is slow by itself from one that the sweeper slows.
			wait = 0
			if s.pace.share < 1 {
				wait = s.o.Interval / 20
			}
		case !r.Leading:
			wait /= 2 // a dead leader's lease is over after one interval: look again soon
		}
		s.idle(ctx, work, wait, true)
	}
	return nil
}

// idle waits and keeps the lease meanwhile. In a rest, when nothing of this sweeper's
// has run for a while, it takes samples of what latency is without it.
func (s *Sweeper) idle(ctx, work context.Context, d time.Duration, rest bool) {
	for step := s.lease.ttl / 4; d > 0 && sleep(ctx, min(d, step)); d -= step {
		if !s.lease.held {
			continue
		}
		if rest {
			s.pace.rest(s.latency(work))
		}
		_, _ = s.lease.keep(work) // the next batch says what is wrong
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// note keeps and reports what a round did.
func (s *Sweeper) note(r Round) {
	s.mu.Lock()
	t := &s.status
	t.Last, t.Rounds, t.Share = r, t.Rounds+1, s.pace.share
	t.Removed, t.Bodies = t.Removed+int64(r.Removed), t.Bodies+int64(r.Bodies)
	t.Failures++
	if r.Err == nil {
		t.Failures = 0
	} else {
		t.Errors++
	}
	failures := t.Failures
	s.mu.Unlock()
	if s.o.OnRound != nil {
		s.o.OnRound(r)
	}
	if failures >= s.o.FailAfter && r.Err != nil && s.o.OnFailing != nil {
		s.o.OnFailing(failures, r.Err)
	}
}
