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
	case errors.As(err, &failed):
		return OutcomeFailed
	case errors.Is(err, ErrInFlight):
		return OutcomeInFlight
	case errors.Is(err, ErrFingerprintMismatch):
		return OutcomeMismatch
	case errors.Is(err, ErrUnresolved):
		return OutcomeUncertain
	case errors.Is(err, ErrLeaseLost):
		return OutcomeLost
	case errors.Is(err, ErrOutcomeUnknown):
		return OutcomeUnknown
	case errors.Is(err, ErrResultExpired), errors.Is(err, ErrResultUnavailable):
		return OutcomeExpired
	}
	return OutcomeError
}

// observe begins the observation of a call; the returned function ends it.
func (c *call) observe(ctx context.Context) (context.Context, func(replayed bool, attempt int, err error)) {
	o := c.s.o.Observer
	if o == nil {
		return ctx, func(bool, int, error) {}
	}
	ctx = o.Start(ctx, c.scope)
	begun := now()
	return ctx, func(replayed bool, attempt int, err error) {
		c.event(ctx, Event{Phase: PhaseCall, Outcome: outcomeOf(replayed, err), Attempt: attempt, Duration: now().Sub(begun), Err: err})
	}
}

// event reports e to the observer, if there is one.
func (c *call) event(ctx context.Context, e Event) {
	if c.s.o.Observer != nil {
		e.Scope = c.scope
		c.s.o.Observer.Observe(ctx, e)
	}
}
