package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// item is one thing to do: its name is its key.
type item struct{ name, hash string }

func identify(it item) (idem.Key, idem.Fingerprint) {
	switch it.hash {
	case "zero":
		return idem.Key(it.name), idem.Fingerprint{}
	case "bad":
		return idem.Key(it.name), idem.FingerprintJSON(make(chan int))
	case "none":
		return idem.Key(it.name), idem.NoFingerprint()
	}
	return idem.Key(it.name), hashOf(it.hash)
}

func all[T any](ctx context.Context, store *idem.Store, items []item, fn func(context.Context, item) (T, error), opts ...idem.AllOption) []idem.ItemResult[T] {
	return idem.ExecuteAll(ctx, store, testScope(), items, identify, fn, opts...)
}

func TestR29_OrderAndTwins(t *testing.T) {
	s := newSetup(t, nil)
	do := func(_ context.Context, it item) (string, error) {
		s.ledger.add(it.name)
		switch it.name {
		case "fails":
			return "", errBoom
		case "declined":
			return "", idem.Permanent("declined", nil)
		}
		return "did " + it.name, nil
	}
	items := []item{
		{"a", "1"}, {"b", "1"}, {"a", "1"}, {"a", "2"}, {"fails", "1"}, {"fails", "1"}, {"declined", "1"}, {"declined", "1"},
		{"", "1"}, {"zero", "zero"}, {"zero", "1"}, {"bad", "bad"}, {"bad", "bad"}, {"last", "none"}, {"last", "none"}, {"last", "1"}, {"a", "zero"},
	}
	for round := range 2 {
		got := all(t.Context(), s.store, items, do, idem.Parallel(4))
		if len(got) != len(items) {
			t.Fatalf("%d answers", len(got))
		}
		for i, want := range []struct {
			value    string
			err      error
			replayed bool
		}{
			{"did a", nil, round > 0}, {"did b", nil, round > 0}, {"did a", nil, true}, {"", idem.ErrFingerprintMismatch, false},
			{"", errBoom, false}, {"", errBoom, false},
			{"", &idem.FailedError{Code: "declined"}, round > 0}, {"", &idem.FailedError{Code: "declined"}, true},
			{"", idem.ErrInvalidKey, false},
			// An item that is refused is nobody's twin.
			{"", idem.ErrNoFingerprint, false}, {"did zero", nil, round > 0},
			{"", idem.ErrInvalidOption, false}, {"", idem.ErrInvalidOption, false},
			{"did last", nil, round > 0}, {"did last", nil, true}, {"", idem.ErrFingerprintMismatch, false},
			{"", idem.ErrNoFingerprint, false},
		} {
			if got[i].Value != want.value || !errors.Is(got[i].Err, want.err) || want.err == nil && (got[i].Err != nil || got[i].Replayed != want.replayed) {
				t.Errorf("round %d, item %d %v: %+v, want %+v", round, i, items[i], got[i], want)
			}
		}
		s.ledger.want(t, "a", 1)
		s.ledger.want(t, "b", 1)
		s.ledger.want(t, "zero", 1)
		s.ledger.want(t, "bad", 0)
		s.ledger.want(t, "fails", round+1) // released, so the next batch tries again
		s.ledger.want(t, "declined", 1)
	}
	if got := all(t.Context(), s.store, nil, do); len(got) != 0 {
		t.Errorf("no items: %+v", got)
	}
	for _, refused := range [][]idem.ItemResult[string]{
		all(t.Context(), nil, items, do),
		all[string](t.Context(), s.store, items, nil),
		all(t.Context(), s.store, items, do, idem.Parallel(0)),
		idem.ExecuteAll(t.Context(), s.store, testScope(), items, nil, do),
	} {
		if len(refused) != len(items) {
			t.Fatal(refused)
		}
		for _, r := range refused {
			wantOnly(t, r.Err, idem.ErrInvalidOption)
		}
	}
}

// The bound on what runs at the same time, and that options reach each item.
func TestR29_Parallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		items := make([]item, 30)
		for i := range items {
			items[i] = item{fmt.Sprint(i), "1"}
		}
		for _, n := range []int{1, 3, 100} {
			var running, most atomic.Int64
			begun := time.Now()
			for _, r := range all(t.Context(), s.store, items, func(ctx context.Context, it item) (string, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				if left := time.Until(idem.AttemptFrom(ctx).LeaseUntil()); left > time.Minute {
					t.Errorf("the lease has %v: the option did not get through", left)
				}
				time.Sleep(time.Second)
				return "", errBoom
			}, idem.Parallel(n), idem.LeaseTTL(time.Minute)) {
				if r.Err != errBoom {
					t.Error(r.Err)
				}
			}
			want := min(n, len(items))
			if got := int(most.Load()); got != want || time.Since(begun) != time.Duration((len(items)+want-1)/want)*time.Second {
				t.Errorf("Parallel(%d): %d at once, %v", n, got, time.Since(begun))
			}
		}
	})
}

// A context that ends in the middle leaves nothing reserved.
func TestR29_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		items := make([]item, 20)
		for i := range items {
			items[i] = item{fmt.Sprint(i), "1"}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(2500*time.Millisecond, cancel)
		got := all(ctx, s.store, items, func(ctx context.Context, it item) (string, error) {
			s.ledger.add(it.name)
			select {
			case <-time.After(time.Second):
				return "done", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}, idem.Parallel(2))
		for i, r := range got {
			switch {
			case i < 4:
				wantRan(t, r.Result, r.Err, "done")
			case i < 6: // they ran when it ended
				if r.Err != context.Canceled {
					t.Errorf("item %d: %v", i, r.Err)
				}
			default:
				wantOnly(t, r.Err, idem.ErrUnavailable)
				wantErr(t, r.Err, context.Canceled)
				if rec := s.record(fmt.Sprint(i)); rec.State != 0 {
					t.Errorf("item %d was never started and is %v", i, rec.State)
				}
				s.ledger.want(t, fmt.Sprint(i), 0)
			}
		}
		for rec := range s.store.List(t.Context(), idem.Filter{State: idem.StateInFlight}) {
			t.Errorf("%q is still reserved", rec.Key)
		}
		for i, r := range all(t.Context(), s.store, items, func(context.Context, item) (string, error) { return "later", nil }) {
			if r.Err != nil || r.Replayed != (i < 4) {
				t.Errorf("resumed: item %d: %+v", i, r)
			}
		}
	})
}

// A panic or Goexit stops new items, waits for those that run, and goes on up.
func TestCaseC16_ExecuteAll(t *testing.T) {
	for how, end := range map[string]func(){"panic": func() { panic("x") }, "Goexit": runtime.Goexit} {
		for _, policy := range []idem.Abandoned{idem.Rerun, idem.Hold} {
			t.Run(fmt.Sprint(how, "/", policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSetup(t, nil)
					// Settling the item that broke takes its time. New items must not
					// start meanwhile.
					for _, method := range []string{"Release", "Complete"} {
						s.faulty.Add(&backendtest.Fault{Method: method, Err: errors.New("hiccup"), Times: 5, Match: func(id backend.ID) bool { return id.Key == "0" }})
					}
					items := make([]item, 10)
					for i := range items {
						items[i] = item{fmt.Sprint(i), "1"}
					}
					finished := false
					call := func() {
						all(t.Context(), s.store, items, func(_ context.Context, it item) (string, error) {
							s.ledger.add(it.name)
							if it.name == "0" {
								time.Sleep(time.Millisecond) // the other one has begun
								end()
							}
							time.Sleep(20 * time.Millisecond)
							finished = true
							return "v", nil
						}, idem.Parallel(2), idem.OnAbandoned(policy))
						t.Error("ExecuteAll returned")
					}
					if how == "panic" {
						if v := panicked(call); v != "x" {
							t.Errorf("panic value %v", v)
						}
					} else if !exited(call) {
						t.Error("no Goexit in the caller's goroutine")
					}
					if !finished {
						t.Error("it did not wait for the item that ran")
					}
					if got := s.ledger.all(); len(got) != 2 {
						t.Errorf("items started: %v, want the two first", got)
					}
					want := backend.Open
					if policy == idem.Hold {
						want = backend.Uncertain
					}
					if rec := s.record("0"); rec.State != want {
						t.Errorf("the item that broke is %v, want %v", rec.State, want)
					}
				})
			})
		}
	}
	t.Run("identify", func(t *testing.T) {
		s := newSetup(t, nil)
		v := panicked(func() {
			idem.ExecuteAll(t.Context(), s.store, testScope(), []item{{"a", "1"}}, func(item) (idem.Key, idem.Fingerprint) { panic("who") },
				func(context.Context, item) (string, error) { return "", nil })
		})
		if v != "who" || s.faulty.Calls("Reserve") != 0 {
			t.Errorf("panic value %v, %d reserves", v, s.faulty.Calls("Reserve"))
		}
	})
}

func TestExecuteAllLeavesNothing(t *testing.T) {
	checkLeaks(t)
	s := newSetup(t, nil)
	items := make([]item, 100)
	for i := range items {
		items[i] = item{fmt.Sprint(i % 60), "1"}
	}
	for _, r := range all(t.Context(), s.store, items, func(_ context.Context, it item) (string, error) { return it.name, nil }, idem.Parallel(8)) {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
}
