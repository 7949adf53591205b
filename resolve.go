package idem

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/goidem/idem/backend"
)

// Record is what a store knows about a key, for people and tools.
type Record struct {
	Scope    Scope
	Key      Key
	State    State
	Attempt  int
	Fence    uint64 // to be passed to Resolve and Forget
	TookOver bool   // the attempt took over an abandoned one
	// OnAbandoned is the policy that was stored with the reservation; the value 2,
	// "recover", was made by RecoverWith.
	OnAbandoned Abandoned
	Holder      backend.Holder // of an unsettled attempt
	// Result is the stored result as the codec made it; nil where there is none.
	// Codec names the codec.
	Result   []byte
	Codec    string
	Failure  *FailedError // of a failed record
	Evidence string       // given to Resolve

	ReservedAt  time.Time
	LeaseUntil  time.Time // zero unless in flight; zero in flight: held until a person decides
	CompletedAt time.Time
	ReplayUntil time.Time
	KnownUntil  time.Time // zero: no window
}

// Filter selects records for [Store.List]. Empty fields select everything;
// strings are compared as they are, without patterns.
type Filter struct {
	Tenant    string
	Operation string
	State     State
	OlderThan time.Duration // the attempt began at least this long ago
}

// Get returns the record of a key as it stands now, or ErrNotFound.
func (s *Store) Get(ctx context.Context, scope Scope, key Key) (Record, error) {
	rec, err := s.get(ctx, scope, key)
	if err != nil {
		return Record{}, err
	}
	return s.record(&rec), nil
}

func (s *Store) get(ctx context.Context, scope Scope, key Key) (backend.Record, error) {
	id := makeID(scope, key)
	if err := id.Validate(); err != nil {
		return backend.Record{}, err
	}
	rec, err := s.b.Get(ctx, id)
	return rec, s.moveError(scope, err)
}

// moveError gives an error of the backend its scope.
func (s *Store) moveError(scope Scope, err error) error {
	if err == nil {
		return nil
	}
	for _, known := range [...]error{ErrNotFound, ErrStale, ErrInFlight, ErrCorruptRecord, ErrUnknownVersion, ErrOutcomeUnknown} {
		if errors.Is(err, known) {
			cause := err
			if err == known {
				cause = nil
			}
			return &callError{sentinel: known, scope: scope, cause: cause}
		}
	}
	if errors.Is(err, ErrInvalidKey) || errors.Is(err, backend.ErrInvalidRequest) {
		return err
	}
	return &callError{sentinel: ErrUnavailable, scope: scope, cause: err}
}

// record turns a backend's record into one for people.
func (s *Store) record(rec *backend.Record) Record {
	r := Record{
		Scope: Scope{Tenant: rec.ID.Tenant, Operation: rec.ID.Operation}, Key: Key(rec.ID.Key),
		State: rec.State, Attempt: rec.Attempt, Fence: rec.Fence, TookOver: rec.TookOver,
		OnAbandoned: rec.OnAbandoned, Holder: rec.Holder, Evidence: rec.Evidence,
		ReservedAt: rec.ReservedAt, LeaseUntil: rec.LeaseUntil, CompletedAt: rec.CompletedAt,
		ReplayUntil: rec.ReplayUntil, KnownUntil: rec.KnownUntil,
	}
	e, err := parseEnvelope(rec.Body)
	if err != nil {
		return r
	}
	r.Codec = e.codec
	switch e.kind {
	case kindResult:
		r.Result = e.data
	case kindFailure, kindFailureCode:
		var failed *FailedError
		if errors.As(s.decodeOutcome(r.Scope, rec, new(struct{})), &failed) {
			r.Failure = failed
		}
	}
	return r
}

// List yields the records that match f, in no particular order. It holds nothing
// in the store between two records, so records that change meanwhile may be seen
// in either form or not at all. It ends at the first error, an unreadable record
// included.
func (s *Store) List(ctx context.Context, f Filter) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for rec, err := range s.b.List(ctx, backend.Filter(f)) {
			if err != nil {
				yield(Record{}, s.moveError(Scope{Tenant: f.Tenant, Operation: f.Operation}, err))
				return
			}
			if !yield(s.record(&rec), nil) {
				return
			}
		}
	}
}

// Lookup returns the result of a key without running anything: Result.Replayed is
// always true. Besides the errors of a replay it returns ErrNotFound where there
// is no record or only a released one, ErrInFlight and ErrUnresolved.
func Lookup[T any](ctx context.Context, s *Store, scope Scope, key Key) (Result[T], error) {
	rec, err := s.get(ctx, scope, key)
	if err != nil {
		return Result[T]{}, err
	}
	var value T
	switch rec.State {
	case StateOpen:
		return Result[T]{Attempt: rec.Attempt}, &callError{sentinel: ErrNotFound, scope: scope, reason: "the last attempt gave the key back"}
	case StateInFlight:
		return Result[T]{Attempt: rec.Attempt}, &InFlightError{Scope: scope, RetryAfter: max(0, rec.LeaseUntil.Sub(now()))}
	case StateUncertain:
		return Result[T]{Attempt: rec.Attempt}, &callError{sentinel: ErrUnresolved, scope: scope, reason: "the key waits for a person to resolve it"}
	}
	if err := s.decodeOutcome(scope, &rec, &value); err != nil {
		var none T
		return resultOf(none, true, &rec), err
	}
	return resultOf(value, true, &rec), nil
}

// Resolution is a person's word on an uncertain key. Use [Applied] or
// [NotApplied]; the zero value is refused.
type Resolution struct {
	set, applied bool
	result       any
	evidence     string
}

// Applied says that the operation took effect, with this result: retries are
// given it. A nil result stands for an operation that returns nothing. evidence
// says why the person is sure; it is kept with the record, at most 1,024 bytes.
// result must have the type that the call returns; nobody can check that here, and
// retries of a call with another type get ErrCorruptRecord.
func Applied(result any, evidence string) Resolution {
	return Resolution{set: true, applied: true, result: result, evidence: evidence}
}

// NotApplied says that the operation did not take effect and that the attempt
// which ran it (fence, start and host are in the [Record]) is dead or fenced off:
// the key opens, and the next call runs the operation.
func NotApplied(evidence string) Resolution {
	return Resolution{set: true, evidence: evidence}
}

// Resolve settles an uncertain or abandoned key. fence is the one of the record
// that the person looked at; if another attempt has begun or the record has moved
// on since, nothing changes and the error is ErrStale. A live attempt is refused
// with ErrInFlight.
func (s *Store) Resolve(ctx context.Context, scope Scope, key Key, fence uint64, r Resolution) error {
	if !r.set {
		return fmt.Errorf("%w: an empty Resolution; use Applied or NotApplied", ErrInvalidOption)
	}
	id := makeID(scope, key)
	if err := s.checkMove(ctx, scope, id); err != nil {
		return err
	}
	req := backend.ResolveRequest{ID: id, Fence: fence, Applied: r.applied, Evidence: r.evidence}
	if r.applied {
		keep := s.o.Retention.For(id, StateCompleted)
		req.Body = s.encodeResult(id, r.result)
		req.ReplayFor, req.KnownFor = keep.Replay, keep.Dedup
		if noBody(r.result) {
			req.ReplayFor = keep.Dedup
		}
	}
	_, err := s.b.Resolve(ctx, req)
	s.waiting.wake(id)
	return s.moveError(scope, err)
}

// ForgetOptions change a Forget.
type ForgetOptions struct {
	// Force also forgets a live attempt. Its operation goes on, its outcome is
	// lost (ErrLeaseLost), and the next call runs the operation beside it.
	Force bool
}

// Forget deletes the record of a key: the next call with the key runs the
// operation as if it had never happened. fence is the one of the record that the
// person looked at (ErrStale otherwise). A live attempt is refused with
// ErrInFlight unless forced. A nil o means no force.
func (s *Store) Forget(ctx context.Context, scope Scope, key Key, fence uint64, o *ForgetOptions) error {
	id := makeID(scope, key)
	if err := s.checkMove(ctx, scope, id); err != nil {
		return err
	}
	err := s.b.Forget(ctx, backend.ForgetRequest{ID: id, Fence: fence, Force: o != nil && o.Force})
	s.waiting.wake(id)
	return s.moveError(scope, err)
}

// checkMove refuses bad keys, and moves from inside a transaction of this store,
// which some backends could only queue behind that very transaction.
func (s *Store) checkMove(ctx context.Context, scope Scope, id backend.ID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	for f := frameFrom(ctx); f != nil; f = f.parent {
		if f.tx && f.open(s) {
			return &callError{sentinel: ErrNested, scope: scope, reason: "it would wait for the transaction that it runs in; call it afterwards"}
		}
	}
	return nil
}
