package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// txSetup is a store over the fake transactional backend.
type txSetup struct {
	t      *testing.T
	db     *fakeDB
	faulty *backendtest.FaultyTx[*fakeTx]
	store  *idem.TxStore[*fakeTx]
	ledger *ledger
	events *recorder
}

func newTxSetup(t *testing.T, o *idem.Options) *txSetup {
	t.Helper()
	s := &txSetup{t: t, db: newFakeDB(), ledger: &ledger{}, events: &recorder{}}
	var with idem.Options
	if o != nil {
		with = *o
	}
	with.Observer = s.events
	s.faulty = backendtest.WrapTx[*fakeTx](s.db)
	store, err := idem.NewTx[*fakeTx](s.faulty, &with)
	if err != nil {
		t.Fatal(err)
	}
	s.store = store
	return s
}

func runTx[T any](ctx context.Context, s *txSetup, key string, fn func(context.Context, *fakeTx) (T, error), opts ...idem.TxOption) (idem.Result[T], error) {
	return idem.ExecuteTx(ctx, s.store, testScope(), idem.Key(key), hashOf("h1"), fn, opts...)
}

func runIn[T any](ctx context.Context, s *txSetup, tx *fakeTx, key string, fn func(context.Context, *fakeTx) (T, error), opts ...idem.TxOption) (idem.Result[T], error) {
	return idem.ExecuteIn(ctx, s.store, tx, testScope(), idem.Key(key), hashOf("h1"), fn, opts...)
}

// inserts returns an operation that writes through the transaction.
func (s *txSetup) inserts(name, v string, err error) func(context.Context, *fakeTx) (string, error) {
	return func(_ context.Context, tx *fakeTx) (string, error) {
		s.ledger.add(name)
		tx.Insert(name)
		return v, err
	}
}

// Record and effect commit together or not at all (R17).
func TestR17_ExecuteTx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTxSetup(t, &idem.Options{Retention: keep(time.Minute, time.Hour)})

		t.Log("together")
		res, err := runTx(t.Context(), s, "k", func(ctx context.Context, tx *fakeTx) (string, error) {
			a := idem.AttemptFrom(ctx)
			if a.Number != 1 || a.Key != "k" || a.Fence == 0 || !a.LeaseUntil().IsZero() || a.DeriveKey("x") == "" {
				t.Errorf("attempt %+v", a)
			}
			return s.inserts("k", "v", nil)(ctx, tx)
		})
		wantRan(t, res, err, "v")
		if res.Attempt != 1 || res.CompletedAt.IsZero() || res.KnownUntil.Sub(res.CompletedAt) != time.Hour {
			t.Errorf("result %+v", res)
		}
		res, err = runTx(t.Context(), s, "k", s.inserts("k", "x", nil))
		wantReplayed(t, res, err, "v")
		lease, err := run(t.Context(), s.store.Store, "k", does(s.ledger, "lease", "x"))
		wantReplayed(t, lease, err, "v")
		s.db.wantEffect(t, "k", 1)
		if _, err = runTx(t.Context(), s, "none", idem.NoResultTx(func(context.Context, *fakeTx) error { return nil })); err != nil {
			t.Error(err)
		}
		_, err = idem.ExecuteTx(t.Context(), s.store, testScope(), "k", hashOf("h2"), s.inserts("k", "x", nil))
		wantOnly(t, err, idem.ErrFingerprintMismatch)

		t.Log("an error rolls back and leaves the key free")
		for _, e := range []error{errBoom, fmt.Errorf("x: %w", idem.Permanent("c", nil)), fmt.Errorf("%w", idem.ErrOutcomeUnknown)} {
			k := e.Error()
			res, err = runTx(t.Context(), s, k, s.inserts(k, "partial", e))
			if err != e || res.Value != "" {
				t.Errorf("got %+v, %v; want fn's error as it is", res, err)
			}
			s.db.wantEffect(t, k, 0)
			res, err = runTx(t.Context(), s, k, s.inserts(k, "v", nil))
			wantRan(t, res, err, "v")
		}

		t.Log("Permanent and Uncertain undo the effect and store the outcome")
		for i := range 2 {
			res, err = runTx(t.Context(), s, "permanent", s.inserts("permanent", "partial", idem.Permanent("declined", io.EOF)))
			wantErr(t, err, &idem.FailedError{Code: "declined"})
			if res.Value != "" || res.Replayed != (i > 0) || res.CompletedAt.IsZero() {
				t.Errorf("result %+v", res)
			}
		}
		s.db.wantEffect(t, "permanent", 0)
		s.ledger.want(t, "permanent", 1)
		_, err = runTx(t.Context(), s, "uncertain", s.inserts("uncertain", "partial", idem.Uncertain(io.EOF)))
		wantOnly(t, err, idem.ErrUnresolved)
		wantErr(t, err, io.EOF)
		_, err = runTx(t.Context(), s, "uncertain", s.inserts("uncertain", "x", nil))
		wantOnly(t, err, idem.ErrUnresolved)
		s.db.wantEffect(t, "uncertain", 0)
		s.ledger.want(t, "uncertain", 1)

		t.Log("an abandoned lease-mode attempt is taken over")
		_, err = s.db.Reserve(t.Context(), backend.ReserveRequest{
			Ref: backend.Ref{ID: testID("dead"), Owner: [16]byte{1}}, Fingerprint: storedHash(t, hashOf("h1")), TTL: time.Second, KnownFor: time.Hour, OnAbandoned: idem.Rerun,
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = runTx(t.Context(), s, "dead", s.inserts("dead", "x", nil))
		wantOnly(t, err, idem.ErrInFlight)
		res, err = runTx(t.Context(), s, "dead", func(ctx context.Context, tx *fakeTx) (string, error) {
			if !idem.AttemptFrom(ctx).TookOver {
				t.Error("not told of the takeover")
			}
			return s.inserts("dead", "v", nil)(ctx, tx)
		}, idem.Wait(time.Minute))
		wantRan(t, res, err, "v")
		if res.Attempt != 2 {
			t.Errorf("attempt %d", res.Attempt)
		}
	})
}

// fn may run more than once before the commit that counts; the last run does.
func TestR17_FnRunsTwice(t *testing.T) {
	s := newTxSetup(t, nil)
	s.db.runs = 3
	n := 0
	endings := func(last error) func(context.Context, *fakeTx) (int, error) {
		n = 0
		return func(_ context.Context, tx *fakeTx) (int, error) {
			n++
			tx.Insert("k")
			switch n {
			case 1:
				return 1, idem.Permanent("first", nil)
			case 2:
				return 2, idem.Uncertain(errBoom)
			}
			return n, last
		}
	}
	res, err := runTx(t.Context(), s, "k", endings(nil))
	wantRan(t, res, err, 3)
	s.db.wantEffect(t, "k", 1)
	res, err = runTx(t.Context(), s, "k", endings(nil))
	wantReplayed(t, res, err, 3)

	res, err = runTx(t.Context(), s, "last fails", endings(errBoom))
	if err != errBoom || res.Value != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	_, err = runTx(t.Context(), s, "last permanent", endings(idem.Permanent("third", nil)))
	wantErr(t, err, &idem.FailedError{Code: "third"})
	s.db.wantEffect(t, "k", 1)
}

// A commit whose outcome stays unknown (R18).
func TestR18_UnknownCommit(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied=", applied), func(t *testing.T) {
			s := newTxSetup(t, nil)
			s.db.failCommit(1, applied, fmt.Errorf("%w: connection lost", backend.ErrOutcomeUnknown))
			res, err := runTx(t.Context(), s, "k", s.inserts("k", "v", nil))
			wantOnly(t, err, idem.ErrOutcomeUnknown)
			if res.Value != "v" || res.Attempt != 1 || s.faulty.Calls("Release") != 0 {
				t.Errorf("result %+v and %d releases, want fn's value and no release", res, s.faulty.Calls("Release"))
			}
			res, err = runTx(t.Context(), s, "k", s.inserts("k", "v", nil))
			if err != nil || res.Value != "v" || res.Replayed != applied {
				t.Errorf("%+v, %v", res, err)
			}
			s.db.wantEffect(t, "k", 1)
		})
	}
	t.Run("a commit that certainly failed", func(t *testing.T) {
		s := newTxSetup(t, nil)
		s.db.failCommit(1, false, errors.New("deferred constraint"))
		_, err := runTx(t.Context(), s, "k", s.inserts("k", "v", nil))
		wantOnly(t, err, idem.ErrUnavailable)
		s.db.wantEffect(t, "k", 0)
		for _, e := range []error{backend.ErrRetryTransaction, backend.ErrCorruptRecord} {
			s.db.failCommit(1, false, fmt.Errorf("x: %w", e))
			_, err := runTx(t.Context(), s, "k", s.inserts("k", "v", nil))
			wantOnly(t, err, e)
		}
	})
	t.Run("store down", func(t *testing.T) {
		s := newTxSetup(t, nil)
		s.faulty.Add(&backendtest.Fault{Method: "Transact", Err: errors.New("down")})
		_, err := runTx(t.Context(), s, "k", s.inserts("k", "v", nil))
		wantOnly(t, err, idem.ErrUnavailable)
		s.ledger.want(t, "k", 0)
	})
}

// A duplicate of a key whose transaction is open (R20).
func TestR20_OpenTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTxSetup(t, nil)
		hold := func(k string, err error) {
			go func() {
				_, _ = runTx(context.Background(), s, k, func(ctx context.Context, tx *fakeTx) (string, error) {
					time.Sleep(10 * time.Second)
					return s.inserts(k, "v", err)(ctx, tx)
				})
			}()
			synctest.Wait()
		}
		hold("k", nil)
		begun := time.Now()
		_, err := runTx(t.Context(), s, "k", s.inserts("k", "x", nil))
		wantOnly(t, err, idem.ErrInFlight)
		if idem.RetryAfter(err) <= 0 || idem.RetryAfter(err) > time.Second || time.Since(begun) > 10*time.Millisecond {
			t.Errorf("retry after %v, told after %v", idem.RetryAfter(err), time.Since(begun))
		}
		_, err = runTx(t.Context(), s, "k", s.inserts("k", "x", nil), idem.Wait(time.Second))
		wantOnly(t, err, idem.ErrInFlight)
		if took := time.Since(begun); took > 1100*time.Millisecond {
			t.Errorf("waited %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = runTx(ctx, s, "k", s.inserts("k", "x", nil), idem.Wait(time.Hour))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || idem.Advise(err) != idem.AdviceRetry {
			t.Errorf("context ended: %v", err)
		}
		res, err := runTx(t.Context(), s, "k", s.inserts("k", "x", nil), idem.Wait(time.Minute))
		wantReplayed(t, res, err, "v")
		if took := time.Since(begun); took > 10100*time.Millisecond {
			t.Errorf("replayed after %v", took)
		}
		hold("k2", errBoom)
		res, err = runTx(t.Context(), s, "k2", s.inserts("k2", "mine", nil), idem.Wait(time.Minute))
		wantRan(t, res, err, "mine")
		s.db.wantEffect(t, "k", 1)
		s.db.wantEffect(t, "k2", 1)
	})
}

// A call that waits in lease mode hears at once of the end of a transaction, be it
// a panic, and not of calls that never held the key.
func TestTxWakes(t *testing.T) {
	for _, how := range []string{"return", "panic", "Goexit"} {
		synctest.Test(t, func(t *testing.T) {
			s := newTxSetup(t, nil)
			rec, err := s.db.Reserve(t.Context(), backend.ReserveRequest{
				Ref: backend.Ref{ID: testID("k"), Owner: [16]byte{1}}, Fingerprint: storedHash(t, hashOf("h1")), TTL: time.Second, KnownFor: time.Hour, OnAbandoned: idem.Rerun,
			})
			if err != nil {
				t.Fatal(rec, err)
			}
			time.Sleep(time.Second)
			var ended time.Time
			var all sync.WaitGroup
			all.Go(func() {
				defer func() { _ = recover() }()
				_, _ = runTx(context.Background(), s, "k", func(context.Context, *fakeTx) (string, error) {
					time.Sleep(777 * time.Millisecond)
					ended = time.Now()
					switch how {
					case "panic":
						panic("x")
					case "Goexit":
						runtime.Goexit()
					}
					return "v", errBoom
				})
			})
			synctest.Wait()
			all.Go(func() {
				res, err := runTx(context.Background(), s, "k", s.inserts("k", "v", nil), idem.Wait(time.Minute))
				wantRan(t, res, err, "v")
				if late := time.Since(ended); late != 0 {
					t.Errorf("%s: woken %v late", how, late)
				}
			})
			all.Wait()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newTxSetup(t, nil)
		var all sync.WaitGroup
		all.Go(func() {
			_, _ = run(context.Background(), s.store.Store, "k", func(context.Context) (string, error) { time.Sleep(10 * time.Second); return "v", nil })
		})
		synctest.Wait()
		all.Go(func() {
			res, err := runTx(context.Background(), s, "k", s.inserts("k", "x", nil), idem.Wait(time.Minute))
			wantReplayed(t, res, err, "v")
		})
		time.Sleep(time.Second)
		s.faulty.ResetCounts()
		for range 100 {
			_, err := runTx(t.Context(), s, "k", s.inserts("k", "x", nil))
			wantOnly(t, err, idem.ErrInFlight)
		}
		synctest.Wait()
		if n := s.faulty.Calls("Transact"); n > 101 {
			t.Errorf("%d looks: calls that never held the key wake those that wait", n-100)
		}
		all.Wait()
	})
}

// A panic or Goexit in a transaction goes on up; everything is rolled back.
func TestCaseC16_Tx(t *testing.T) {
	for how, end := range map[string]func(){"panic": func() { panic("x") }, "Goexit": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			s := newTxSetup(t, nil)
			call := func() {
				_, _ = runTx(t.Context(), s, "k", func(_ context.Context, tx *fakeTx) (string, error) {
					tx.Insert("k")
					end()
					return "", nil
				})
				t.Error("it returned")
			}
			if how == "panic" {
				if v := panicked(call); v != "x" {
					t.Errorf("panic value %v", v)
				}
			} else if !exited(call) {
				t.Error("no Goexit")
			}
			s.db.wantEffect(t, "k", 0)
			if s.events.count(idem.PhaseCall, idem.OutcomeError) != 1 || s.events.count(idem.PhaseFn, idem.OutcomeError) != 1 {
				t.Error("the observer did not hear of the end")
			}
			res, err := runTx(t.Context(), s, "k", s.inserts("k", "v", nil))
			wantRan(t, res, err, "v")
		})
	}
}

// Inside a transaction, what would need a second one is refused (R26).
func TestR26_NestedInTx(t *testing.T) {
	s := newTxSetup(t, nil)
	other := newTxSetup(t, nil)
	nested := func(ctx context.Context, tx *fakeTx) (string, error) {
		s.ledger.add("outer")
		refused := map[string]error{}
		_, refused["Execute"] = run(ctx, s.store.Store, "inner", does(s.ledger, "bad", ""))
		_, refused["ExecuteTx"] = runTx(ctx, s, "inner", s.inserts("bad", "", nil))
		_, refused["ExecuteThenTx"] = idem.ExecuteThenTx(ctx, s.store, testScope(), "inner", hashOf("h1"), does(s.ledger, "bad", ""),
			func(context.Context, *fakeTx, string) (string, error) { return "", nil })
		refused["ExecuteAll"] = all(ctx, s.store.Store, []item{{"inner", "1"}}, func(context.Context, item) (string, error) { s.ledger.add("bad"); return "", nil })[0].Err
		for what, err := range refused {
			wantOnly(t, err, idem.ErrNested)
			if !strings.Contains(err.Error(), "ExecuteIn") || idem.Advise(err) != idem.AdviceChange {
				t.Errorf("%s: %v, advice %v", what, err, idem.Advise(err))
			}
		}
		wantOnly(t, s.store.Resolve(ctx, testScope(), "inner", 1, idem.NotApplied("x")), idem.ErrNested)
		wantOnly(t, s.store.Forget(ctx, testScope(), "inner", 1, nil), idem.ErrNested)
		_, err := runIn(ctx, s, tx, "outer", s.inserts("bad", "", nil), idem.Wait(time.Hour))
		wantOnly(t, err, idem.ErrInFlight)

		res, err := runIn(ctx, s, tx, "inner", func(ctx context.Context, tx *fakeTx) (string, error) {
			if idem.AttemptFrom(ctx).Key != "inner" {
				t.Error("AttemptFrom gives an outer attempt")
			}
			_, err := run(ctx, s.store.Store, "deep", does(s.ledger, "bad", ""))
			wantOnly(t, err, idem.ErrNested)
			res, err := runIn(ctx, s, tx, "deep", s.inserts("deep", "d", nil))
			wantRan(t, res, err, "d")
			return s.inserts("inner", "i", nil)(ctx, tx)
		})
		wantRan(t, res, err, "i")
		// Another store is nobody's concern.
		_, err = run(ctx, other.store.Store, "other", does(s.ledger, "other", ""))
		return "o", err
	}
	res, err := runTx(t.Context(), s, "outer", nested)
	wantRan(t, res, err, "o")
	s.ledger.want(t, "bad", 0)
	for _, k := range []string{"inner", "deep"} {
		s.db.wantEffect(t, k, 1)
		res, err := runTx(t.Context(), s, k, s.inserts(k, "x", nil))
		if err != nil || !res.Replayed {
			t.Errorf("%s: %+v, %v", k, res, err)
		}
	}

	t.Log("a transaction inside a lease is fine; so is a context that outlives one")
	var kept context.Context
	_, err = run(t.Context(), s.store.Store, "lease", func(ctx context.Context) (string, error) {
		res, err := runTx(ctx, s, "tx", func(ctx context.Context, tx *fakeTx) (string, error) {
			kept = context.WithoutCancel(ctx)
			return "t", nil
		})
		return res.Value, err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err = run(kept, s.store.Store, "afterwards", does(s.ledger, "afterwards", "")); err != nil {
		t.Errorf("after the transaction: %v", err)
	}
}

// ExecuteIn works in the caller's transaction, which stays usable (R21).
func TestR21_ExecuteIn(t *testing.T) {
	s := newTxSetup(t, nil)
	_, _ = runTx(t.Context(), s, "done", s.inserts("done", "v", nil))
	tx := s.db.begin()
	tx.Insert("app 1")
	res, err := runIn(t.Context(), s, tx, "done", s.inserts("done", "x", nil))
	wantReplayed(t, res, err, "v")
	_, err = idem.ExecuteIn(t.Context(), s.store, tx, testScope(), "done", hashOf("h2"), s.inserts("done", "x", nil))
	wantOnly(t, err, idem.ErrFingerprintMismatch)
	res, err = runIn(t.Context(), s, tx, "new", s.inserts("new", "n", nil))
	wantRan(t, res, err, "n")
	res, err = runIn(t.Context(), s, tx, "new", s.inserts("new", "x", nil))
	wantReplayed(t, res, err, "n") // provisional, but already there
	_, err = runIn(t.Context(), s, tx, "fails", s.inserts("fails", "x", errBoom))
	if err != errBoom {
		t.Error(err)
	}
	_, err = runIn(t.Context(), s, tx, "permanent", s.inserts("permanent", "x", idem.Permanent("c", nil)))
	wantErr(t, err, &idem.FailedError{Code: "c"})
	s.faulty.Add(&backendtest.Fault{Method: "Join", Err: backend.ErrRetryTransaction})
	_, err = runIn(t.Context(), s, tx, "snapshot", s.inserts("snapshot", "x", nil))
	wantOnly(t, err, idem.ErrRetryTransaction)
	s.ledger.want(t, "snapshot", 0)
	tx.Insert("app 2")
	s.db.wantEffect(t, "new", 0)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int{"app 1": 1, "app 2": 1, "new": 1, "done": 1, "fails": 0, "permanent": 0} {
		s.db.wantEffect(t, name, n)
	}
	for _, k := range []string{"new", "done"} {
		res, err := runTx(t.Context(), s, k, s.inserts(k, "x", nil))
		if err != nil || !res.Replayed {
			t.Errorf("%s: %+v, %v", k, res, err)
		}
	}
	rolledBack := s.db.begin()
	_, _ = runIn(t.Context(), s, rolledBack, "rolled back", s.inserts("rolled back", "x", nil))
	res, err = runTx(t.Context(), s, "rolled back", s.inserts("rolled back", "v", nil))
	wantRan(t, res, err, "v")
}

func TestTxOptionsRefused(t *testing.T) {
	s := newTxSetup(t, nil)
	var noFn func(context.Context, *fakeTx) (string, error)
	_, err := runTx(t.Context(), s, "k", noFn)
	wantOnly(t, err, idem.ErrInvalidOption)
	_, err = idem.ExecuteTx(t.Context(), nil, testScope(), "k", hashOf("h"), s.inserts("k", "", nil))
	wantOnly(t, err, idem.ErrInvalidOption)
	_, err = runTx(t.Context(), s, "k", s.inserts("k", "", nil), idem.Wait(-1))
	wantOnly(t, err, idem.ErrInvalidOption)
	_, err = runTx(t.Context(), s, "", s.inserts("k", "", nil))
	wantOnly(t, err, idem.ErrInvalidKey)
	_, err = idem.ExecuteTx(t.Context(), s.store, testScope(), "k", idem.Fingerprint{}, s.inserts("k", "", nil))
	wantOnly(t, err, idem.ErrNoFingerprint)
	var noCall func(context.Context) (string, error)
	record := func(context.Context, *fakeTx, string) (string, error) { return "", nil }
	_, err = idem.ExecuteThenTx(t.Context(), s.store, testScope(), "k", hashOf("h"), noCall, record)
	wantOnly(t, err, idem.ErrInvalidOption)
	_, err = idem.ExecuteThenTx(t.Context(), s.store, testScope(), "", hashOf("h"), does(s.ledger, "k", ""), record)
	wantOnly(t, err, idem.ErrInvalidKey)
	_, err = idem.ExecuteThenTx(t.Context(), s.store, testScope(), "k", hashOf("h"), does(s.ledger, "k", ""), record, idem.LeaseTTL(-1))
	wantOnly(t, err, idem.ErrInvalidOption)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = runTx(ctx, s, "k", s.inserts("k", "", nil))
	wantOnly(t, err, idem.ErrUnavailable)
	if s.faulty.Calls("Transact")+s.faulty.Calls("Reserve") != 0 {
		t.Error("the store was asked")
	}
}

// A call under a lease, then one commit of its consequences with the record.
func TestExecuteThenTx(t *testing.T) {
	type charge struct{ ID string }
	pay := func(ctx context.Context, s *txSetup, k string, call func(context.Context) (charge, error),
		record func(context.Context, *fakeTx, charge) (string, error), opts ...idem.CallOption) (idem.Result[string], error) {
		return idem.ExecuteThenTx(ctx, s.store, testScope(), idem.Key(k), hashOf("h1"), call, record, opts...)
	}
	calls := func(s *txSetup, err error) func(context.Context) (charge, error) {
		return does2(s.ledger, "call", charge{"ch_1"}, err)
	}
	records := func(s *txSetup, err error) func(context.Context, *fakeTx, charge) (string, error) {
		return func(_ context.Context, tx *fakeTx, ch charge) (string, error) {
			s.ledger.add("record")
			tx.Insert(ch.ID)
			return "paid " + ch.ID, err
		}
	}
	t.Run("together", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newTxSetup(t, &idem.Options{LeaseTTL: time.Second})
			s.db.runs = 2
			ctx, cancel := context.WithCancel(t.Context())
			res, err := pay(ctx, s, "k", func(ctx context.Context) (charge, error) {
				if left := time.Until(idem.AttemptFrom(ctx).LeaseUntil()); left <= 0 {
					t.Error("the call has no lease")
				}
				_, err := run(ctx, s.store.Store, "nested in call", does(s.ledger, "nested", ""))
				if err != nil {
					t.Errorf("no transaction is open during the call: %v", err)
				}
				time.Sleep(10 * time.Second) // renewed meanwhile
				cancel()                     // the caller goes away; the work is finished all the same
				return calls(s, nil)(ctx)
			}, func(ctx context.Context, tx *fakeTx, ch charge) (string, error) {
				if ctx.Err() != nil || idem.AttemptFrom(ctx).Key != "k" {
					t.Errorf("record's context: %v", ctx.Err())
				}
				_, err := run(ctx, s.store.Store, "nested in record", does(s.ledger, "bad", ""))
				wantOnly(t, err, idem.ErrNested)
				_, err = run(ctx, s.store.Store, "k", does(s.ledger, "bad", ""))
				wantOnly(t, err, idem.ErrInFlight)
				time.Sleep(3 * time.Second)
				return records(s, nil)(ctx, tx, ch)
			})
			wantRan(t, res, err, "paid ch_1")
			s.ledger.want(t, "call", 1)
			s.ledger.want(t, "record", 2)
			s.db.wantEffect(t, "ch_1", 1)
			res, err = pay(t.Context(), s, "k", calls(s, nil), records(s, nil))
			wantReplayed(t, res, err, "paid ch_1")
		})
	})
	t.Run("errors", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newTxSetup(t, nil)
			_, err := pay(t.Context(), s, "call", calls(s, errBoom), records(s, nil))
			if err != errBoom {
				t.Errorf("call's error: %v", err)
			}
			s.ledger.want(t, "record", 0)
			_, err = pay(t.Context(), s, "record", calls(s, nil), records(s, errBoom))
			if err != errBoom {
				t.Errorf("record's error: %v", err)
			}
			s.db.wantEffect(t, "ch_1", 0)
			s.ledger.want(t, "record", 1)
			for _, k := range []string{"call", "record"} {
				if rec := s.db.record(k); rec.State != backend.Open {
					t.Errorf("%s: %v, want open", k, rec.State)
				}
				res, err := pay(t.Context(), s, k, calls(s, nil), records(s, nil))
				wantRan(t, res, err, "paid ch_1")
			}
			for i := range 2 {
				for k, in := range map[string][2]error{"permanent call": {idem.Permanent("declined", io.EOF), nil}, "permanent record": {nil, idem.Permanent("declined", io.EOF)}} {
					res, err := pay(t.Context(), s, k, calls(s, in[0]), records(s, in[1]))
					var failed *idem.FailedError
					if !errors.As(err, &failed) || *failed != (idem.FailedError{Code: "declined", Message: "EOF"}) || res.Value != "" || res.CompletedAt.IsZero() || res.Replayed != (i > 0) {
						t.Errorf("%s: %+v, %v", k, res, err)
					}
				}
				for k, in := range map[string][2]error{"uncertain call": {idem.Uncertain(io.EOF), nil}, "uncertain record": {nil, idem.Uncertain(io.EOF)}} {
					_, err := pay(t.Context(), s, k, calls(s, in[0]), records(s, in[1]))
					wantOnly(t, err, idem.ErrUnresolved)
					if i == 0 {
						wantErr(t, err, io.EOF)
					}
				}
			}
			s.db.wantEffect(t, "ch_1", 2)
		})
	})
	t.Run("lost lease", func(t *testing.T) {
		for _, where := range []string{"call", "record"} {
			synctest.Test(t, func(t *testing.T) {
				s := newTxSetup(t, &idem.Options{LeaseTTL: time.Second})
				s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")})
				steal := func() {
					time.Sleep(2 * time.Second)
					res, err := run(context.Background(), otherStore(t, s.db), "k", does(s.ledger, "thief", "theirs"))
					wantRan(t, res, err, "theirs")
				}
				_, err := pay(t.Context(), s, "k", func(ctx context.Context) (charge, error) {
					if where == "call" {
						steal()
					}
					return calls(s, nil)(ctx)
				}, func(ctx context.Context, tx *fakeTx, ch charge) (string, error) {
					if where == "record" {
						steal()
					}
					return records(s, nil)(ctx, tx, ch)
				})
				wantErr(t, err, idem.ErrLeaseLost)
				s.db.wantEffect(t, "ch_1", 0)
				res, err := pay(t.Context(), s, "k", calls(s, nil), records(s, nil))
				wantReplayed(t, res, err, "theirs")
			})
		}
	})
	// The loss of the lease ends a transaction that hangs, also when the caller
	// has gone away before.
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprint("record hangs, caller gone: ", gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTxSetup(t, &idem.Options{LeaseTTL: time.Second})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				_, err := pay(ctx, s, "k", func(ctx context.Context) (charge, error) {
					if gone {
						cancel()
					}
					s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")})
					return calls(s, nil)(ctx)
				}, func(ctx context.Context, tx *fakeTx, ch charge) (string, error) {
					select {
					case <-ctx.Done():
						return "", ctx.Err()
					case <-time.After(time.Hour):
						return "", errors.New("still hangs after an hour")
					}
				})
				wantOnly(t, err, idem.ErrLeaseLost)
				s.db.wantEffect(t, "ch_1", 0)
				if n := s.faulty.Calls("Release"); n != 0 {
					t.Errorf("%d releases", n)
				}
			})
		})
	}
	t.Run("unknown commit", func(t *testing.T) {
		for _, applied := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newTxSetup(t, nil)
				s.db.failCommit(1, applied, fmt.Errorf("%w: connection lost", backend.ErrOutcomeUnknown))
				res, err := pay(t.Context(), s, "k", calls(s, nil), records(s, nil))
				wantRan(t, res, err, "paid ch_1") // settled by asking again
				s.ledger.want(t, "call", 1)
				s.db.wantEffect(t, "ch_1", 1)

				s.db.failCommit(-1, false, fmt.Errorf("%w: connection lost", backend.ErrOutcomeUnknown))
				begun := time.Now()
				res, err = pay(t.Context(), s, "k2", calls(s, nil), records(s, nil))
				wantOnly(t, err, idem.ErrOutcomeUnknown)
				if res.Value != "paid ch_1" || time.Since(begun) > 6*time.Second || s.faulty.Calls("Release") != 0 {
					t.Errorf("%+v after %v, %d releases", res, time.Since(begun), s.faulty.Calls("Release"))
				}
				_, err = pay(t.Context(), s, "k2", calls(s, nil), records(s, nil))
				wantOnly(t, err, idem.ErrInFlight)
				s.ledger.want(t, "call", 2)
			})
		}
	})
	t.Run("panic", func(t *testing.T) {
		for _, where := range []string{"call", "record"} {
			for _, policy := range []idem.Abandoned{idem.Rerun, idem.Hold} {
				s := newTxSetup(t, nil)
				v := panicked(func() {
					_, _ = pay(t.Context(), s, "k", func(ctx context.Context) (charge, error) {
						if where == "call" {
							panic("x")
						}
						return calls(s, nil)(ctx)
					}, func(context.Context, *fakeTx, charge) (string, error) { panic("x") }, idem.OnAbandoned(policy))
				})
				want := backend.Open
				if policy == idem.Hold {
					want = backend.Uncertain
				}
				if rec := s.db.record("k"); v != "x" || rec.State != want {
					t.Errorf("%s, %v: panic value %v, state %v, want %v", where, policy, v, rec.State, want)
				}
			}
		}
	})
	t.Run("recover", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newTxSetup(t, nil)
			_, err := s.db.Reserve(t.Context(), backend.ReserveRequest{
				Ref: backend.Ref{ID: testID("k"), Owner: [16]byte{1}}, Fingerprint: storedHash(t, hashOf("h1")), TTL: time.Second, KnownFor: time.Hour, OnAbandoned: backend.Recover,
			})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			res, err := pay(t.Context(), s, "k", calls(s, nil), records(s, nil), idem.RecoverWith(func(context.Context) (string, bool, error) { return "found", true, nil }))
			wantReplayed(t, res, err, "found")
			s.ledger.want(t, "call", 0)
		})
	})
}

// does2 is does with an error.
func does2[T any](l *ledger, name string, v T, err error) func(context.Context) (T, error) {
	return func(context.Context) (T, error) {
		l.add(name)
		return v, err
	}
}

func otherStore(t *testing.T, b backend.Backend) *idem.Store {
	t.Helper()
	store, err := idem.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}
