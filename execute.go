package idem

import (
	"context"
	"errors"
	"time"

	"github.com/goidem/idem/backend"
)

// Limits of the work that goes on after the caller's context has ended.
const (
	recordFor  = 5 * time.Second        // storing an outcome (R10)
	withdrawIn = 500 * time.Millisecond // giving back a key that was never used
	oneTry     = 250 * time.Millisecond // less time than this is not worth counting
)

// execute is Execute behind its checks: reserve, run, record.
func execute[T any](ctx context.Context, c *call, fn func(context.Context) (T, error)) (Result[T], error) {
	return underLease(ctx, c, func(a *running) (Result[T], error) {
		value, err := run(a, fn)
		if err != nil {
			return failed(a, value, err)
		}
		return finish(a, value, false)
	})
}

// underLease gets the key and calls attempt as its owner, or answers from what is
// known already: a settled record, or what RecoverWith found.
func underLease[T any](ctx context.Context, c *call, attempt func(*running) (Result[T], error)) (Result[T], error) {
	g, err := c.acquire(ctx, c.reserve)
	if err != nil {
		return Result[T]{}, err
	}
	if !g.acquired {
		return replay[T](c, &g)
	}
	owned := g // what outlives this function is paid for by owners only, not by replays
	a := c.start(ctx, &owned)
	defer a.end()
	if g.found {
		value, _ := g.value.(T)
		return finish(a, value, true)
	}
	return attempt(a)
}

// failed settles an attempt whose operation returned err. A stored failure has the
// same result on this call as on a replay: no value, and the times.
func failed[T any](a *running, value T, err error) (Result[T], error) {
	rec, err := a.fail(err)
	if rec.State == StateFailed {
		return resultOf(*new(T), false, &rec), err
	}
	return Result[T]{Value: value, Attempt: a.rec.Attempt}, err
}

// finish stores the result of an attempt.
func finish[T any](a *running, value T, replayed bool) (Result[T], error) {
	v := forCodec(&value)
	rec, err := a.complete(backend.Completed, a.c.s.encodeResult(a.c.id, v), a.c.replayFor(v), a.c.retain.completed.Dedup)
	if err != nil {
		return Result[T]{Value: value, Replayed: replayed, Attempt: a.rec.Attempt}, err
	}
	return resultOf(value, replayed, &rec), nil
}

// replayFor is how long a result is kept. One without a body is replayed as long
// as the key is known (R22).
func (c *call) replayFor(v any) time.Duration {
	if noBody(v) {
		return c.retain.completed.Dedup
	}
	return c.retain.completed.Replay
}

func resultOf[T any](value T, replayed bool, rec *backend.Record) Result[T] {
	return Result[T]{
		Value: value, Replayed: replayed, Attempt: rec.Attempt,
		CompletedAt: rec.CompletedAt, ReplayUntil: rec.ReplayUntil, KnownUntil: rec.KnownUntil,
	}
}

// replay answers from a settled record.
func replay[T any](c *call, g *grant) (Result[T], error) {
	var value T
	if err := c.s.decodeOutcome(c.scope, &g.rec, &value); err != nil {
		var none T // a decoder may have filled in half of the value
		return resultOf(none, true, &g.rec), err
	}
	return resultOf(value, true, &g.rec), nil
}

// reserve is the reserver of lease mode.
func (c *call) reserve(ctx context.Context, r *backend.ReserveRequest) (backend.Reservation, error) {
	res, err := c.s.b.Reserve(ctx, *r)
	if err != nil {
		if !isDefinite(err) {
			// Nobody knows whether the key was granted. It is given back, because fn
			// was not started and will not be (R10).
			c.withdraw(ctx, r.Ref)
		}
		return res, c.storeError(ctx, "nothing was run", err)
	}
	if res.Outcome == backend.Acquired && leaseOver(leaseSent(c.sent, c.o.lease, &res.Record, res.Now), c.o.lease) {
		// Granted too late: by the holder's clock the lease is over already, and
		// somebody else may be about to take the key over.
		c.withdraw(ctx, r.Ref)
		return res, &callError{sentinel: ErrUnavailable, scope: c.scope, reason: "the key was granted too late to be used; nothing was run"}
	}
	if res.Outcome == backend.Acquired {
		if err := c.judge(&res.Record, res.Now); err != nil {
			c.forgetLate(ctx, &res.Record)
			return res, err
		}
	}
	return res, nil
}

// withdraw releases a key whose operation was not started, on a context of its
// own. It may fail: then the lease runs out.
func (c *call) withdraw(ctx context.Context, ref backend.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawIn)
	defer cancel()
	begun := now()
	err := c.s.b.Release(ctx, ref)
	c.s.waiting.wake(c.id)
	c.event(ctx, Event{Phase: PhaseRelease, Outcome: okOr(err), Duration: now().Sub(begun), Err: err})
}

func okOr(err error) string {
	if err != nil {
		return OutcomeError
	}
	return OutcomeOK
}

// running is an attempt that owns its key under a lease. All that belongs to it
// is one allocation.
type running struct {
	c        *call
	ref      backend.Ref
	rec      *backend.Record
	detached context.Context // of the bookkeeping
	ctx      fnContext       // of the operation
	lease    lease
	attempt  Attempt
}

// start begins an attempt: its context, its lease.
func (c *call) start(ctx context.Context, g *grant) *running {
	inner, cancel := context.WithCancelCause(ctx)
	a := &running{c: c, ref: g.rec.Ref, rec: &g.rec, detached: context.WithoutCancel(ctx)}
	a.lease = lease{c: c, ref: a.ref, ttl: c.o.lease, ctx: a.detached, cancel: cancel}
	a.attempt = c.attempt(a.rec, &a.lease)
	c.enter(&a.ctx, inner, false, &a.attempt)
	a.lease.start(leaseSent(c.sent, c.o.lease, &g.rec, g.now))
	if g.rec.TookOver {
		c.event(ctx, Event{Phase: PhaseTakeOver, Outcome: OutcomeOK, Attempt: g.rec.Attempt})
	}
	return a
}

// end stops what belongs to the attempt and wakes who waits for its key.
func (a *running) end() {
	a.ctx.frame.ended.Store(true)
	a.lease.stop()
	a.lease.cancel(nil)
	a.c.s.waiting.wake(a.c.id)
}

// run calls fn on this goroutine. A panic or Goexit goes on up as it came: there
// is no recover here, only a deferred look at whether fn returned, which sees
// both.
func run[T any](a *running, fn func(context.Context) (T, error)) (value T, err error) {
	begun := now()
	returned := false
	defer func() {
		seen := err
		if !returned {
			a.abort()
			seen = errDidNotReturn
		}
		a.c.event(&a.ctx, Event{Phase: PhaseFn, Outcome: okOr(seen), Attempt: a.rec.Attempt, Duration: now().Sub(begun), Err: seen})
	}()
	value, err = fn(&a.ctx)
	returned = true
	return value, err
}

// abort settles an attempt whose operation ended in a panic or Goexit: nobody
// knows how far it came. Under Rerun it may run again at once, and waiting a whole
// lease would add nothing; under the stricter policies the key turns uncertain.
func (a *running) abort() {
	if a.lease.isLost() {
		return
	}
	if a.c.policy() == Rerun && a.rec.OnAbandoned == Rerun {
		a.release()
		return
	}
	a.settle(backend.CompleteRequest{Ref: a.ref, State: backend.Uncertain})
}

// fail settles an attempt whose operation returned err, and returns the error for
// the caller, with the record where a failure was stored.
func (a *running) fail(err error) (backend.Record, error) {
	var none backend.Record
	if e := asUncertain(err); e != nil {
		if _, cerr := a.settle(backend.CompleteRequest{Ref: a.ref, State: backend.Uncertain}); cerr != nil {
			return none, cerr
		}
		return none, a.c.waitsForResolve(e.err)
	}
	if e, ok := err.(*permanentError); ok {
		f := e.failed()
		rec, cerr := a.complete(backend.Failed, a.c.s.encodeFailure(a.c.id, f), a.c.retain.failed.Dedup, a.c.retain.failed.Dedup)
		if cerr != nil {
			return none, cerr
		}
		// The answer is read back from the stored form, so that this call and every
		// replay get an equal error, cut text included.
		return rec, a.c.s.decodeOutcome(a.c.scope, &rec, new(struct{}))
	}
	if a.lease.isLost() {
		// Nothing is released: the key may be somebody else's by now, and the policy
		// for abandoned attempts decides.
		if errors.Is(err, context.Canceled) {
			return none, &callError{sentinel: ErrLeaseLost, scope: a.c.scope, reason: "the operation was cancelled", cause: err}
		}
		return none, err
	}
	a.release()
	return none, err
}

// complete stores a settled outcome.
func (a *running) complete(state State, body []byte, replay, dedup time.Duration) (backend.Record, error) {
	return a.settle(backend.CompleteRequest{Ref: a.ref, State: state, Body: body, ReplayFor: replay, KnownFor: dedup})
}

// settle stores an outcome, on a context detached from the caller's, and does not
// give up while the lease lasts, up to recordFor: the work is done, and only the
// record is missing. The lease is renewed meanwhile.
func (a *running) settle(r backend.CompleteRequest) (backend.Record, error) {
	begun := now()
	var rec backend.Record
	err := a.persist(func(ctx context.Context) (err error) {
		rec, err = a.c.s.b.Complete(ctx, r)
		return err
	})
	outcome := OutcomeOK
	switch {
	case err == nil:
	case errors.Is(err, ErrLeaseLost):
		outcome = OutcomeLost
		err = &callError{sentinel: ErrLeaseLost, scope: a.c.scope, reason: "the operation ended, but the key had passed to another attempt; its outcome was not recorded"}
	default:
		outcome = OutcomeUnknown
		err = &callError{sentinel: ErrOutcomeUnknown, scope: a.c.scope, reason: "the operation was run, its outcome may not be recorded; ask again with the same key", cause: err}
	}
	a.c.event(a.detached, Event{Phase: PhaseComplete, Outcome: outcome, Attempt: a.rec.Attempt, Duration: now().Sub(begun), Err: err})
	return rec, err
}

// release gives the key back after the operation failed for now. The caller gets
// the operation's error whatever happens here; a release that fails lets the lease
// run out.
func (a *running) release() {
	begun := now()
	err := a.persist(func(ctx context.Context) error { return a.c.s.b.Release(ctx, a.ref) })
	a.c.event(a.detached, Event{Phase: PhaseRelease, Outcome: okOr(err), Attempt: a.rec.Attempt, Duration: now().Sub(begun), Err: err})
}

// persist sends a move until it succeeds, is refused for certain, or the time for
// it is over: the smaller of the lease left and recordFor. A lease that is lost, or
// nearly, leaves time for one good try, because nobody may have taken the key over
// yet (R12).
func (a *running) persist(move func(context.Context) error) error {
	limit := min(a.lease.left(), recordFor)
	if limit < oneTry {
		limit = min(a.lease.ttl, recordFor)
	}
	ctx, cancel := context.WithTimeout(a.detached, limit)
	defer cancel()
	var last error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := move(ctx)
		if err == nil || isDefinite(err) {
			return err
		}
		if ctx.Err() != nil && last != nil {
			err = last // why it did not work says more than that time is up
		}
		last = err
		if a.lease.isLost() {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
