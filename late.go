package idem

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// checkIssued refuses, before anything is asked, a key that does not say when it was
// issued although its operation declares that it does.
func (c *call) checkIssued() error {
	policy := c.s.o.Retention
	declared := policy.NeedsIssueTime(c.id)
	if declared == expiry.NotDeclared && c.o.issued.IsZero() {
		return nil
	}
	c.timed = true
	_, err := policy.Lateness(c.id, c.o.issued, now())
	if err == nil {
		return nil
	}
	wrong := ErrInvalidKey
	if declared == expiry.ByOption {
		wrong = ErrInvalidOption
	}
	return fmt.Errorf("%w: %v: %s; nothing was run", wrong, c.scope, strings.TrimPrefix(err.Error(), "idem: "))
}

// judge says whether the attempt that was just reserved may start, given when its
// key was issued (R23). The record has been consulted: only an attempt that the
// store has no memory behind is judged, by the store's clock.
//
// A late key is reserved for a moment before it is refused. If the process dies in
// that moment, the attempt is taken over as an abandoned one, which alone would
// run it: so the first takeover judges the key by the time of that reservation.
func (c *call) judge(rec *backend.Record, at time.Time) error {
	switch {
	case !c.timed:
		return nil
	case rec.Attempt == 1:
		if at.IsZero() {
			at = now() // queued statements: the store has not been asked yet
		}
	case rec.TookOver && !c.taken.IsZero():
		at = c.taken
	default:
		return nil
	}
	verdict, err := c.s.o.Retention.Lateness(c.id, c.o.issued, at)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %v: %s; nothing was run", ErrInvalidKey, c.scope, strings.TrimPrefix(err.Error(), "idem: "))
	case verdict == expiry.Late:
		return &callError{sentinel: ErrKeyExpired, scope: c.scope, reason: "the key is older than records are kept, so that nobody can know whether it was used; nothing was run"}
	case verdict == expiry.FromFuture:
		return &callError{sentinel: ErrInvalidKey, scope: c.scope, reason: "the key says that it was issued in the future, by more than clocks may differ; nothing was run"}
	}
	return nil
}

// forgetLate removes the reservation of a key that may not run. Released, it would
// stay as an open record, which passes for memory of the key.
func (c *call) forgetLate(ctx context.Context, rec *backend.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawIn)
	defer cancel()
	begun := now()
	err := c.s.b.Forget(ctx, backend.ForgetRequest{ID: c.id, Fence: rec.Fence, Force: true})
	c.s.waiting.wake(c.id)
	c.event(ctx, Event{Phase: PhaseRelease, Outcome: okOr(err), Attempt: rec.Attempt, Duration: now().Sub(begun), Err: err})
}
