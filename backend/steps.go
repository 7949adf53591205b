package backend

import (
	"bytes"
	"time"
)

// A Step is what one move does to one record.
type Step struct {
	Next    Record // the record after the move; the zero Record means: delete it
	Changed bool   // false: nothing is to be written
}

func keep(cur Record) Step    { return Step{Next: cur} }
func change(next Record) Step { return Step{Next: next, Changed: true} }

// Apply decides a reserve over cur, the record as stored (zero: none), at the
// store's time now. seed is the least fence that a new attempt may get: 0 where
// the store relies on the record alone, or the next value of a store-wide
// counter, which keeps fences growing after a record is gone.
//
// The order of the tests is R7's, and each closes a trace that the model in
// internal/leasemodel shows when the test is left out.
func (r *ReserveRequest) Apply(cur Record, now time.Time, seed uint64) (Step, Reservation, error) {
	if cur.State == 0 {
		if r.TakeOver != 0 {
			// The record that the caller saw is gone. Creating one here would let a
			// delayed copy of an old takeover start an attempt.
			return keep(cur), Reservation{Outcome: Gone, Now: now}, nil
		}
		next := r.begin(Record{}, now, max(seed, 1))
		next.Attempt = 1
		return change(next), Reservation{Outcome: Acquired, Record: next, Now: now}, nil
	}

	expired := cur.Expired(now)
	if !expired && cur.State != Open {
		match, err := MatchFingerprint(cur.Fingerprint, r.Fingerprint)
		if err != nil {
			return keep(cur), Reservation{}, err
		}
		if !match {
			seen := cur
			seen.Body = nil
			return keep(cur), Reservation{Outcome: Mismatch, Record: seen, Now: now}, nil
		}
	}
	existing := func(rec Record) Reservation {
		if expired {
			// Its fence is needed for a takeover. Its result is nobody's any more,
			// least of all a caller's whose fingerprint was not compared.
			rec.Body = nil
		} else {
			rec = rec.At(now)
		}
		return Reservation{Outcome: Existing, Record: rec, Now: now}
	}
	if cur.Owner == r.Owner {
		// A repeated copy of this attempt's own reserve: granted again while in
		// flight, with its fence and its first lease, and answered from the state
		// otherwise, so that a copy that arrives late cannot reopen anything.
		if cur.State == InFlight && !expired {
			return keep(cur), Reservation{Outcome: Acquired, Record: cur, Now: now}, nil
		}
		return keep(cur), existing(cur), nil
	}
	abandoned := cur.IsAbandoned(now)
	free := expired || cur.State == Open || abandoned
	if !free || r.TakeOver == 0 || r.TakeOver != cur.Fence {
		return keep(cur), existing(cur), nil
	}

	if abandoned && !expired {
		switch cur.OnAbandoned.Stricter(r.OnAbandoned) {
		case Hold:
			held := cur
			held.State, held.KnownUntil, held.OnAbandoned = Uncertain, time.Time{}, Hold
			return change(held), existing(held), nil
		case Recover:
			if !r.Recovered {
				return keep(cur), existing(cur), nil
			}
		}
	}
	next := r.begin(cur, now, max(cur.Fence+1, seed))
	next.Attempt, next.TookOver = 1, false
	if !expired {
		next.Attempt = cur.Attempt + 1
		next.TookOver = abandoned
	}
	return change(next), Reservation{Outcome: Acquired, Record: next, Now: now}, nil
}

// begin returns the in-flight record of a new attempt.
func (r *ReserveRequest) begin(cur Record, now time.Time, fence uint64) Record {
	next := Record{
		Ref:         r.Ref,
		State:       InFlight,
		Fingerprint: clone(r.Fingerprint),
		Fence:       fence,
		OnAbandoned: r.OnAbandoned.Stricter(cur.liveAbandoned(now)),
		Holder:      r.Holder,
		ReservedAt:  now,
		LeaseUntil:  now.Add(r.TTL),
	}
	if next.OnAbandoned == Rerun {
		next.KnownUntil = next.LeaseUntil.Add(r.KnownFor)
	}
	return next
}

// liveAbandoned is the policy that a takeover inherits: that of an attempt which
// was abandoned. A released or expired record passes none on.
func (r *Record) liveAbandoned(now time.Time) Abandoned {
	if r.State == InFlight && !r.Expired(now) {
		return r.OnAbandoned
	}
	return 0
}

// Apply decides a completion. The record must still name the token, in flight or
// uncertain, whether its lease has run out or not (R12).
func (r *CompleteRequest) Apply(cur Record, now time.Time) (Step, Record, error) {
	if cur.State == 0 || cur.Expired(now) || cur.Owner != r.Owner {
		return keep(cur), Record{}, ErrLeaseLost
	}
	switch cur.State {
	case InFlight:
	case Uncertain:
		if r.State == Uncertain {
			return keep(cur), cur, nil
		}
	case Completed, Failed:
		// A repeated copy: this token's completion stands.
		return keep(cur), cur.At(now), nil
	default:
		return keep(cur), Record{}, ErrLeaseLost
	}
	next := cur
	next.State, next.Body = r.State, clone(r.Body)
	if r.State == Uncertain {
		next.KnownUntil = time.Time{}
		return change(next), next, nil
	}
	next.Holder, next.LeaseUntil = Holder{}, time.Time{}
	next.settle(now, r.ReplayFor, r.KnownFor)
	return change(next), next, nil
}

// settle starts the two windows, from now (R22).
func (r *Record) settle(now time.Time, replay, known time.Duration) {
	r.CompletedAt = now
	r.ReplayUntil, r.KnownUntil = now.Add(replay), now.Add(known)
}

// ApplyRelease decides a release by ref at now: it opens the key if ref owns it in
// flight, refuses it with ErrLeaseLost if the attempt has turned uncertain, and
// changes nothing otherwise.
//
// It does not look at the lease: whether an attempt that lost its lease may still
// release is the core's decision (R10, R11), because only the core knows whether
// the operation was started.
func (ref Ref) ApplyRelease(cur Record, now time.Time) (Step, error) {
	if cur.State == 0 || cur.Expired(now) || cur.Owner != ref.Owner {
		return keep(cur), nil
	}
	switch cur.State {
	case InFlight:
		return change(cur.open(now)), nil
	case Uncertain:
		return keep(cur), ErrLeaseLost
	}
	return keep(cur), nil
}

// open returns the released form of a record: free for any fingerprint, but with
// fence, attempt number and last token, so that a late copy of an old move meets
// them instead of an empty place.
func (r *Record) open(now time.Time) Record {
	next := *r
	next.State, next.Fingerprint, next.Body = Open, nil, nil
	next.LeaseUntil, next.CompletedAt, next.ReplayUntil = time.Time{}, time.Time{}, time.Time{}
	next.KnownUntil = now.Add(OpenFor)
	return next
}

// ApplyRenew decides a renewal by ref at now. It acts in flight only: a renewal
// that arrives after a takeover, a completion or a hold must not bring the
// attempt back.
func (ref Ref) ApplyRenew(cur Record, now time.Time, ttl time.Duration) (Step, error) {
	if cur.State != InFlight || cur.Expired(now) || cur.Owner != ref.Owner {
		return keep(cur), ErrLeaseLost
	}
	until := now.Add(ttl)
	if cur.LeaseUntil.IsZero() || !until.After(cur.LeaseUntil) {
		return keep(cur), nil
	}
	next := cur
	if !cur.KnownUntil.IsZero() {
		next.KnownUntil = until.Add(cur.KnownUntil.Sub(cur.LeaseUntil))
	}
	next.LeaseUntil = until
	return change(next), nil
}

// Apply decides a person's word on a record.
func (r *ResolveRequest) Apply(cur Record, now time.Time) (Step, Record, error) {
	if cur.State == 0 || cur.Expired(now) {
		return keep(cur), Record{}, ErrNotFound
	}
	if cur.Fence != r.Fence {
		return keep(cur), Record{}, ErrStale
	}
	var resolvedBefore bool
	switch cur.State {
	case InFlight:
		if !cur.LeaseUntil.IsZero() && !cur.IsAbandoned(now) {
			return keep(cur), Record{}, ErrInFlight
		}
	case Completed:
		resolvedBefore = r.Applied && cur.Owner == [16]byte{} && bytes.Equal(cur.Body, r.Body)
	case Open:
		resolvedBefore = !r.Applied
	}
	if resolvedBefore {
		return keep(cur), cur.At(now), nil
	}
	if cur.State != InFlight && cur.State != Uncertain {
		return keep(cur), Record{}, ErrStale
	}
	var next Record
	if r.Applied {
		next = cur
		next.State, next.Body = Completed, clone(r.Body)
		// The token goes: a late completion of the attempt must not pass for the
		// one that a person has just written in its place.
		next.Owner, next.Holder, next.LeaseUntil = [16]byte{}, Holder{}, time.Time{}
		next.settle(now, r.ReplayFor, r.KnownFor)
	} else {
		next = cur.open(now)
	}
	next.Evidence = r.Evidence
	return change(next), next, nil
}

// Apply decides a deletion.
func (r *ForgetRequest) Apply(cur Record, now time.Time) (Step, error) {
	switch {
	case cur.State == 0 || cur.Expired(now):
		return keep(cur), ErrNotFound
	case cur.Fence != r.Fence:
		return keep(cur), ErrStale
	case cur.IsLive(now) && !r.Force:
		return keep(cur), ErrInFlight
	}
	return change(Record{}), nil
}

// ApplyExpire decides what the passing of time does to a stored record: gone past
// KnownUntil, without its body past ReplayUntil, else unchanged. A sweeper calls
// it again in the step that removes (R24).
func ApplyExpire(cur Record, now time.Time) Step {
	if cur.Expired(now) {
		return change(Record{})
	}
	if len(cur.Body) > 0 && !cur.ReplayUntil.IsZero() && !now.Before(cur.ReplayUntil) {
		next := cur
		next.Body = nil
		return change(next)
	}
	return keep(cur)
}
