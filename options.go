package idem

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// State is what a record says about its key.
type State = backend.State

// The states of a record.
const (
	StateInFlight  = backend.InFlight
	StateCompleted = backend.Completed
	StateFailed    = backend.Failed
	StateUncertain = backend.Uncertain
	StateOpen      = backend.Open
)

// Abandoned says what happens to an attempt whose lease ran out without an
// outcome, after a crash as a rule.
type Abandoned = backend.Abandoned

// The policies for abandoned attempts. They are stored with the reservation, and
// the stricter of the stored and the caller's wins. Asking the world first is
// [RecoverWith].
const (
	// Rerun lets the next caller run the operation again. It is the default.
	Rerun = backend.Rerun
	// Hold turns the key uncertain: nothing runs until Store.Resolve.
	Hold = backend.Hold
)

// Defaults of [Options].
const (
	DefaultLeaseTTL = 30 * time.Second
	DefaultReplay   = expiry.DefaultReplay
	DefaultDedup    = expiry.DefaultDedup
)

// minLease keeps a lease well above the time that one move takes, so that a
// renewal at a third of it has a chance.
const minLease = 10 * time.Millisecond

// Options change how a Store works. The zero value is the default; a nil
// *Options means the same.
type Options struct {
	// Retention says how long a settled key is remembered, by scope and outcome, and
	// which operations' keys carry the time they were issued. Nil means DefaultReplay
	// and DefaultDedup for everything.
	Retention *expiry.Policy
	// Codec turns results into bytes and back; nil means JSON().
	Codec Codec
	// Observer is told what happens; nil means nobody is.
	Observer Observer
	// LeaseTTL is how long an attempt stays in flight without a renewal; zero
	// means DefaultLeaseTTL. It is also how long a crash blocks a key.
	LeaseTTL time.Duration
	// Wait is how long a call waits for another attempt on its key before it fails
	// with ErrInFlight; zero means not at all.
	Wait time.Duration
	// OnAbandoned is Rerun or Hold; zero means Rerun.
	OnAbandoned Abandoned
	// Require is the least that the store must give; New fails otherwise.
	Require backend.Guarantees
}

// complete fills in the defaults and refuses what makes no sense.
func (o *Options) complete() error {
	if o.Codec == nil {
		o.Codec = JSON()
	}
	if n := len(o.Codec.Name()); n == 0 || n > 255 {
		return fmt.Errorf("%w: a codec name of %d bytes; it needs 1 to 255", ErrInvalidOption, n)
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = DefaultLeaseTTL
	}
	if o.OnAbandoned == 0 {
		o.OnAbandoned = Rerun
	}
	return checkTimes(o.LeaseTTL, o.Wait, o.OnAbandoned)
}

func checkTimes(lease, wait time.Duration, policy Abandoned) error {
	switch {
	case lease < minLease:
		return fmt.Errorf("%w: a lease of %v; it must be at least %v", ErrInvalidOption, lease, minLease)
	case wait < 0:
		return fmt.Errorf("%w: a wait of %v; zero means not to wait", ErrInvalidOption, wait)
	case policy != Rerun && policy != Hold:
		return fmt.Errorf("%w: %v; OnAbandoned takes Rerun or Hold, and RecoverWith asks first", ErrInvalidOption, policy)
	}
	return nil
}

// callOptions are the settings of one call.
type callOptions struct {
	lease, wait time.Duration
	policy      Abandoned
	find        func(context.Context) (any, bool, error)
	finds       reflect.Type
	parallel    int
	issued      time.Time
}

// A TxOption changes one call in any mode, transactions included.
type TxOption interface {
	CallOption
	applyTx(*callOptions)
}

// A CallOption changes one call of Execute, ExecuteThenTx or ExecuteAll.
type CallOption interface {
	AllOption
	applyCall(*callOptions)
}

// An AllOption changes one call of ExecuteAll.
type AllOption interface{ applyAll(*callOptions) }

type txOption func(*callOptions)

func (f txOption) applyTx(o *callOptions)   { f(o) }
func (f txOption) applyCall(o *callOptions) { f(o) }
func (f txOption) applyAll(o *callOptions)  { f(o) }

type callOption func(*callOptions)

func (f callOption) applyCall(o *callOptions) { f(o) }
func (f callOption) applyAll(o *callOptions)  { f(o) }

type allOption func(*callOptions)

func (f allOption) applyAll(o *callOptions) { f(o) }

// Wait sets how long the call waits for another attempt on its key before it
// fails with ErrInFlight. Zero means not at all.
func Wait(max time.Duration) TxOption {
	return txOption(func(o *callOptions) { o.wait = max })
}

// IssuedAt says when the key was issued, by the clock of whoever issued it. A key
// without a record that is older than the shortest dedup window that ever applied
// is refused with ErrKeyExpired: it may have been used and forgotten. Where the key
// says itself when it was issued ([expiry.Rule.Issued]), the earlier time counts.
// The zero time means that it is not known.
func IssuedAt(t time.Time) TxOption {
	return txOption(func(o *callOptions) { o.issued = t })
}

// LeaseTTL sets the length of the lease, at least 10 ms.
func LeaseTTL(d time.Duration) CallOption {
	return callOption(func(o *callOptions) { o.lease = d })
}

// OnAbandoned sets the policy for an abandoned attempt: Rerun or Hold.
func OnAbandoned(p Abandoned) CallOption {
	return callOption(func(o *callOptions) { o.policy = p })
}

// RecoverWith gives the call a way to find out whether an abandoned attempt took
// effect. Before such a key is taken over, find is called, without a lease, on
// the context of the call; several callers may ask at once, one of them goes on.
// AttemptFrom in find gives the abandoned attempt, so that a provider can be asked
// about its derived key.
// applied with a value completes the key with that value and fn does not run; not
// applied runs fn. An error leaves the key as it was and comes back inside one that
// matches ErrUnavailable. find is asked about abandoned attempts only, not about a
// key that Uncertain, a panic or Hold made uncertain. With OnAbandoned(Hold), Hold
// wins, the stricter of the two.
//
// T must be the result type of the call, which is checked before anything is
// reserved.
func RecoverWith[T any](find func(context.Context) (v T, applied bool, err error)) CallOption {
	return callOption(func(o *callOptions) {
		o.finds = typeOf[T]()
		o.find = nil
		if find != nil {
			o.find = func(ctx context.Context) (any, bool, error) { return find(ctx) }
		}
	})
}

// Parallel sets how many items ExecuteAll runs at the same time; the default is
// GOMAXPROCS.
func Parallel(n int) AllOption {
	return allOption(func(o *callOptions) { o.parallel = n })
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
