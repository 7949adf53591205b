package idem

import (
	"context"
	"errors"
	"time"
)

// Observer is told what happens in a store, for metrics, traces and logs. Its
// methods are called on the path of the operation and must be quick; they may be
// called from several goroutines at once.
type Observer interface {
	// Start is called at the beginning of a call and may put a span into the
	// context that the rest of the call uses.
	Start(ctx context.Context, scope Scope) context.Context
	// Observe is called for each event.
	Observe(ctx context.Context, e Event)
}

// Event is one thing that happened. It carries no key and no result.
type Event struct {
	Scope    Scope
	Phase    string // one of the Phase constants
	Outcome  string // one of the Outcome constants
	Attempt  int    // 0 where no attempt is concerned
	Duration time.Duration
	Err      error // nil unless something failed
}

// Phases of an [Event].
const (
	PhaseCall      = "call"      // a whole Execute, whatever its mode
	PhaseFn        = "fn"        // one run of the operation
	PhaseComplete  = "complete"  // storing an outcome, with its retries
	PhaseRelease   = "release"   // giving a key back
	PhaseRenew     = "renew"     // one renewal of a lease that failed
	PhaseLeaseLost = "leaseLost" // an attempt learned that it lost its lease
	PhaseTakeOver  = "takeOver"  // an abandoned attempt was taken over
)

// Outcomes of an [Event].
const (
	OutcomeExecuted  = "executed"
	OutcomeReplayed  = "replayed"
	OutcomeInFlight  = "inFlight"
	OutcomeMismatch  = "mismatch"
	OutcomeFailed    = "failed" // permanently
	OutcomeUncertain = "uncertain"
	OutcomeUnknown   = "unknown"
	OutcomeLost      = "lost"
	OutcomeExpired   = "expired" // ErrResultExpired, ErrResultUnavailable
	OutcomeError     = "error"
	OutcomeOK        = "ok"
)

// outcomeOf names the outcome of a whole call.
func outcomeOf(replayed bool, err error) string {
	var failed *FailedError
	switch {
	case err == nil && replayed:
		return OutcomeReplayed
	case err == nil:
		return OutcomeExecuted
	case errors.Is(err, ErrUnresolved): // first: it may wrap any other
		return OutcomeUncertain
	case errors.As(err, &failed):
		return OutcomeFailed
	case errors.Is(err, ErrInFlight):
		return OutcomeInFlight
	case errors.Is(err, ErrFingerprintMismatch):
		return OutcomeMismatch
	case errors.Is(err, ErrLeaseLost):
		return OutcomeLost
	case errors.Is(err, ErrOutcomeUnknown):
		return OutcomeUnknown
	case errors.Is(err, ErrResultExpired), errors.Is(err, ErrResultUnavailable):
		return OutcomeExpired
	}
	return OutcomeError
}

// observed is the observation of one call.
type observed struct {
	c     *call
	ctx   context.Context // as the observer made it
	begun time.Time
	ended bool
}

// observe begins the observation of a call. The caller defers leave, and calls end
// where the call returns.
func (c *call) observe(ctx context.Context) observed {
	o := observed{c: c, ctx: ctx}
	if c.s.o.Observer != nil {
		o.ctx, o.begun = c.s.o.Observer.Start(ctx, c.scope), now()
	}
	return o
}

// end reports how the call ended.
func (o *observed) end(replayed bool, attempt int, err error) {
	o.ended = true
	if o.c.s.o.Observer != nil {
		o.c.event(o.ctx, Event{Phase: PhaseCall, Outcome: outcomeOf(replayed, err), Attempt: attempt, Duration: now().Sub(o.begun), Err: err})
	}
}

// leave reports a call that ended in a panic or Goexit.
func (o *observed) leave() {
	if !o.ended {
		o.end(false, 0, errDidNotReturn)
	}
}

// errDidNotReturn stands in events for a panic or Goexit of the operation.
var errDidNotReturn = errors.New("idem: the operation did not return")

// event reports e to the observer, if there is one.
func (c *call) event(ctx context.Context, e Event) {
	if c.s.o.Observer != nil {
		e.Scope = c.scope
		c.s.o.Observer.Observe(ctx, e)
	}
}
