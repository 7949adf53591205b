package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// Errors of idem, matched with errors.Is. Each says what happened to the
// operation; [Advise] says what to do.
var (
	// ErrInFlight: another attempt is running the operation; see [InFlightError].
	ErrInFlight = backend.ErrInFlight
	// ErrFingerprintMismatch: the key was used before with another request. The
	// operation was not run and nothing was changed.
	ErrFingerprintMismatch = errors.New("idem: key was used for another request")
	// ErrLeaseLost: this attempt no longer owns the key; its outcome was not
	// recorded. Calling again with the same key tells what stands.
	ErrLeaseLost = backend.ErrLeaseLost
	// ErrUnresolved: nobody can say whether the operation took effect; the key
	// waits for Store.Resolve.
	ErrUnresolved = errors.New("idem: unresolved")
	// ErrOutcomeUnknown: this call cannot say what was recorded. Calling again
	// with the same key is safe and learns the truth.
	ErrOutcomeUnknown = backend.ErrOutcomeUnknown
	// ErrResultExpired: the operation took effect and its result is no longer
	// kept.
	ErrResultExpired = errors.New("idem: result has expired")
	// ErrResultUnavailable: the operation took effect, but its result could not be
	// stored (too large, or refused by the codec).
	ErrResultUnavailable = errors.New("idem: result was not storable")
	// ErrKeyExpired: the key is older than records are kept. Whether it was used
	// cannot be known any more; the operation was not run. See [IssuedAt].
	ErrKeyExpired = errors.New("idem: key has expired")
	// ErrInvalidKey: scope or key break the limits, or the key does not say when it
	// was issued although its operation declares so; nothing was stored.
	ErrInvalidKey = backend.ErrInvalidKey
	// ErrNoFingerprint: the zero Fingerprint was passed; use NoFingerprint to go
	// without one on purpose.
	ErrNoFingerprint = errors.New("idem: no fingerprint")
	// ErrInvalidOption: an option, a resolution or an argument makes no sense;
	// nothing was stored.
	ErrInvalidOption = errors.New("idem: invalid option")
	// ErrUnavailable: the store could not be asked; the operation was not run.
	ErrUnavailable = errors.New("idem: store unavailable")
	// ErrNotFound: there is no record of the key.
	ErrNotFound = backend.ErrNotFound
	// ErrStale: the record is not the one that was looked at; look again.
	ErrStale = backend.ErrStale
	// ErrCorruptRecord: the stored record cannot be read; the operation was not
	// run.
	ErrCorruptRecord = backend.ErrCorruptRecord
	// ErrUnknownVersion: the record was written by a newer version; the operation
	// was not run.
	ErrUnknownVersion = backend.ErrUnknownVersion
	// ErrRetryTransaction: the caller's own transaction cannot see a newer record;
	// roll it back and run it again.
	ErrRetryTransaction = backend.ErrRetryTransaction
	// ErrNested: a call inside ExecuteTx would need a second transaction of the
	// same store. Use ExecuteIn with the transaction at hand.
	ErrNested = errors.New("idem: nested in a transaction")
	// ErrGuarantee: the store gives less than Options.Require asks for.
	ErrGuarantee = backend.ErrGuarantee
)

// InFlightError says that another attempt is running the operation and how long
// its lease lasts at most. It matches ErrInFlight.
type InFlightError struct {
	Scope Scope
	// RetryAfter is when the holder's lease ends unless it is renewed; an answer
	// is often there much sooner.
	RetryAfter time.Duration

	cause error // what ended the wait, if the caller's context did
}

// Error names the scope and the time.
func (e *InFlightError) Error() string {
	text := fmt.Sprintf("idem: in flight: %v is being run by another caller; its lease ends in %v unless it is renewed; try again then", e.Scope, e.RetryAfter.Round(time.Millisecond))
	if e.cause != nil {
		text += ": the wait ended early: " + e.cause.Error()
	}
	return text
}

// Unwrap returns the error of the context that ended a wait.
func (e *InFlightError) Unwrap() error { return e.cause }

// Is reports whether target is ErrInFlight.
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// FailedError is a permanent failure of the operation, the same on the call that
// met it and on every replay. Two of them are equal (errors.Is) when their codes
// are.
type FailedError struct {
	Code    string // chosen by the operation: "card_declined"
	Message string // for people; does not take part in comparison
}

// Error returns code and message.
func (e *FailedError) Error() string {
	switch {
	case e.Code == "" && e.Message == "":
		return "idem: failed for good"
	case e.Code == "":
		return "idem: failed: " + e.Message
	case e.Message == "":
		return "idem: failed: " + e.Code
	}
	return "idem: failed: " + e.Code + ": " + e.Message
}

// Is reports whether target is a *FailedError with the same code.
func (e *FailedError) Is(target error) bool {
	t, ok := target.(*FailedError)
	return ok && t.Code == e.Code
}

// Permanent says that the operation is over for good and did not take effect. The
// failure is stored and returned, as a *[FailedError], to this call and to every
// retry. Only the error that fn itself returns counts: one that is wrapped in
// another error is an ordinary error.
func Permanent(code string, err error) error { return &permanentError{code: code, err: err} }

type permanentError struct {
	code string
	err  error
}

func (e *permanentError) Error() string {
	if e.err == nil {
		return e.code
	}
	return e.code + ": " + e.err.Error()
}

func (e *permanentError) Unwrap() error { return e.err }

// failed is the stored form, cut to what fits beside any result.
func (e *permanentError) failed() *FailedError {
	f := &FailedError{Code: e.code}
	if e.err != nil {
		f.Message = e.err.Error()
	}
	return f
}

// Uncertain says that fn cannot tell whether its effect took place: a request was
// sent and the answer was lost. The key turns uncertain, nothing runs again until
// [Store.Resolve] (RecoverWith is not asked), and this call returns an error that
// matches ErrUnresolved and err. Unlike Permanent it also counts when it is wrapped
// in another error: taking it for an ordinary one would run the operation again.
func Uncertain(err error) error { return &uncertainError{err: err} }

type uncertainError struct{ err error }

func (e *uncertainError) Error() string {
	if e.err == nil {
		return "outcome uncertain"
	}
	return "outcome uncertain: " + e.err.Error()
}

func (e *uncertainError) Unwrap() error { return e.err }

// asUncertain returns the uncertainty that fn's error carries, wrapped or not, with
// the whole error as its cause; nil if there is none. What a nested call of idem
// returned does not count: its own key is protected already.
func asUncertain(err error) *uncertainError {
	var e *uncertainError
	if !errors.As(err, &e) {
		return nil
	}
	if err == error(e) {
		return e
	}
	return &uncertainError{err: err}
}

// unmarked hides the mark of Uncertain that err carries somewhere inside and lets
// everything else through.
func unmarked(err error) error {
	var e *uncertainError
	if err == nil || !errors.As(err, &e) {
		return err
	}
	return withoutMark{err}
}

type withoutMark struct{ err error }

func (e withoutMark) Error() string        { return e.err.Error() }
func (e withoutMark) Is(target error) bool { return errors.Is(e.err, target) }
func (e withoutMark) As(target any) bool {
	if _, mark := target.(**uncertainError); mark {
		return false
	}
	return errors.As(e.err, target)
}

// callError gives a sentinel its scope, a reason and a cause. Its text never
// contains the key or a stored result.
type callError struct {
	sentinel error
	scope    Scope
	reason   string
	cause    error
}

func (e *callError) Error() string {
	text := e.sentinel.Error() + ": " + e.scope.String()
	if e.reason != "" {
		text += ": " + e.reason
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *callError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.sentinel}
	}
	return []error{e.sentinel, e.cause}
}

// Advice is what a caller does about an error.
type Advice uint8

// The answers of [Advise].
const (
	// AdviceNone: no error, or one that idem knows nothing about, such as fn's
	// own, after which the key is free.
	AdviceNone Advice = iota
	// AdviceRetry: try again with the same key; [RetryAfter] says when.
	AdviceRetry
	// AdviceStop: the operation is over; trying again changes nothing.
	AdviceStop
	// AdviceChange: the call is wrong; change it before trying again.
	AdviceChange
	// AdviceAsk: a person has to look.
	AdviceAsk
)

// String returns the advice in words.
func (a Advice) String() string {
	switch a {
	case AdviceRetry:
		return "retry with the same key"
	case AdviceStop:
		return "stop"
	case AdviceChange:
		return "change the call"
	case AdviceAsk:
		return "ask a person"
	}
	return "none"
}

// Advise says what to do about an error of this package.
func Advise(err error) Advice {
	if err == nil {
		return AdviceNone
	}
	var failed *FailedError
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case is(ErrUnresolved, ErrCorruptRecord, ErrUnknownVersion, ErrKeyExpired): // first: it may wrap any other
		return AdviceAsk
	case is(ErrOutcomeUnknown): // whatever its cause looks like
		return AdviceRetry
	case errors.As(err, &failed), is(ErrResultExpired, ErrResultUnavailable):
		return AdviceStop
	case is(ErrFingerprintMismatch, ErrInvalidKey, ErrNoFingerprint, ErrInvalidOption, ErrNested, ErrGuarantee, ErrStale, backend.ErrInvalidRequest):
		return AdviceChange
	case is(ErrInFlight, ErrLeaseLost, ErrUnavailable, ErrRetryTransaction, context.Canceled, context.DeadlineExceeded):
		return AdviceRetry
	}
	return AdviceNone
}

// RetryAfter says how long to wait before trying again: what an [InFlightError]
// knows, and zero otherwise.
func RetryAfter(err error) time.Duration {
	var busy *InFlightError
	if errors.As(err, &busy) {
		return busy.RetryAfter
	}
	return 0
}
