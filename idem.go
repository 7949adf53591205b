// Package idem lets an operation take effect once for one intent, and gives every
// retry the first result.
//
// A caller names the intent with a [Key] inside a [Scope] and wraps the operation
// in [Execute]. idem reserves the key, runs the operation, stores its result and
// answers every later call with the same key from the store. Backends are
// interchangeable: package memory for tests, package bolt for one machine.
//
// # Which promise you have
//
// [Execute] runs the operation under a lease: record and effect are two writes. A
// crash between them leaves an abandoned attempt, and the policy (see
// [OnAbandoned] and [RecoverWith]) decides what happens next. The operation may
// then run twice, which is why [Attempt.DeriveKey] hands one identity down to the
// systems that it calls.
//
// [ExecuteTx] runs the operation inside a transaction of the store itself: record
// and effect commit together or not at all. That is the only mode in which an
// effect happens once without any help from the effect.
//
// [ExecuteThenTx] is for effects in two worlds: a call to a provider under a
// lease, then one commit of its local consequences together with the record.
//
// # Errors
//
// What the operation returns comes back unwrapped. Errors of idem match the
// sentinels of this package with errors.Is. [Advise] answers the one question
// that a caller has: try again with the same key, stop, change something, or ask
// a person.
//
// # Caveats
//
// A lease does not stop a process that stands still: an operation that goes on
// after its context was cancelled may act beside its successor. Pass
// [Attempt.Fence] to systems that can refuse an older number.
//
// Everything in this package is safe for concurrent use.
package idem

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goidem/idem/backend"
)

// Key names one intent. The caller chooses it and uses the same one for every
// retry of that intent: 1 to 255 bytes of UTF-8 without NUL.
type Key string

// JoinKey makes one key out of several parts so that different parts never make
// the same key: parts are joined with "/", and "/" and "%" inside a part are
// escaped. JoinKey("a/b", "c") and JoinKey("a", "b/c") differ.
func JoinKey(parts ...string) Key {
	escape := strings.NewReplacer("%", "%25", "/", "%2F")
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape.Replace(p)
	}
	return Key(strings.Join(escaped, "/"))
}

// Scope is where a key is unique: the same key in two scopes names two intents.
type Scope struct {
	Tenant    string // whose intent; may be empty, at most 128 bytes
	Operation string // what is done, such as "billing.invoice"; 1 to 128 bytes
}

// String returns the scope as it appears in error messages.
func (s Scope) String() string {
	if s.Tenant == "" {
		return s.Operation
	}
	return s.Operation + " (tenant " + s.Tenant + ")"
}

// Store executes operations once, over one backend. Use [New].
type Store struct {
	b          backend.Backend
	comparable bool // b can be compared with another backend
	o          Options
	holder     backend.Holder
	waiting    waiters
}

// New returns a store over b. It does no I/O: the backend was probed when it was
// opened. It fails with ErrInvalidOption for options that make no sense and with
// ErrGuarantee when b gives less than o.Require. A nil o means the defaults.
func New(b backend.Backend, o *Options) (*Store, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: no backend", ErrInvalidOption)
	}
	s := &Store{b: b, comparable: reflect.ValueOf(b).Comparable()}
	if o != nil {
		s.o = *o
	}
	if err := s.o.complete(); err != nil {
		return nil, err
	}
	have := b.Guarantees()
	if err := have.Check(&s.o.Require); err != nil {
		return nil, err
	}
	s.holder = backend.Holder{Host: hostName(), PID: os.Getpid(), Started: processStart()}
	return s, nil
}

// hostName is this machine's name as backends accept it. A machine's odd name must
// not be the reason why nothing runs.
func hostName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "unknown"
	}
	return storableHost(host)
}

func storableHost(host string) string {
	host = strings.ToValidUTF8(strings.ReplaceAll(host, "\x00", "?"), "?")
	for len(host) > backend.MaxHost {
		_, last := utf8.DecodeLastRuneInString(host)
		host = host[:len(host)-last]
	}
	return host
}

// Guarantees returns what the backend found out about its store when it was
// opened.
func (s *Store) Guarantees() backend.Guarantees { return s.b.Guarantees() }

// TxStore is a [Store] whose records can commit together with the caller's own
// writes. Tx is the transaction type of the backend.
type TxStore[Tx any] struct {
	*Store // lease mode on the same backend
	tx     backend.Transactional[Tx]
}

// NewTx returns a store over a transactional backend; see [New]. It fails with
// ErrGuarantee on one that has no transactions as it was opened, such as bolt in
// per-call mode.
func NewTx[Tx any](b backend.Transactional[Tx], o *Options) (*TxStore[Tx], error) {
	if b == nil {
		return nil, fmt.Errorf("%w: no backend", ErrInvalidOption)
	}
	s, err := New(b, o)
	if err != nil {
		return nil, err
	}
	have := b.Guarantees()
	if err := have.Check(&backend.Guarantees{Atomic: true}); err != nil {
		return nil, err
	}
	return &TxStore[Tx]{Store: s, tx: b}, nil
}

// Execute runs fn once for the key and returns its result; a retry gets the
// stored result and fn does not run (Result.Replayed).
//
// hash is the fingerprint of the request: a call with the same key and another
// fingerprint fails with ErrFingerprintMismatch. Use [NoFingerprint] to go
// without.
//
// fn runs on the caller's goroutine under a lease that is renewed while it runs.
// Its context ends with the caller's, and with cause ErrLeaseLost when the lease
// is lost. How fn ends decides what becomes of the key:
//
//   - nil error: the result is stored; this call and every retry return it. One that
//     cannot be stored (longer than backend.MaxBody, refused by the codec) is
//     returned here, and retries get ErrResultUnavailable.
//   - [Permanent]: the failure is stored; this call and every retry return an
//     equal *[FailedError].
//   - [Uncertain]: the key is uncertain until [Store.Resolve].
//   - any other error: the key is released and the error comes back unwrapped.
//   - panic or Goexit: goes on up unchanged; the key is released under Rerun and
//     uncertain otherwise.
//
// ctx governs waiting, reserving and fn. Once fn has run, its outcome is recorded
// on a context detached from ctx with a limit of its own, so a caller that goes
// away loses no finished work. With ErrOutcomeUnknown and ErrLeaseLost the value
// that fn returned is in Result.Value.
func Execute[T any](ctx context.Context, s *Store, scope Scope, key Key, hash Fingerprint,
	fn func(context.Context) (T, error), opts ...CallOption) (Result[T], error) {

	if fn == nil {
		return Result[T]{}, fmt.Errorf("%w: Execute without a function", ErrInvalidOption)
	}
	c, err := newCall(s, scope, key, hash)
	if err != nil {
		return Result[T]{}, err
	}
	for _, o := range opts {
		o.applyCall(&c.o)
	}
	if err := c.check(ctx, typeOf[T]()); err != nil {
		return Result[T]{}, err
	}
	seen := c.observe(ctx)
	defer seen.leave()
	res, err := execute(seen.ctx, c, fn)
	seen.end(res.Replayed, res.Attempt, err)
	return res, err
}

// Result is what an operation returned, and how this call came by it.
type Result[T any] struct {
	Value    T
	Replayed bool // fn did not run in this call
	Attempt  int  // which attempt produced the result; 1 on the first try

	CompletedAt time.Time // when the operation completed, on the store's clock
	ReplayUntil time.Time // until when retries are given the result
	KnownUntil  time.Time // until when the key is recognised
}

// NoResult adapts a function that returns only an error. Its completion stores no
// body and is replayed for the whole dedup window.
func NoResult(fn func(context.Context) error) func(context.Context) (struct{}, error) {
	return func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) }
}

// NoResultTx is [NoResult] for functions inside a transaction.
func NoResultTx[Tx any](fn func(context.Context, Tx) error) func(context.Context, Tx) (struct{}, error) {
	return func(ctx context.Context, tx Tx) (struct{}, error) { return struct{}{}, fn(ctx, tx) }
}
