package idem_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

// ledger is the effect log: it lives outside the store, has no unique constraint,
// and is the truth about how often an operation ran.
type ledger struct {
	mu      sync.Mutex
	effects map[string]int
}

func (l *ledger) add(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.effects == nil {
		l.effects = make(map[string]int)
	}
	l.effects[name]++
}

func (l *ledger) count(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effects[name]
}

func (l *ledger) all() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.effects)
}

// want fails the test unless name took effect n times.
func (l *ledger) want(t *testing.T, name string, n int) {
	t.Helper()
	if got := l.count(name); got != n {
		t.Errorf("%q took effect %d times, want %d", name, got, n)
	}
}

// does returns an operation that takes effect and returns v.
func does[T any](l *ledger, name string, v T) func(context.Context) (T, error) {
	return func(context.Context) (T, error) {
		l.add(name)
		return v, nil
	}
}

// fails returns an operation that takes effect and fails.
func fails(l *ledger, name string, err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		l.add(name)
		return "", err
	}
}

func hashOf(s string) idem.Fingerprint { return idem.FingerprintBytes([]byte(s)) }

func testScope() idem.Scope { return idem.Scope{Tenant: "acme", Operation: "pay"} }

func testID(key string) backend.ID {
	return backend.ID{Tenant: "acme", Operation: "pay", Key: key}
}

// setup is a store over faulty memory, with its effect log.
type setup struct {
	t      *testing.T
	mem    *memory.Backend
	faulty *backendtest.Faulty
	store  *idem.Store
	ledger *ledger
	events *recorder
}

// newSetup returns a store over a fresh memory backend. Inside a synctest bubble
// its clock is the fake one.
func newSetup(t *testing.T, o *idem.Options) *setup {
	t.Helper()
	s := &setup{t: t, mem: memory.New(nil), ledger: &ledger{}, events: &recorder{}}
	s.faulty = backendtest.Wrap(s.mem)
	s.store = s.open(o)
	return s
}

// open returns another store over the same records: a fresh handle, as another
// process would have.
func (s *setup) open(o *idem.Options) *idem.Store {
	s.t.Helper()
	return s.openOver(s.faulty, o)
}

func (s *setup) openOver(b backend.Backend, o *idem.Options) *idem.Store {
	s.t.Helper()
	var with idem.Options
	if o != nil {
		with = *o
	}
	if with.Observer == nil {
		with.Observer = s.events
	}
	store, err := idem.New(b, &with)
	if err != nil {
		s.t.Fatal(err)
	}
	return store
}

// run executes fn for key with fingerprint "h1".
func run[T any](ctx context.Context, store *idem.Store, key string, fn func(context.Context) (T, error), opts ...idem.CallOption) (idem.Result[T], error) {
	return idem.Execute(ctx, store, testScope(), idem.Key(key), hashOf("h1"), fn, opts...)
}

// record returns the stored record of key.
func (s *setup) record(key string) backend.Record {
	s.t.Helper()
	rec, err := s.mem.Get(context.Background(), testID(key))
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		s.t.Fatal(err)
	}
	return rec
}

// abandon leaves key in flight with no holder, as a crash after reserve does.
func (s *setup) abandon(key string, lease time.Duration, policy backend.Abandoned) backend.Record {
	s.t.Helper()
	owner := [16]byte{0: 0xEE}
	copy(owner[1:], key)
	res, err := s.mem.Reserve(context.Background(), backend.ReserveRequest{
		Ref: backend.Ref{ID: testID(key), Owner: owner}, Fingerprint: storedHash(s.t, hashOf("h1")),
		TTL: lease, KnownFor: 24 * time.Hour, OnAbandoned: policy, Holder: backend.Holder{Host: "gone", PID: 1},
	})
	if err != nil || res.Outcome != backend.Acquired {
		s.t.Fatalf("abandon %s: %v, %v", key, res.Outcome, err)
	}
	return res.Record
}

// storedHash returns the form in which a fingerprint reaches a backend.
func storedHash(t testing.TB, hash idem.Fingerprint) []byte {
	t.Helper()
	spy := &spyBackend{Backend: memory.New(nil)}
	store, err := idem.New(spy, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := idem.Execute(context.Background(), store, testScope(), "k", hash, func(context.Context) (struct{}, error) { return struct{}{}, nil }); err != nil {
		t.Fatal(err)
	}
	return spy.reserved().Fingerprint
}

// spyBackend keeps the last requests of a backend.
type spyBackend struct {
	backend.Backend

	mu       sync.Mutex
	reserve  backend.ReserveRequest
	complete backend.CompleteRequest
}

func (s *spyBackend) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	s.mu.Lock()
	s.reserve = r
	s.mu.Unlock()
	return s.Backend.Reserve(ctx, r)
}

func (s *spyBackend) Complete(ctx context.Context, r backend.CompleteRequest) (backend.Record, error) {
	s.mu.Lock()
	s.complete = r
	s.mu.Unlock()
	return s.Backend.Complete(ctx, r)
}

func (s *spyBackend) reserved() backend.ReserveRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve
}

func (s *spyBackend) completed() backend.CompleteRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.complete
}

// recorder is an observer that keeps everything.
type recorder struct {
	mu     sync.Mutex
	starts int
	events []idem.Event
}

func (r *recorder) Start(ctx context.Context, _ idem.Scope) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts++
	return ctx
}

func (r *recorder) Observe(_ context.Context, e idem.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// names lists "phase outcome" of everything seen so far and forgets it.
func (r *recorder) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, e := range r.events {
		names = append(names, e.Phase+" "+e.Outcome)
	}
	r.events = nil
	return names
}

func (r *recorder) count(phase, outcome string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if e.Phase == phase && e.Outcome == outcome {
			n++
		}
	}
	return n
}

// keep returns a retention that is the same for every scope and outcome.
func keep(replay, dedup time.Duration) *expiry.Policy {
	p, err := expiry.Fixed(expiry.Retention{Replay: replay, Dedup: dedup})
	if err != nil {
		panic(err)
	}
	return p
}

// wantRan, wantReplayed and wantErr check one answer.
func wantRan[T comparable](t *testing.T, res idem.Result[T], err error, v T) {
	t.Helper()
	if err != nil || res.Replayed || res.Value != v {
		t.Errorf("got %+v, %v; want %v, run by this call", res, err, v)
	}
}

func wantReplayed[T comparable](t *testing.T, res idem.Result[T], err error, v T) {
	t.Helper()
	if err != nil || !res.Replayed || res.Value != v {
		t.Errorf("got %+v, %v; want %v, replayed", res, err, v)
	}
}

func wantErr(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("error %v, want one that matches %v", err, target)
	}
}

// wantOnly fails the test unless err matches target and no other sentinel: callers must be able to tell
// the answers apart (CASES).
func wantOnly(t *testing.T, err, target error) {
	t.Helper()
	for _, s := range []error{
		idem.ErrInFlight, idem.ErrFingerprintMismatch, idem.ErrLeaseLost, idem.ErrOutcomeUnknown, idem.ErrUnresolved,
		idem.ErrUnavailable, idem.ErrCorruptRecord, idem.ErrUnknownVersion, idem.ErrResultExpired, idem.ErrResultUnavailable,
		idem.ErrInvalidKey, idem.ErrNoFingerprint, idem.ErrInvalidOption, idem.ErrNotFound, idem.ErrStale, idem.ErrNested, idem.ErrRetryTransaction, idem.ErrKeyExpired,
	} {
		if got, want := errors.Is(err, s), s == target; got != want {
			t.Errorf("error %q: matches %q: %v, want %v", err, s, got, want)
		}
	}
}

// checkLeaks fails the test if a goroutine that it started is left at its end. It
// ignores those that exist now: parallel tests pause in the middle of others.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
}

// panicked calls f and returns what it panicked with.
func panicked(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// exited runs f in a goroutine and reports whether it left by Goexit.
func exited(f func()) bool {
	out := make(chan bool)
	go func() {
		returned := false
		defer func() { out <- !returned }()
		f()
		returned = true
	}()
	return <-out
}

var errBoom = errors.New("boom")
