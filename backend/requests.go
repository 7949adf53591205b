package backend

import (
	"fmt"
	"time"
)

// Outcome says what a Reserve found. It is not an error: all of these are
// ordinary answers.
type Outcome uint8

// The outcomes of a Reserve.
const (
	// Acquired: this attempt owns the key. Also the answer to a repeated copy of
	// the reserve while the attempt is in flight, with the same fence and lease.
	Acquired Outcome = iota + 1
	// Existing: the record stands as returned and was not changed, or was turned
	// uncertain under Hold.
	Existing
	// Mismatch: the record is bound to another fingerprint. The returned record
	// carries no body.
	Mismatch
	// Gone: TakeOver named a fence, but there is no record any more. Reserve
	// plainly.
	Gone
	// Busy: another caller's open transaction holds the key, its record cannot be
	// seen yet, and Wait is over.
	Busy
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Acquired:
		return "acquired"
	case Existing:
		return "existing"
	case Mismatch:
		return "mismatch"
	case Gone:
		return "gone"
	case Busy:
		return "busy"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// ReserveRequest asks for the ownership of a key.
type ReserveRequest struct {
	Ref
	Fingerprint []byte        // stored form, see MatchFingerprint; nil: none
	TTL         time.Duration // length of the lease, positive
	// KnownFor is how long an abandoned record stays known after the end of its
	// lease, positive. It applies under Rerun only: the others have no window.
	KnownFor time.Duration
	// ReplayFor is how long a result will probably be replayed, as far as the caller
	// knows before the operation has run; zero: no idea. It decides nothing. A store
	// that indexes when a record has to be looked at again fixes that time here,
	// so that the completion need not touch the index.
	ReplayFor   time.Duration
	OnAbandoned Abandoned
	// TakeOver is the fence of an open, abandoned or expired record that the
	// caller saw; the reserve happens only over that very record, and only if it
	// is still open, abandoned or expired by the store's clock. Zero: only create.
	TakeOver uint64
	// Recovered says that the caller has asked the world about the abandoned
	// attempt. Without it a record under Recover is not taken over.
	Recovered bool
	// Durable asks that the reservation itself survives a crash of the process
	// that makes it, where the backend would keep it in memory otherwise.
	Durable bool
	Holder  Holder
	// Wait bounds how long the backend waits for another caller's open
	// transaction on the key. Zero or less means fail fast: a few milliseconds.
	Wait time.Duration
}

// Validate checks the request; errors match ErrInvalidKey or ErrInvalidRequest.
func (r *ReserveRequest) Validate() error {
	if err := r.Ref.Validate(); err != nil {
		return err
	}
	switch {
	case r.TTL <= 0:
		return fmt.Errorf("%w: a lease of %v; it must be positive", ErrInvalidRequest, r.TTL)
	case r.KnownFor <= 0:
		return fmt.Errorf("%w: an abandoned record known for %v; it must be positive", ErrInvalidRequest, r.KnownFor)
	case r.OnAbandoned < Rerun || r.OnAbandoned > Hold:
		return fmt.Errorf("%w: %v; it must be Rerun, Recover or Hold", ErrInvalidRequest, r.OnAbandoned)
	case len(r.Fingerprint) > MaxFingerprint || len(r.Fingerprint)%digestSize != 0:
		return fmt.Errorf("%w: a stored fingerprint of %d bytes; it holds up to %d digests of %d bytes", ErrInvalidRequest, len(r.Fingerprint), MaxFingerprint/digestSize, digestSize)
	case len(r.Holder.Host) > MaxHost || !validText(r.Holder.Host):
		return fmt.Errorf("%w: a host name of %d bytes; it must be at most %d bytes of valid UTF-8 without NUL", ErrInvalidRequest, len(r.Holder.Host), MaxHost)
	}
	return nil
}

// Validate checks the ID and that there is a token at all: a constant zero token
// would make every attempt the owner of every other.
func (ref Ref) Validate() error {
	if err := ref.ID.Validate(); err != nil {
		return err
	}
	if ref.Owner == ([16]byte{}) {
		return fmt.Errorf("%w: the owner token is zero; it must be 16 random bytes", ErrInvalidRequest)
	}
	return nil
}

// ValidateRenew checks the arguments of a Renew.
func (ref Ref) ValidateRenew(ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("%w: a renewal for %v; it must be positive", ErrInvalidRequest, ttl)
	}
	return ref.Validate()
}

// Reservation answers a ReserveRequest.
type Reservation struct {
	Outcome Outcome
	// Record is the record after the step; zero for Gone and Busy. An expired
	// record is returned too, because TakeOver needs its fence, but without body.
	Record Record
	// Now is the store's clock at the decision; Record's times are to be compared
	// with it and with no other clock. It may be zero for Busy, which has no Record.
	Now time.Time
}

// CompleteRequest settles an attempt.
type CompleteRequest struct {
	Ref
	State State  // Completed, Failed or Uncertain
	Body  []byte // at most MaxBody bytes
	// ReplayFor and KnownFor are the two windows, counted from the completion;
	// both positive, ReplayFor at most KnownFor. Ignored for Uncertain, which has
	// no window.
	ReplayFor, KnownFor time.Duration
}

// Validate checks the request; errors match ErrInvalidKey or ErrInvalidRequest.
func (r *CompleteRequest) Validate() error {
	if err := r.Ref.Validate(); err != nil {
		return err
	}
	if len(r.Body) > MaxBody {
		return fmt.Errorf("%w: a result of %d bytes; at most %d can be stored", ErrInvalidRequest, len(r.Body), MaxBody)
	}
	switch r.State {
	case Uncertain:
		return nil
	case Completed, Failed:
		return validWindows(r.ReplayFor, r.KnownFor)
	}
	return fmt.Errorf("%w: completion to %v; it must be completed, failed or uncertain", ErrInvalidRequest, r.State)
}

func validWindows(replay, known time.Duration) error {
	if replay <= 0 || known < replay {
		return fmt.Errorf("%w: windows of %v (replay) and %v (dedup); both must be positive and replay at most dedup", ErrInvalidRequest, replay, known)
	}
	return nil
}

// ResolveRequest settles a record by a person's word.
type ResolveRequest struct {
	ID    ID
	Fence uint64 // as seen by the person
	// Applied: the operation took effect, and Body is its result. Otherwise it
	// did not, and the key opens again.
	Applied             bool
	Body                []byte
	ReplayFor, KnownFor time.Duration // for Applied, as in CompleteRequest
	Evidence            string        // why the person is sure; at most MaxEvidence bytes
}

// Validate checks the request; errors match ErrInvalidKey or ErrInvalidRequest.
func (r *ResolveRequest) Validate() error {
	if err := r.ID.Validate(); err != nil {
		return err
	}
	if len(r.Body) > MaxBody {
		return fmt.Errorf("%w: a result of %d bytes; at most %d can be stored", ErrInvalidRequest, len(r.Body), MaxBody)
	}
	if len(r.Evidence) > MaxEvidence {
		return fmt.Errorf("%w: evidence of %d bytes; at most %d are kept", ErrInvalidRequest, len(r.Evidence), MaxEvidence)
	}
	if !validText(r.Evidence) {
		return fmt.Errorf("%w: evidence must be valid UTF-8 without NUL bytes", ErrInvalidRequest)
	}
	if r.Applied {
		return validWindows(r.ReplayFor, r.KnownFor)
	}
	return nil
}

// ForgetRequest deletes a record.
type ForgetRequest struct {
	ID    ID
	Fence uint64 // as seen by the person
	Force bool   // also a live attempt
}

// Validate checks the request; errors match ErrInvalidKey.
func (r *ForgetRequest) Validate() error { return r.ID.Validate() }

// Filter selects records for List. Empty fields select everything; strings are
// compared as they are, without patterns.
type Filter struct {
	Tenant    string
	Operation string
	State     State
	OlderThan time.Duration // the attempt began at least this long ago
}

// Match reports whether the record passes the filter at now.
func (f *Filter) Match(r *Record, now time.Time) bool {
	return (f.Tenant == "" || f.Tenant == r.ID.Tenant) &&
		(f.Operation == "" || f.Operation == r.ID.Operation) &&
		(f.State == 0 || f.State == r.State) &&
		(f.OlderThan <= 0 || !r.ReservedAt.After(now.Add(-f.OlderThan)))
}

// ExpireRequest bounds one round of removal.
type ExpireRequest struct {
	// Limit is about how many records one call removes; zero means 1,000. A
	// backend that drops whole groups of expired records at once may remove more.
	Limit int
}

// ExpireResult tells what one round removed.
type ExpireResult struct {
	Removed int  // records
	Bodies  int  // results dropped from records that stay known
	More    bool // something due is left; call again
}
