package idem

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// call is one Execute, in any mode, without its type parameters. Its request is
// part of it: a call that ends in a replay is one allocation of ours.
type call struct {
	s     *Store
	scope Scope
	id    backend.ID
	hash  Fingerprint
	print [storedFingerprint]byte
	req   backend.ReserveRequest
	sent  time.Time // when req was sent last, on the holder's clock
	o     callOptions
	joins bool // ExecuteIn: the transaction is the caller's
	timed bool // it is known when the key was issued
	// taken is when the abandoned attempt began that this call takes over, if it was
	// the first on the key; see judge.
	taken time.Time

	retain struct{ completed, failed, abandoned expiry.Retention }
}

func newCall(s *Store, scope Scope, key Key, hash Fingerprint) (*call, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: no store", ErrInvalidOption)
	}
	c := &call{s: s, scope: scope, id: makeID(scope, key), hash: hash}
	if err := c.id.Validate(); err != nil {
		return nil, err
	}
	if err := hash.Err(); err != nil {
		return nil, err
	}
	c.o = callOptions{lease: s.o.LeaseTTL, wait: s.o.Wait, policy: s.o.OnAbandoned}
	return c, nil
}

func makeID(scope Scope, key Key) backend.ID {
	return backend.ID{Tenant: scope.Tenant, Operation: scope.Operation, Key: string(key)}
}

// check refuses the call while nothing has happened yet: options, retention,
// nesting, and a context that is already over.
func (c *call) check(ctx context.Context, result reflect.Type) error {
	if err := checkTimes(c.o.lease, c.o.wait, c.o.policy); err != nil {
		return err
	}
	if c.o.finds != nil {
		if c.o.find == nil {
			return fmt.Errorf("%w: RecoverWith without a function", ErrInvalidOption)
		}
		if c.o.finds != result {
			return fmt.Errorf("%w: RecoverWith finds a %v, the call returns a %v", ErrInvalidOption, c.o.finds, result)
		}
	}
	retention := c.s.o.Retention
	c.retain.completed = retention.For(c.id, StateCompleted)
	c.retain.failed = retention.For(c.id, StateFailed)
	c.retain.abandoned = retention.For(c.id, StateInFlight)
	if err := c.checkIssued(); err != nil {
		return err
	}
	if err := c.s.checkNesting(ctx, c.scope, c.id, c.joins); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &callError{sentinel: ErrUnavailable, scope: c.scope, reason: "the context was over before anything was asked", cause: err}
	}
	return nil
}

// policy is the policy that is stored with the reservation.
func (c *call) policy() Abandoned {
	if c.o.find != nil {
		return c.o.policy.Stricter(backend.Recover)
	}
	return c.o.policy
}

// A grant is what a call gets from the store: the right to run, or the settled
// record to replay.
type grant struct {
	rec      backend.Record
	now      time.Time // store's clock
	acquired bool
	found    bool // RecoverWith found that the operation took effect
	value    any  // what it found
}

// reserver is the one step in which lease mode and transactions differ: it tries
// to get the key, and in a transaction to do all the work with it.
type reserver func(ctx context.Context, r *backend.ReserveRequest) (backend.Reservation, error)

// acquire asks for the key until there is an answer: ownership, a settled record,
// or an error. It takes over what is open, expired or abandoned, always by
// compare-and-set on the fence that it saw, and waits as the caller allows.
func (c *call) acquire(ctx context.Context, try reserver) (grant, error) {
	req := &c.req
	*req = backend.ReserveRequest{
		Ref:         backend.Ref{ID: c.id, Owner: newOwner()},
		Fingerprint: c.hash.stored(c.print[:0]),
		TTL:         c.o.lease,
		KnownFor:    c.retain.abandoned.Dedup,
		ReplayFor:   c.retain.completed.Replay,
		OnAbandoned: c.policy(),
		Holder:      c.s.holder,
	}
	wait := newWaiting(&c.s.waiting, c.id, c.o.wait)
	defer wait.done()
	g := grant{}
	for races := 0; ; {
		req.Wait = wait.left()
		c.sent = now()
		res, err := try(ctx, req)
		if err != nil {
			return grant{}, err
		}
		g.rec, g.now = res.Record, res.Now
		rec := &g.rec

		retryAfter := 50 * time.Millisecond
		switch res.Outcome {
		case backend.Acquired:
			g.acquired = true
			g.found = g.found && rec.TookOver // not if the attempt was over otherwise by then
			return g, nil
		case backend.Mismatch:
			return grant{}, &callError{sentinel: ErrFingerprintMismatch, scope: c.scope, reason: "nothing was run; use a new key for a new request"}
		case backend.Gone:
			req.TakeOver, req.Recovered, g.found, g.value = 0, false, false, nil
			if races++; races < maxRaces {
				continue
			}
		case backend.Existing:
			again, err := c.existing(ctx, &g)
			switch {
			case err != nil:
				return grant{}, err
			case again:
				if races++; races < maxRaces {
					continue
				}
			case rec.State != StateInFlight:
				return g, nil
			case !rec.LeaseUntil.IsZero():
				retryAfter = rec.LeaseUntil.Sub(res.Now)
			default:
				retryAfter = time.Minute // no deadline is known; only a person frees it
			}
		}
		// In flight, behind an open transaction, or lost too many races for a free
		// key in a row: wait for a change.
		races = 0
		more, err := wait.next(ctx, retryAfter)
		if err != nil {
			return grant{}, &InFlightError{Scope: c.scope, RetryAfter: max(retryAfter, time.Millisecond), cause: err}
		}
		if !more {
			return grant{}, &InFlightError{Scope: c.scope, RetryAfter: max(retryAfter, time.Millisecond)}
		}
	}
}

// maxRaces bounds how often a call goes for a free key in a row and finds that
// somebody was faster, before it counts as waiting.
const maxRaces = 16

// existing looks at a record that stands in the way. again means that the request
// was changed to take the record over. Otherwise the record is settled, or in
// flight and to be waited for.
func (c *call) existing(ctx context.Context, g *grant) (again bool, err error) {
	req, rec := &c.req, &g.rec
	if rec.State == StateOpen || rec.Expired(g.now) {
		// What RecoverWith found about an earlier attempt says nothing about this one.
		req.TakeOver, req.Recovered, g.found, g.value = rec.Fence, false, false, nil
		c.taken = time.Time{}
		return true, nil
	}
	switch rec.State {
	case StateUncertain:
		return false, c.unresolved("it is not known whether the operation took effect; the key waits for a person to resolve it")
	case StateInFlight:
		if !rec.IsAbandoned(g.now) {
			return false, nil
		}
	default:
		return false, nil
	}
	if rec.OnAbandoned.Stricter(req.OnAbandoned) == backend.Recover && !(req.Recovered && req.TakeOver == rec.Fence) {
		if c.o.find == nil {
			return false, c.unresolved("an abandoned attempt asks to be looked into first; pass RecoverWith, or Resolve the key")
		}
		seen := c.attempt(rec, nil)
		inner := new(fnContext)
		c.enter(inner, ctx, false, &seen)
		value, applied, err := c.o.find(inner)
		inner.frame.ended.Store(true)
		if err != nil {
			return false, &callError{sentinel: ErrUnavailable, scope: c.scope, reason: "RecoverWith could not find out what became of the abandoned attempt; nothing was run", cause: err}
		}
		req.Recovered, g.found, g.value = true, applied, value
	}
	req.TakeOver, c.taken = rec.Fence, time.Time{}
	if rec.Attempt == 1 {
		c.taken = rec.ReservedAt
	}
	return true, nil
}

// waitsForResolve is the error of a call whose own outcome is uncertain. The cause
// is fn's error without the mark that Uncertain put on it: in an outer operation it
// must not count a second time.
func (c *call) waitsForResolve(cause error) error {
	return &callError{sentinel: ErrUnresolved, scope: c.scope, reason: "it is not known whether the operation took effect; the key waits for a person to resolve it", cause: unmarked(cause)}
}

func (c *call) unresolved(reason string) error {
	return &callError{sentinel: ErrUnresolved, scope: c.scope, reason: reason}
}

// storeError turns an error of the backend into one for the caller. done says what
// did not happen: nothing was run, or nothing was committed.
func (c *call) storeError(ctx context.Context, done string, err error) error {
	switch {
	case errors.Is(err, ErrInvalidKey), errors.Is(err, backend.ErrInvalidRequest):
		return err
	case errors.Is(err, ErrCorruptRecord), errors.Is(err, ErrUnknownVersion), errors.Is(err, ErrRetryTransaction):
		return &callError{sentinel: sentinelOf(err), scope: c.scope, reason: done, cause: err}
	case ctx.Err() != nil:
		return &callError{sentinel: ErrUnavailable, scope: c.scope, reason: "the context ended; " + done, cause: ctx.Err()}
	}
	return &callError{sentinel: ErrUnavailable, scope: c.scope, reason: done, cause: notRun{err}}
}

// notRun is the cause of a reserve that failed. Whether the key was granted may be
// unknown; what became of the operation is not: it was not run, and the error must
// not match ErrOutcomeUnknown.
type notRun struct{ err error }

func (e notRun) Error() string        { return e.err.Error() }
func (e notRun) Is(target error) bool { return target != ErrOutcomeUnknown && errors.Is(e.err, target) }
func (e notRun) As(target any) bool   { return errors.As(e.err, target) }

func sentinelOf(err error) error {
	for _, s := range [...]error{ErrCorruptRecord, ErrUnknownVersion, ErrRetryTransaction} {
		if errors.Is(err, s) {
			return s
		}
	}
	return ErrUnavailable
}

// isDefinite reports whether an error of a move says for certain that the move
// did not happen and that sending it again would not help.
func isDefinite(err error) bool {
	if errors.Is(err, backend.ErrTransactionEnded) {
		return true // of the move, not of what the operation did
	}
	if errors.Is(err, ErrOutcomeUnknown) {
		return false // whatever its cause looks like
	}
	for _, s := range [...]error{ErrLeaseLost, ErrInvalidKey, backend.ErrInvalidRequest, ErrCorruptRecord, ErrUnknownVersion} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}
