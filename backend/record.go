package backend

import (
	"fmt"
	"time"
)

// State is what a record says about its key. The zero State means that there is
// no record.
type State uint8

// The states of a record.
const (
	// InFlight: an attempt owns the key. Once its lease is over it is abandoned.
	InFlight State = iota + 1
	// Completed: the operation took effect; Body holds its result.
	Completed
	// Failed: the operation is over for good and did not take effect; Body holds
	// the failure.
	Failed
	// Uncertain: nobody but its own late attempt or a person can say whether the
	// operation took effect. It has no window: it stays until it is settled.
	Uncertain
	// Open: released. The key is free, the record keeps fence, attempt number and
	// last token for longer than any request can be delayed.
	Open
)

// String returns the state's name as people read it.
func (s State) String() string {
	switch s {
	case 0:
		return "absent"
	case InFlight:
		return "in flight"
	case Completed:
		return "completed"
	case Failed:
		return "failed"
	case Uncertain:
		return "uncertain"
	case Open:
		return "open"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Abandoned says what happens to an attempt whose lease is over without a
// completion. Higher is stricter; the stricter of the stored and the caller's
// policy wins.
type Abandoned uint8

// The policies for abandoned attempts.
const (
	// Rerun: the next caller takes the key over and runs the operation again.
	Rerun Abandoned = iota + 1
	// Recover: the next caller first asks the world whether the operation took
	// effect, then takes the key over.
	Recover
	// Hold: the key turns uncertain and waits for a person.
	Hold
)

// String returns the policy's name.
func (a Abandoned) String() string {
	switch a {
	case Rerun:
		return "rerun"
	case Recover:
		return "recover"
	case Hold:
		return "hold"
	}
	return fmt.Sprintf("abandoned policy %d", uint8(a))
}

// Stricter returns the stricter of the two policies.
func (a Abandoned) Stricter(b Abandoned) Abandoned { return max(a, b) }

// OpenFor is how long an open record is kept after its release: longer than any
// request can be delayed on its way to the store.
const OpenFor = 10 * time.Minute

// Holder tells the people who have to judge an attempt where it ran: host name,
// process ID and the start of that process. It decides nothing.
type Holder struct {
	Host    string
	PID     int
	Started time.Time
}

// Ref names one attempt: the record and the token of its owner, 128 random bits
// made by the core for this attempt alone.
type Ref struct {
	ID    ID
	Owner [16]byte
}

// Record is what a store knows about a key. The zero Record means absent.
type Record struct {
	Ref
	State       State
	Fingerprint []byte // see MatchFingerprint; nil: none
	// Fence grows with every attempt on the key while the record lives.
	Fence uint64
	// Attempt numbers the attempts for one intent, from 1.
	Attempt int
	// TookOver says that the current attempt took over an abandoned one.
	TookOver bool
	// OnAbandoned is the policy that was stored with the reservation.
	OnAbandoned Abandoned
	Holder      Holder // of the current or last attempt; cleared by completion
	// Body is the stored result, opaque to a backend, which treats nil and empty
	// alike: a completed record without a body is completed all the same. Past
	// ReplayUntil it is nil, and a reader sees BodyExpired.
	Body []byte
	// BodyExpired is set by At on what a reader sees: the replay window is over.
	// It is not stored.
	BodyExpired bool
	// Evidence is what a person gave as the reason of a Resolve.
	Evidence string

	ReservedAt time.Time // when the current or last attempt began
	// LeaseUntil is when an in-flight attempt counts as abandoned. Zero means
	// that no deadline is known: held until Resolve or Forget, never free.
	LeaseUntil  time.Time
	CompletedAt time.Time // zero until completed or failed
	ReplayUntil time.Time // until when Body is kept; zero until completed or failed
	// KnownUntil is when the record reads as absent. Zero means no window: in
	// flight under Hold or Recover, and uncertain.
	KnownUntil time.Time
}

// Expired reports whether the record reads as absent at now. A record without a
// window never expires, nor does one in flight without a lease deadline: what has
// no end is held, not over (R14).
func (r *Record) Expired(now time.Time) bool {
	if r.State == Uncertain || r.State == InFlight && r.LeaseUntil.IsZero() {
		return false
	}
	return r.State != 0 && !r.KnownUntil.IsZero() && !now.Before(r.KnownUntil)
}

// IsAbandoned reports whether the record is in flight and its lease is over at
// now. A record without a lease deadline is held, not abandoned.
func (r *Record) IsAbandoned(now time.Time) bool {
	return r.State == InFlight && !r.LeaseUntil.IsZero() && !now.Before(r.LeaseUntil)
}

// IsLive reports whether the record is in flight and not abandoned at now.
func (r *Record) IsLive(now time.Time) bool {
	return r.State == InFlight && !r.IsAbandoned(now)
}

// At returns the record as a reader sees it at now: the zero Record when it has
// expired, without its body when the replay window is over.
func (r Record) At(now time.Time) Record {
	if r.Expired(now) {
		return Record{}
	}
	if !r.ReplayUntil.IsZero() && !now.Before(r.ReplayUntil) {
		r.Body, r.BodyExpired = nil, true
	}
	return r
}

// Clone returns a copy that shares no memory with r.
func (r Record) Clone() Record {
	r.Fingerprint = clone(r.Fingerprint)
	r.Body = clone(r.Body)
	return r
}

// clone copies b and keeps nil nil, so that a copy equals its original.
func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}
