package expiry

import (
	"context"
	"time"

	"github.com/goidem/idem/backend"
)

// round sweeps until nothing is due, for an interval at most.
func (s *Sweeper) round(ctx, work context.Context) (r Round) {
	begun := s.o.Now()
	defer func() {
		r.Took = max(s.o.Now().Sub(begun), 0)
		if r.Err != nil && work.Err() != nil {
			r.Err = nil // it was cut off, and has not failed
		}
	}()
	if e, ok := s.b.(backend.SelfExpirer); ok && e.ExpiresItself() {
		s.backlog(ctx, work, &r)
		return r
	}
	if r.Leading, r.Err = s.lease.keep(work); !r.Leading || r.Err != nil {
		return r
	}
	if !s.pace.known() {
		s.pace.rest(s.latency(work))
	}
	for r.More = true; r.More && ctx.Err() == nil && s.o.Now().Sub(begun) < s.o.Interval; {
		if r.Leading, r.Err = s.lease.keep(work); !r.Leading || r.Err != nil {
			return r // another sweeper has taken over
		}
		done, took, latencies, err := s.batch(work)
		r.Batches, r.Removed, r.Bodies, r.More = r.Batches+1, r.Removed+done.Removed, r.Bodies+done.Bodies, done.More
		if err != nil {
			// What fails with so many records at once, such as against a time limit of the
			// server's, may succeed with fewer, and would fail like this for ever with as many.
			if work.Err() == nil {
				s.limit = max(s.limit/2, 1)
			}
			r.Err = err
			return r
		}
		s.pace.work(latencies)
		if r.More {
			s.idle(ctx, work, max(s.pace.pause(took), leastPause), false)
		}
	}
	s.limit = min(2*s.limit, s.o.Limit)
	s.backlog(ctx, work, &r)
	return r
}

func (s *Sweeper) backlog(ctx, work context.Context, r *Round) {
	if l, ok := s.b.(backend.Backlogger); ok && ctx.Err() == nil {
		work, cancel := context.WithTimeout(work, batchLimit)
		defer cancel()
		if r.Backlog, r.Err = l.Backlog(work); r.Err == nil {
			r.BacklogKnown = true
		}
	}
}

// batch is one Expire, with samples of the latency that others have beside it.
func (s *Sweeper) batch(work context.Context) (done backend.ExpireResult, took time.Duration, latencies []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(work, max(s.o.Interval, batchLimit))
	defer cancel()
	var probed chan []time.Duration
	if s.o.Latency == nil {
		// Afterwards would be too late: what stood in the way of others is over then.
		probed = make(chan []time.Duration)
		beside, stop := context.WithCancel(ctx)
		defer func() {
			stop()
			latencies = <-probed
		}()
		go func() { probed <- s.probe(ctx, beside) }()
	}
	begun := s.o.Now()
	done, err = s.b.Expire(ctx, backend.ExpireRequest{Limit: s.limit})
	took = max(s.o.Now().Sub(begun), 0)
	if s.o.Latency != nil {
		latencies = []time.Duration{s.o.Latency()}
	}
	return done, took, latencies, err
}

// probe times Gets until beside ends. The last one is let end: without the slow ones
// the others would look fast.
func (s *Sweeper) probe(ctx, beside context.Context) (all []time.Duration) {
	for len(all) < paceSamples {
		all = append(all, s.get(ctx))
		if !sleep(beside, probeEvery) {
			break
		}
	}
	return all
}

// latency is a sample from between batches.
func (s *Sweeper) latency(ctx context.Context) time.Duration {
	if s.o.Latency != nil {
		return s.o.Latency()
	}
	ctx, cancel := context.WithTimeout(ctx, s.lease.ttl/4)
	defer cancel()
	return s.get(ctx)
}

// get times a Get; zero means that it did not succeed. How soon an error comes says
// nothing about how long calls take.
func (s *Sweeper) get(ctx context.Context) time.Duration {
	at := s.o.Now()
	if _, err := s.b.Get(ctx, leaseID()); err != nil {
		return 0
	}
	return s.o.Now().Sub(at)
}
