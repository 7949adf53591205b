package idem

import (
	"context"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// lease is a holder's view of its own lease, and keeps it alive.
//
// A holder must stop counting on its lease before the store does, although the
// two have different clocks. So the lease is counted from the moment at which the
// request that got it was sent, which is before the store read its clock, and
// ends a margin early. It counts as over when either of the holder's clocks says
// so: the monotonic one stands still while a machine is suspended, the wall clock
// can be set (R8).
//
// A short operation costs one timer and no goroutine: renewal runs in the timer's
// own callback, a third of the lease after the last success.
type lease struct {
	c      *call
	ref    backend.Ref
	ttl    time.Duration
	ctx    context.Context         // detached from the caller's, for renewals
	cancel context.CancelCauseFunc // called with ErrLeaseLost when the lease is lost

	mu      sync.Mutex
	sent    time.Time // when the last granted request was sent
	timer   *time.Timer
	lost    bool
	stopped bool
	renew   context.CancelFunc      // of the renewal that is under way
	idle    chan struct{}           // closed when that renewal has ended
	too     context.CancelCauseFunc // see cancelsToo
}

// cancelsToo makes the loss of the lease end another context as well: one that is
// detached from the caller's, whose end may have come before.
func (l *lease) cancelsToo(cancel context.CancelCauseFunc) {
	l.mu.Lock()
	l.too = cancel
	lost := l.lost
	l.mu.Unlock()
	if lost {
		cancel(ErrLeaseLost)
	}
}

// start takes up a lease that was granted to a request sent at sent.
func (l *lease) start(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = sent
	l.timer = time.AfterFunc(l.ttl/3-elapsed(sent), l.tick)
}

// margin is what a holder leaves unused at the end of a lease: a tenth, at most a
// second, which is twice the clock offset that CockroachDB tolerates.
func margin(ttl time.Duration) time.Duration { return min(ttl/10, time.Second) }

// elapsed is the larger of monotonic and wall time since t.
func elapsed(t time.Time) time.Duration {
	n := now()
	return max(n.Sub(t), n.Round(0).Sub(t.Round(0)))
}

// leaseSent returns the moment from which the lease of a grant counts: when the
// request was sent, or earlier where the store granted it to an earlier copy of
// the same request and the record's lease has run since.
func leaseSent(sent time.Time, ttl time.Duration, rec *backend.Record, now time.Time) time.Time {
	if rec.LeaseUntil.IsZero() {
		return sent
	}
	return sent.Add(-max(0, ttl-rec.LeaseUntil.Sub(now)))
}

// leaseOver reports whether a lease of ttl that was asked for at sent is over for
// its holder.
func leaseOver(sent time.Time, ttl time.Duration) bool { return elapsed(sent) >= ttl-margin(ttl) }

// left is how long the holder may still count on the lease; zero once it is lost.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return 0
	}
	return max(0, l.ttl-margin(l.ttl)-elapsed(l.sent))
}

// until is when the lease ends by the holder's clock.
func (l *lease) until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent.Add(l.ttl - margin(l.ttl))
}

// isLost reports whether the lease was lost, by its own count or by the store's
// word.
func (l *lease) isLost() bool {
	l.mu.Lock()
	over := !l.lost && leaseOver(l.sent, l.ttl)
	lost := l.lost || over
	l.mu.Unlock()
	if over {
		l.lose()
	}
	return lost
}

// lose ends the lease and the operation's context, once.
func (l *lease) lose() {
	l.mu.Lock()
	if l.lost || l.stopped {
		l.mu.Unlock()
		return
	}
	l.lost = true
	too := l.too
	l.mu.Unlock()
	l.cancel(ErrLeaseLost)
	if too != nil {
		too(ErrLeaseLost)
	}
	l.c.event(l.ctx, Event{Phase: PhaseLeaseLost, Outcome: OutcomeLost, Err: ErrLeaseLost})
}

// tick is the timer's callback: one renewal, and the time of the next.
func (l *lease) tick() {
	l.mu.Lock()
	if l.stopped || l.lost {
		l.mu.Unlock()
		return
	}
	left := l.ttl - margin(l.ttl) - elapsed(l.sent)
	if left <= 0 { // the timer was late: a suspended machine, a starved process
		l.mu.Unlock()
		l.lose()
		return
	}
	// A try that hangs leaves time for another one within the lease.
	ctx, cancel := context.WithTimeout(l.ctx, min(left, l.ttl/3))
	idle := make(chan struct{})
	l.renew, l.idle = cancel, idle
	l.mu.Unlock()
	defer close(idle)
	defer cancel()

	// A renewal that hangs, on a backend that does not honour its context, must
	// not hide the end of the lease.
	watchdog := time.AfterFunc(left, l.lose)
	defer watchdog.Stop()

	sent := now()
	err := l.c.s.b.Renew(ctx, l.ref, l.ttl)

	l.mu.Lock()
	next := l.ttl / 3
	switch {
	case l.stopped || l.lost:
		l.mu.Unlock()
		return
	case err == nil:
		l.sent = sent
		next -= elapsed(sent)
	case isDefinite(err):
		l.mu.Unlock()
		l.lose()
		return
	default: // the store may come back within the lease: ask again soon
		next = l.ttl / 12
	}
	// The next look is due before the lease is over for its holder, so that its end
	// is noticed when it comes.
	next = min(next, l.ttl-margin(l.ttl)-elapsed(l.sent))
	l.timer.Reset(max(next, time.Millisecond))
	l.mu.Unlock()
	if err != nil {
		l.c.event(l.ctx, Event{Phase: PhaseRenew, Outcome: OutcomeError, Duration: elapsed(sent), Err: err})
	}
}

// stop ends the renewals and waits for the one that is under way, so that nothing
// of a call outlives it.
func (l *lease) stop() {
	l.mu.Lock()
	l.stopped = true
	l.timer.Stop()
	cancel, idle := l.renew, l.idle
	l.mu.Unlock()
	if idle != nil {
		cancel()
		<-idle
	}
}
