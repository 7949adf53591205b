package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/backend/memory"
)

// Every way in which fn can end, but for panics (C16).
func TestR11_HowFnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Retention: keep(time.Minute, time.Hour)})

		t.Log("an ordinary error releases, and comes back as it is")
		wrapped := fmt.Errorf("context: %w", idem.Permanent("code", errBoom))
		for i, fnErr := range []error{errBoom, io.EOF, wrapped, &idem.FailedError{Code: "nested"}} {
			k := fmt.Sprint("ordinary ", i)
			res, err := run(t.Context(), s.store, k, func(context.Context) (string, error) {
				s.ledger.add(k)
				return "partial", fnErr
			})
			if err != fnErr || res.Replayed || res.Attempt != 1 {
				t.Errorf("%v: got %+v, %v", fnErr, res, err)
			}
			if rec := s.record(k); rec.State != backend.Open || rec.Body != nil {
				t.Errorf("%v: record %+v, want open", fnErr, rec)
			}
			res, err = run(t.Context(), s.store, k, does(s.ledger, k, "v"))
			wantRan(t, res, err, "v")
			if res.Attempt != 2 {
				t.Errorf("attempt %d, want 2", res.Attempt)
			}
		}

		t.Log("a permanent failure is the same on every call, for the whole dedup window")
		declined := &idem.FailedError{Code: "card_declined"}
		var first error
		for i := range 4 {
			res, err := run(t.Context(), s.store, "permanent", func(context.Context) (string, error) {
				s.ledger.add("permanent")
				return "partial", idem.Permanent("card_declined", fmt.Errorf("limit: %w", io.EOF))
			})
			var failed *idem.FailedError
			if !errors.As(err, &failed) || !errors.Is(err, declined) || failed.Message != "limit: EOF" || errors.Is(err, &idem.FailedError{Code: "other"}) {
				t.Fatalf("call %d: %v", i, err)
			}
			if i == 0 {
				first = err
			}
			if err.Error() != first.Error() || *failed != *first.(*idem.FailedError) {
				t.Errorf("call %d: %v, the first call got %v", i, err, first)
			}
			if idem.Advise(err) != idem.AdviceStop || idem.RetryAfter(err) != 0 {
				t.Errorf("advice %v", idem.Advise(err))
			}
			if res.Value != "" || res.CompletedAt.IsZero() || res.Attempt != 1 || res.Replayed != (i > 0) {
				t.Errorf("call %d: result %+v", i, res)
			}
			time.Sleep(15 * time.Minute) // beyond Replay
		}
		s.ledger.want(t, "permanent", 1)

		t.Log("odd permanent failures are still equal on both calls")
		for i, e := range []error{
			idem.Permanent("", nil), idem.Permanent("code only", nil), idem.Permanent("bad \xff text", errors.New("\xfe")),
			idem.Permanent(strings.Repeat("c", 100<<10), errors.New(strings.Repeat("é", 100<<10))),
		} {
			k := fmt.Sprint("odd ", i)
			_, first := run(t.Context(), s.store, k, fails(s.ledger, k, e))
			_, second := run(t.Context(), s.open(nil), k, fails(s.ledger, k, e))
			var f1, f2 *idem.FailedError
			if !errors.As(first, &f1) || !errors.As(second, &f2) || *f1 != *f2 {
				t.Errorf("%d: %.60q and %.60q", i, first, second)
			}
			s.ledger.want(t, k, 1)
		}
	})
}

// Uncertain: the key waits for a person, or for the attempt's own late word.
func TestR11_Uncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{LeaseTTL: time.Second, Retention: keep(time.Minute, time.Minute)})
		uncertain := func(k string) uint64 {
			t.Helper()
			_, err := run(t.Context(), s.store, k, fails(s.ledger, k, idem.Uncertain(io.ErrUnexpectedEOF)))
			wantOnly(t, err, idem.ErrUnresolved)
			wantErr(t, err, io.ErrUnexpectedEOF)
			if idem.Advise(err) != idem.AdviceAsk {
				t.Errorf("advice %v", idem.Advise(err))
			}
			time.Sleep(100 * time.Hour) // it has no window
			_, err = run(t.Context(), s.store, k, does(s.ledger, k, "x"), idem.Wait(time.Hour))
			wantOnly(t, err, idem.ErrUnresolved)
			s.ledger.want(t, k, 1)
			rec, err := s.store.Get(t.Context(), testScope(), idem.Key(k))
			if err != nil || rec.State != idem.StateUncertain || rec.Holder.PID == 0 || rec.Holder.Host == "" || rec.Holder.Started.IsZero() || rec.ReservedAt.IsZero() {
				t.Errorf("Get must show who it was: %+v, %v", rec, err)
			}
			return rec.Fence
		}
		fence := uncertain("applied")
		if err := s.store.Resolve(t.Context(), testScope(), "applied", fence, idem.Applied("by hand", "seen at the bank")); err != nil {
			t.Fatal(err)
		}
		res, err := run(t.Context(), s.store, "applied", does(s.ledger, "applied", "x"))
		wantReplayed(t, res, err, "by hand")
		if rec, _ := s.store.Get(t.Context(), testScope(), "applied"); rec.Evidence != "seen at the bank" {
			t.Errorf("evidence %q", rec.Evidence)
		}

		fence = uncertain("not applied")
		if err := s.store.Resolve(t.Context(), testScope(), "not applied", fence, idem.NotApplied("asked the bank")); err != nil {
			t.Fatal(err)
		}
		res, err = run(t.Context(), s.store, "not applied", does(s.ledger, "not applied", "v"))
		wantRan(t, res, err, "v")
		if res.Attempt != 2 {
			t.Errorf("attempt %d", res.Attempt)
		}

		t.Log("fn's uncertainty is not hidden by what it wraps")
		_, err = run(t.Context(), s.store, "wraps", fails(s.ledger, "wraps", idem.Uncertain(&idem.FailedError{Code: "nested"})))
		wantErr(t, err, idem.ErrUnresolved)
		if idem.Advise(err) != idem.AdviceAsk {
			t.Errorf("advice %v, want to ask a person", idem.Advise(err))
		}
		if names := s.events.names(); !slices.Contains(names[len(names)-3:], "call uncertain") {
			t.Errorf("events %q", names[len(names)-3:])
		}
	})
}

// The late completion of its own attempt settles an uncertain key (R12, R13).
func TestR13_LateCompletionSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
		s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")})
		res, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) {
			time.Sleep(time.Minute)
			_, err := run(context.Background(), s.open(nil), "k", does(s.ledger, "k", "x"))
			wantOnly(t, err, idem.ErrUnresolved)
			if rec := s.record("k"); rec.State != backend.Uncertain {
				t.Errorf("state %v", rec.State)
			}
			return "late", nil
		}, idem.OnAbandoned(idem.Hold))
		wantRan(t, res, err, "late")
		res, err = run(t.Context(), s.store, "k", does(s.ledger, "k", "x"))
		wantReplayed(t, res, err, "late")

		t.Log("but not once a person has settled it")
		_, err = run(t.Context(), s.store, "k2", func(ctx context.Context) (string, error) {
			time.Sleep(time.Minute)
			if err := s.store.Resolve(context.Background(), testScope(), "k2", idem.AttemptFrom(ctx).Fence, idem.Applied("by hand", "x")); err != nil {
				t.Error(err)
			}
			return "late", nil
		}, idem.OnAbandoned(idem.Hold))
		wantOnly(t, err, idem.ErrLeaseLost)
		res, err = run(t.Context(), s.store, "k2", does(s.ledger, "k2", "x"))
		wantReplayed(t, res, err, "by hand")
		s.ledger.want(t, "k", 0)
	})
}

// What happens to an abandoned attempt: the stricter of the stored and the
// caller's policy.
func TestR13_Abandoned(t *testing.T) {
	notApplied := func(log *ledger) idem.CallOption {
		return idem.RecoverWith(func(context.Context) (string, bool, error) { log.add("asked"); return "", false, nil })
	}
	applied := func(log *ledger) idem.CallOption {
		return idem.RecoverWith(func(context.Context) (string, bool, error) { log.add("asked"); return "found", true, nil })
	}
	broken := func(log *ledger) idem.CallOption {
		return idem.RecoverWith(func(context.Context) (string, bool, error) { log.add("asked"); return "", true, errBoom })
	}
	none := func(*ledger) idem.CallOption { return idem.Wait(0) }
	hold := func(*ledger) idem.CallOption { return idem.OnAbandoned(idem.Hold) }
	for _, tt := range []struct {
		name   string
		stored backend.Abandoned
		caller func(*ledger) idem.CallOption
		value  string // "" with err
		err    error
		ran    int
		asked  int
		state  backend.State
	}{
		{"rerun, rerun", backend.Rerun, none, "v", nil, 1, 0, backend.Completed},
		{"rerun, hold", backend.Rerun, hold, "", idem.ErrUnresolved, 0, 0, backend.Uncertain},
		{"rerun, not applied", backend.Rerun, notApplied, "v", nil, 1, 1, backend.Completed},
		{"rerun, applied", backend.Rerun, applied, "found", nil, 0, 1, backend.Completed},
		{"rerun, broken", backend.Rerun, broken, "", errBoom, 0, 1, backend.InFlight},
		{"recover, rerun", backend.Recover, none, "", idem.ErrUnresolved, 0, 0, backend.InFlight},
		{"recover, hold", backend.Recover, hold, "", idem.ErrUnresolved, 0, 0, backend.Uncertain},
		{"recover, not applied", backend.Recover, notApplied, "v", nil, 1, 1, backend.Completed},
		{"recover, applied", backend.Recover, applied, "found", nil, 0, 1, backend.Completed},
		{"recover, broken", backend.Recover, broken, "", errBoom, 0, 1, backend.InFlight},
		{"hold, rerun", backend.Hold, none, "", idem.ErrUnresolved, 0, 0, backend.Uncertain},
		{"hold, hold", backend.Hold, hold, "", idem.ErrUnresolved, 0, 0, backend.Uncertain},
		{"hold, applied", backend.Hold, applied, "", idem.ErrUnresolved, 0, 0, backend.Uncertain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, nil)
				before := s.abandon("k", time.Second, tt.stored)

				_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), tt.caller(s.ledger))
				wantOnly(t, err, idem.ErrInFlight) // alive: nobody asks the world
				s.ledger.want(t, "asked", 0)

				time.Sleep(2 * time.Second)
				res, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
					if !idem.AttemptFrom(ctx).TookOver {
						t.Error("fn was not told that an attempt went before")
					}
					return does(s.ledger, "k", "v")(ctx)
				}, tt.caller(s.ledger))
				if !errors.Is(err, tt.err) || res.Value != tt.value {
					t.Errorf("got %+v, %v; want %q, %v", res, err, tt.value, tt.err)
				}
				if tt.err == nil && (res.Replayed != (tt.ran == 0) || res.Attempt != 2) {
					t.Errorf("result %+v", res)
				}
				s.ledger.want(t, "k", tt.ran)
				s.ledger.want(t, "asked", tt.asked)
				after := s.record("k")
				if after.State != tt.state {
					t.Errorf("state %v, want %v", after.State, tt.state)
				}
				if tt.state == backend.InFlight && (after.Owner != before.Owner || after.Fence != before.Fence || !after.LeaseUntil.Equal(before.LeaseUntil)) {
					t.Errorf("the key was %+v and is %+v", before, after)
				}
				if tt.state == backend.Completed {
					res, err = run(t.Context(), s.open(nil), "k", does(s.ledger, "k", "x"))
					wantReplayed(t, res, err, tt.value)
				}
			})
		})
	}
}

// What RecoverWith found concerns the attempt that was asked about, and no other.
func TestR13_FoundIsAboutOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
		s.abandon("k", time.Second, backend.Recover)
		time.Sleep(2 * time.Second)
		res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "fresh"), idem.Wait(time.Minute),
			idem.RecoverWith(func(context.Context) (string, bool, error) {
				// While this caller asks, another one takes the key over, runs the
				// operation, undoes what was there, and gives the key back.
				_, err := run(context.Background(), s.open(nil), "k", fails(s.ledger, "other", errBoom),
					idem.RecoverWith(func(context.Context) (string, bool, error) { return "", false, nil }))
				if err != errBoom {
					t.Errorf("the other caller: %v", err)
				}
				return "stale", true, nil
			}))
		wantRan(t, res, err, "fresh")
		s.ledger.want(t, "k", 1)
		s.ledger.want(t, "other", 1)
	})
	t.Run("abandoned again meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
			s.abandon("k", time.Second, backend.Recover)
			time.Sleep(2 * time.Second)
			crash := backendtest.Wrap(s.mem, &backendtest.Fault{Method: "Renew", Times: -1, Err: errBoom}, &backendtest.Fault{Method: "Complete", Times: -1, Err: errBoom})
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "fresh"),
				idem.RecoverWith(func(context.Context) (string, bool, error) {
					if s.ledger.add("asked"); s.ledger.count("asked") > 1 {
						return "theirs", true, nil
					}
					_, err := run(context.Background(), s.openOver(crash, nil), "k", does(s.ledger, "other", "theirs"), idem.LeaseTTL(time.Second),
						idem.RecoverWith(func(context.Context) (string, bool, error) { return "", false, nil }))
					wantOnly(t, err, idem.ErrOutcomeUnknown)
					time.Sleep(2 * time.Second)
					return "", false, nil // true of the attempt that was asked about
				}))
			wantReplayed(t, res, err, "theirs")
			s.ledger.want(t, "asked", 2)
			s.ledger.want(t, "k", 0)
		})
	})
	t.Run("expired meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
			s.abandon("k", time.Second, backend.Rerun)
			time.Sleep(2 * time.Second)
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "fresh"), idem.Wait(time.Minute),
				idem.RecoverWith(func(context.Context) (string, bool, error) {
					time.Sleep(48 * time.Hour) // the window of the abandoned record is over
					return "stale", true, nil
				}))
			// The record that was asked about is gone, and with it what was found.
			wantRan(t, res, err, "fresh")
			if res.Attempt != 1 {
				t.Errorf("attempt %d", res.Attempt)
			}
		})
	})
	t.Run("forgotten meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			rec := s.abandon("k", time.Second, backend.Recover)
			time.Sleep(2 * time.Second)
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "fresh"),
				idem.RecoverWith(func(context.Context) (string, bool, error) {
					return "stale", true, s.store.Forget(context.Background(), testScope(), "k", rec.Fence, nil)
				}))
			wantRan(t, res, err, "fresh")
		})
	})
	t.Run("completed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.abandon("k", time.Second, backend.Recover)
			time.Sleep(2 * time.Second)
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "x"),
				idem.RecoverWith(func(context.Context) (string, bool, error) {
					_, err := run(context.Background(), s.open(nil), "k", does(s.ledger, "other", "theirs"),
						idem.RecoverWith(func(context.Context) (string, bool, error) { return "", false, nil }))
					return "stale", true, err
				}))
			wantReplayed(t, res, err, "theirs")
			s.ledger.want(t, "k", 0)
		})
	})
}

// Calls inside calls.
func TestR26_Nested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Wait: time.Hour})
		begun := time.Now()
		other := newSetup(t, nil)
		res, err := run(t.Context(), s.store, "outer", func(ctx context.Context) (string, error) {
			outer := idem.AttemptFrom(ctx)
			if outer.Key != "outer" || outer.Scope != testScope() || outer.Number != 1 || outer.Fence == 0 || outer.TookOver {
				t.Errorf("attempt %+v", outer)
			}
			res, err := run(ctx, s.store, "inner", func(ctx context.Context) (string, error) {
				if idem.AttemptFrom(ctx).Key != "inner" {
					t.Error("AttemptFrom gives an outer attempt")
				}
				for _, k := range []string{"outer", "inner"} {
					for _, store := range []*idem.Store{s.store, s.open(nil)} {
						_, err := run(ctx, store, k, does(s.ledger, "bad", ""), idem.Wait(time.Hour))
						wantOnly(t, err, idem.ErrInFlight)
					}
				}
				// The same key in another scope or another store is another intent.
				_, err := idem.Execute(ctx, s.store, idem.Scope{Operation: "other"}, "outer", hashOf("h1"), does(s.ledger, "scope", ""))
				if err != nil {
					t.Error(err)
				}
				_, err = run(ctx, other.store, "outer", does(s.ledger, "store", ""))
				return "i", err
			})
			wantRan(t, res, err, "i")
			if idem.AttemptFrom(ctx) != outer {
				t.Error("the outer attempt has changed")
			}
			res, err = run(ctx, s.store, "inner", does(s.ledger, "bad", ""))
			wantReplayed(t, res, err, "i")
			return "o", nil
		})
		wantRan(t, res, err, "o")
		if took := time.Since(begun); took != 0 {
			t.Errorf("nested calls waited for %v", took)
		}
		s.ledger.want(t, "bad", 0)
		s.ledger.want(t, "scope", 1)
		s.ledger.want(t, "store", 1)
	})
	if idem.AttemptFrom(t.Context()) != nil {
		t.Error("an attempt outside fn")
	}
	if panicked(func() { (*idem.Attempt)(nil).DeriveKey("step") }) == nil {
		t.Error("DeriveKey of no attempt must panic: all would share one key")
	}
}

// A nested call's lease outlives nothing: when the outer loses its lease, the inner
// operation is cancelled with the same cause.
func TestR26_OuterLossEndsInner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{LeaseTTL: 3 * time.Second})
		_, err := run(t.Context(), s.store, "outer", func(ctx context.Context) (string, error) {
			_ = s.store.Forget(context.Background(), testScope(), "outer", idem.AttemptFrom(ctx).Fence, &idem.ForgetOptions{Force: true})
			_, err := run(ctx, s.store, "inner", func(ctx context.Context) (string, error) {
				<-ctx.Done()
				return "", context.Cause(ctx)
			})
			wantErr(t, err, idem.ErrLeaseLost)
			if rec := s.record("inner"); rec.State != backend.Open {
				t.Errorf("the inner key is %v, want open: its own lease was never lost", rec.State)
			}
			return "", err
		})
		wantErr(t, err, idem.ErrLeaseLost)
	})
}

func TestWait(t *testing.T) {
	// holder runs key until the returned function is called.
	holder := func(s *setup, k string, end func(context.Context) (string, error)) {
		go func() { _, _ = run(context.Background(), s.store, k, end) }()
		synctest.Wait()
	}
	t.Run("woken at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			holder(s, "k", func(context.Context) (string, error) { time.Sleep(7777 * time.Millisecond); return "v", nil })
			begun := time.Now()
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "x"), idem.Wait(time.Minute))
			wantReplayed(t, res, err, "v")
			if took := time.Since(begun); took != 7777*time.Millisecond {
				t.Errorf("woken after %v, want 7.777s to the nanosecond", took)
			}
		})
	})
	t.Run("woken by a release", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			holder(s, "k", func(context.Context) (string, error) { time.Sleep(7777 * time.Millisecond); return "", errBoom })
			begun := time.Now()
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), idem.Wait(time.Minute))
			wantRan(t, res, err, "v")
			if took := time.Since(begun); took != 7777*time.Millisecond {
				t.Errorf("woken after %v", took)
			}
		})
	})
	t.Run("woken between the look and the waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			end, ended := make(chan struct{}), make(chan struct{})
			go func() {
				_, _ = run(context.Background(), s.store, "k", func(context.Context) (string, error) { <-end; return "v", nil })
				close(ended)
			}()
			synctest.Wait()
			s.faulty.Add(&backendtest.Fault{Method: "Reserve", When: backendtest.After, Block: ended, Hit: func(string, backend.ID) {
				time.AfterFunc(time.Millisecond, func() { close(end) }) // once the look has been answered
			}})
			begun := time.Now()
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "x"), idem.Wait(time.Minute))
			wantReplayed(t, res, err, "v")
			if took := time.Since(begun); took != time.Millisecond {
				t.Errorf("woken after %v", took)
			}
		})
	})
	t.Run("woken by a key that was not used", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: time.Minute})
			s.faulty.Add(&backendtest.Fault{Method: "Reserve", When: backendtest.After, Block: make(chan struct{})})
			ctx, cancel := context.WithTimeout(t.Context(), 7777*time.Millisecond)
			defer cancel()
			go func() { _, _ = run(ctx, s.store, "k", does(s.ledger, "lost", "x")) }()
			synctest.Wait()
			begun := time.Now()
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), idem.Wait(time.Minute))
			wantRan(t, res, err, "v")
			if took := time.Since(begun); took != 7777*time.Millisecond {
				t.Errorf("woken after %v", took)
			}
			s.ledger.want(t, "lost", 0)
		})
	})
	t.Run("another process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			holder(s, "k", func(context.Context) (string, error) { time.Sleep(7777 * time.Millisecond); return "v", nil })
			begun := time.Now()
			s.faulty.ResetCounts()
			res, err := run(t.Context(), s.open(nil), "k", does(s.ledger, "k", "x"), idem.Wait(time.Minute))
			wantReplayed(t, res, err, "v")
			if took := time.Since(begun); took > 8100*time.Millisecond {
				t.Errorf("noticed after %v, want within a quarter of a second", took)
			}
			if n := s.faulty.Calls("Reserve"); n > 80 {
				t.Errorf("%d looks in 7.8 s", n)
			}
		})
	})
	t.Run("takes over when the lease ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			rec := s.abandon("k", 10*time.Second, backend.Rerun)
			res, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				if late := time.Since(rec.LeaseUntil); late != 0 {
					t.Errorf("taken over %v after the end of the lease", late)
				}
				return "v", nil
			}, idem.Wait(time.Minute))
			wantRan(t, res, err, "v")
		})
	})
	t.Run("ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.abandon("k", time.Minute, backend.Rerun)
			begun := time.Now()
			_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "x"), idem.Wait(10*time.Second))
			wantOnly(t, err, idem.ErrInFlight)
			if took := time.Since(begun); took != 10*time.Second {
				t.Errorf("gave up after %v", took)
			}
			if after := idem.RetryAfter(err); after != 50*time.Second {
				t.Errorf("retry after %v, want what the lease has left", after)
			}
			var busy *idem.InFlightError
			if !errors.As(err, &busy) || busy.Scope != testScope() || idem.Advise(err) != idem.AdviceRetry {
				t.Errorf("error %#v", err)
			}
		})
	})
	t.Run("zero fails fast", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{Wait: time.Hour})
			s.abandon("k", time.Minute, backend.Rerun)
			begun := time.Now()
			s.faulty.ResetCounts()
			_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "x"), idem.Wait(0))
			wantOnly(t, err, idem.ErrInFlight)
			if time.Since(begun) != 0 || s.faulty.Calls("Reserve") != 1 {
				t.Errorf("%v and %d looks", time.Since(begun), s.faulty.Calls("Reserve"))
			}
		})
	})
	t.Run("context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.abandon("k", time.Minute, backend.Rerun)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			begun := time.Now()
			_, err := run(ctx, s.store, "k", does(s.ledger, "k", "x"), idem.Wait(time.Hour))
			wantOnly(t, err, idem.ErrInFlight)
			wantErr(t, err, context.DeadlineExceeded)
			if took := time.Since(begun); took != 3*time.Second {
				t.Errorf("returned after %v", took)
			}
			if after := idem.RetryAfter(err); after <= 0 || after > time.Minute {
				t.Errorf("retry after %v, want what the lease has left", after)
			}
			s.ledger.want(t, "k", 0)
		})
	})
	t.Run("many", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{Wait: time.Hour})
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					res, err := run(context.Background(), s.store, "k", func(context.Context) (string, error) {
						time.Sleep(time.Second)
						if s.ledger.add("k"); s.ledger.count("k") < 5 {
							return "", errBoom
						}
						return "v", nil
					})
					if err != errBoom && (err != nil || res.Value != "v") {
						t.Errorf("%+v, %v", res, err)
					}
				})
			}
			begun := time.Now()
			all.Wait()
			s.ledger.want(t, "k", 5)
			if took := time.Since(begun); took != 5*time.Second {
				t.Errorf("five runs of a second took %v", took)
			}
		})
	})
}

// Get, Lookup, List, Resolve and Forget.
func TestStoreMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Retention: keep(time.Minute, time.Hour)})
		ctx, scope := t.Context(), testScope()
		get := func(k idem.Key) idem.Record {
			t.Helper()
			rec, err := s.store.Get(ctx, scope, k)
			if err != nil {
				t.Fatal(err)
			}
			return rec
		}
		_, err := s.store.Get(ctx, scope, "none")
		wantOnly(t, err, idem.ErrNotFound)
		_, err = idem.Lookup[string](ctx, s.store, scope, "none")
		wantOnly(t, err, idem.ErrNotFound)
		wantOnly(t, s.store.Resolve(ctx, scope, "none", 1, idem.NotApplied("x")), idem.ErrNotFound)
		wantOnly(t, s.store.Forget(ctx, scope, "none", 1, nil), idem.ErrNotFound)

		_, _ = run(ctx, s.store, "done", does(s.ledger, "done", "v"))
		_, _ = run(ctx, s.store, "failed", fails(s.ledger, "failed", idem.Permanent("code", errors.New("text"))))
		_, _ = run(ctx, s.store, "open", fails(s.ledger, "open", errBoom))
		_, _ = run(ctx, s.store, "uncertain", fails(s.ledger, "uncertain", idem.Uncertain(nil)))
		s.abandon("live", time.Minute, backend.Rerun)

		if rec := get("done"); string(rec.Result) != `"v"` || rec.Codec != "json" || rec.State != idem.StateCompleted || rec.Failure != nil || rec.Scope != scope || rec.Key != "done" || rec.KnownUntil.Sub(rec.CompletedAt) != time.Hour {
			t.Errorf("done: %+v", rec)
		}
		if rec := get("failed"); rec.Failure == nil || *rec.Failure != (idem.FailedError{Code: "code", Message: "text"}) || rec.Result != nil {
			t.Errorf("failed: %+v", rec)
		}
		if rec := get("live"); rec.State != idem.StateInFlight || rec.Holder.Host != "gone" || rec.LeaseUntil.IsZero() {
			t.Errorf("live: %+v", rec)
		}

		res, err := idem.Lookup[string](ctx, s.store, scope, "done")
		wantReplayed(t, res, err, "v")
		_, err = idem.Lookup[string](ctx, s.store, scope, "failed")
		wantErr(t, err, &idem.FailedError{Code: "code"})
		_, err = idem.Lookup[string](ctx, s.store, scope, "open")
		wantOnly(t, err, idem.ErrNotFound)
		_, err = idem.Lookup[string](ctx, s.store, scope, "uncertain")
		wantOnly(t, err, idem.ErrUnresolved)
		_, err = idem.Lookup[string](ctx, s.store, scope, "live")
		wantOnly(t, err, idem.ErrInFlight)
		if after := idem.RetryAfter(err); after != time.Minute {
			t.Errorf("retry after %v", after)
		}
		_, err = idem.Lookup[int](ctx, s.store, scope, "done")
		wantOnly(t, err, idem.ErrCorruptRecord)

		states := map[idem.State]int{}
		for rec, err := range s.store.List(ctx, idem.Filter{Tenant: "acme", Operation: "pay"}) {
			if err != nil {
				t.Fatal(err)
			}
			states[rec.State]++
		}
		if len(states) != 5 {
			t.Errorf("listed %v", states)
		}
		for rec, err := range s.store.List(ctx, idem.Filter{State: idem.StateUncertain}) {
			if err != nil || rec.Key != "uncertain" {
				t.Errorf("listed %+v, %v", rec, err)
			}
		}
		for range s.store.List(ctx, idem.Filter{Tenant: "nobody"}) {
			t.Error("another tenant's record")
		}
		for range s.store.List(ctx, idem.Filter{}) {
			break // holds nothing
		}
		s.faulty.Add(&backendtest.Fault{Method: "List", When: backendtest.After, Err: backend.ErrCorruptRecord})
		n, last := 0, error(nil)
		for _, err := range s.store.List(ctx, idem.Filter{}) {
			n, last = n+1, err
		}
		if n != 6 {
			t.Errorf("%d yields", n)
		}
		wantOnly(t, last, idem.ErrCorruptRecord)

		t.Log("resolve and forget are compare-and-set on the fence that was seen")
		for k, want := range map[idem.Key]error{"done": idem.ErrStale, "failed": idem.ErrStale, "live": idem.ErrInFlight} {
			wantOnly(t, s.store.Resolve(ctx, scope, k, get(k).Fence, idem.Applied("x", "y")), want)
		}
		for _, k := range []idem.Key{"done", "failed", "open", "uncertain", "live"} {
			wantOnly(t, s.store.Forget(ctx, scope, k, get(k).Fence+1, &idem.ForgetOptions{Force: true}), idem.ErrStale)
		}
		wantOnly(t, s.store.Resolve(ctx, scope, "uncertain", get("uncertain").Fence+1, idem.Applied("x", "y")), idem.ErrStale)
		wantOnly(t, s.store.Resolve(ctx, scope, "uncertain", 1, idem.Resolution{}), idem.ErrInvalidOption)
		if err := s.store.Resolve(ctx, scope, "uncertain", get("uncertain").Fence, idem.Applied("x", strings.Repeat("e", 1025))); !errors.Is(err, backend.ErrInvalidRequest) || idem.Advise(err) != idem.AdviceChange {
			t.Errorf("long evidence: %v", err)
		}

		wantOnly(t, s.store.Forget(ctx, scope, "live", get("live").Fence, nil), idem.ErrInFlight)
		wantOnly(t, s.store.Forget(ctx, scope, "live", get("live").Fence, &idem.ForgetOptions{}), idem.ErrInFlight)
		for k, o := range map[idem.Key]*idem.ForgetOptions{"done": nil, "live": {Force: true}} {
			if err := s.store.Forget(ctx, scope, k, get(k).Fence, o); err != nil {
				t.Error(err)
			}
			res, err := run(ctx, s.store, string(k), does(s.ledger, "again", "again"))
			wantRan(t, res, err, "again")
		}

		t.Log("an abandoned attempt can be resolved too, twice the same is no error")
		rec := s.abandon("dead", time.Second, backend.Recover)
		time.Sleep(2 * time.Second)
		for range 2 {
			if err := s.store.Resolve(ctx, scope, "dead", rec.Fence, idem.Applied(7, "seen")); err != nil {
				t.Error(err)
			}
		}
		seven, err := run(ctx, s.store, "dead", does(s.ledger, "dead", 8))
		wantReplayed(t, seven, err, 7)

		t.Log("an outage is an outage")
		s.faulty.Add(&backendtest.Fault{Times: -1, Err: errors.New("down")})
		_, err = s.store.Get(ctx, scope, "done")
		wantOnly(t, err, idem.ErrUnavailable)
		wantOnly(t, s.store.Forget(ctx, scope, "done", 1, nil), idem.ErrUnavailable)
		s.faulty.Heal()
		s.faulty.Add(&backendtest.Fault{Method: "Resolve", Err: fmt.Errorf("%w: cut", backend.ErrOutcomeUnknown)})
		wantOnly(t, s.store.Resolve(ctx, scope, "done", 1, idem.NotApplied("x")), idem.ErrOutcomeUnknown)
	})
}

// Resolve wakes who waits.
func TestResolveAndForgetWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		rec := s.abandon("k", time.Hour, backend.Rerun)
		waits := func(k string) (done chan time.Time) {
			done = make(chan time.Time, 1)
			go func() {
				_, _ = run(t.Context(), s.store, k, does(s.ledger, k, "v"), idem.Wait(time.Minute))
				done <- time.Now()
			}()
			time.Sleep(7777 * time.Millisecond)
			return done
		}
		done := waits("k")
		begun := time.Now()
		if err := s.store.Forget(t.Context(), testScope(), "k", rec.Fence, &idem.ForgetOptions{Force: true}); err != nil {
			t.Error(err)
		}
		if at := <-done; !at.Equal(begun) {
			t.Errorf("woken %v after the Forget", at.Sub(begun))
		}

		db := newFakeDB()
		store, _ := idem.New(db, nil)
		held, err := db.Reserve(t.Context(), backend.ReserveRequest{
			Ref: backend.Ref{ID: testID("held"), Owner: [16]byte{1}}, Fingerprint: storedHash(t, hashOf("h1")), TTL: time.Hour, KnownFor: time.Hour, OnAbandoned: idem.Rerun,
		})
		if err != nil {
			t.Fatal(err)
		}
		db.damage("held", func(r *backend.Record) { r.LeaseUntil = time.Time{} })
		s.store = store
		done = waits("held")
		begun = time.Now()
		if err := store.Resolve(t.Context(), testScope(), "held", held.Record.Fence, idem.Applied("v", "seen")); err != nil {
			t.Error(err)
		}
		if at := <-done; !at.Equal(begun) {
			t.Errorf("woken %v after the Resolve", at.Sub(begun))
		}
	})
}

func TestAdvise(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want idem.Advice
	}{
		{nil, idem.AdviceNone},
		{errBoom, idem.AdviceNone},
		{idem.Permanent("c", errBoom), idem.AdviceNone}, // before idem has seen it
		{idem.ErrInFlight, idem.AdviceRetry},
		{&idem.InFlightError{}, idem.AdviceRetry},
		{idem.ErrLeaseLost, idem.AdviceRetry},
		{idem.ErrOutcomeUnknown, idem.AdviceRetry},
		{idem.ErrUnavailable, idem.AdviceRetry},
		{idem.ErrRetryTransaction, idem.AdviceRetry},
		{context.Canceled, idem.AdviceRetry},
		{context.DeadlineExceeded, idem.AdviceRetry},
		{idem.ErrResultExpired, idem.AdviceStop},
		{idem.ErrResultUnavailable, idem.AdviceStop},
		{&idem.FailedError{Code: "c"}, idem.AdviceStop},
		{idem.ErrFingerprintMismatch, idem.AdviceChange},
		{idem.ErrInvalidKey, idem.AdviceChange},
		{idem.ErrNoFingerprint, idem.AdviceChange},
		{idem.ErrInvalidOption, idem.AdviceChange},
		{idem.ErrNested, idem.AdviceChange},
		{idem.ErrGuarantee, idem.AdviceChange},
		{idem.ErrNotFound, idem.AdviceNone},
		{idem.ErrStale, idem.AdviceChange},
		{backend.ErrInvalidRequest, idem.AdviceChange},
		{idem.ErrUnresolved, idem.AdviceAsk},
		{idem.ErrCorruptRecord, idem.AdviceAsk},
		{idem.ErrUnknownVersion, idem.AdviceAsk},
		{&backend.VersionError{}, idem.AdviceAsk},
	} {
		for _, err := range []error{tt.err, fmt.Errorf("outer: %w", tt.err)} {
			if tt.err == nil {
				err = nil
			}
			if got := idem.Advise(err); got != tt.want {
				t.Errorf("%v: %v, want %v", err, got, tt.want)
			}
		}
	}
	if got := idem.RetryAfter(fmt.Errorf("x: %w", &idem.InFlightError{RetryAfter: time.Second})); got != time.Second {
		t.Errorf("RetryAfter %v", got)
	}
	if idem.RetryAfter(errBoom) != 0 || idem.RetryAfter(nil) != 0 {
		t.Error("RetryAfter of other errors")
	}
	words := map[string]bool{}
	for a := idem.AdviceNone; a <= idem.AdviceAsk; a++ {
		words[a.String()] = true
	}
	if len(words) != 5 {
		t.Errorf("words %v", words)
	}
}

// The observer hears of each call once, and never of a key or a result.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "key-4711"
		s := newSetup(t, &idem.Options{LeaseTTL: time.Second, Retention: keep(time.Minute, time.Hour)})
		check := func(what string, want ...string) {
			t.Helper()
			s.events.mu.Lock()
			for _, e := range s.events.events {
				if text := fmt.Sprintf("%+v", e); strings.Contains(text, secret) || strings.Contains(text, "result-0815") || e.Scope != testScope() {
					t.Errorf("%s: event %s", what, text)
				}
			}
			starts := s.events.starts
			s.events.starts = 0
			s.events.mu.Unlock()
			calls := 0
			for _, w := range want {
				if strings.HasPrefix(w, "call ") {
					calls++
				}
			}
			if got := s.events.names(); !slices.Equal(got, want) || starts != calls {
				t.Errorf("%s: events %q and %d starts, want %q", what, got, starts, want)
			}
		}
		_, _ = run(t.Context(), s.store, secret, does(s.ledger, "k", "result-0815"))
		check("executed", "fn ok", "complete ok", "call executed")
		_, _ = run(t.Context(), s.store, secret, does(s.ledger, "k", ""))
		check("replayed", "call replayed")
		_, _ = idem.Execute(t.Context(), s.store, testScope(), secret, hashOf("h2"), does(s.ledger, "k", ""))
		check("mismatch", "call mismatch")
		time.Sleep(2 * time.Minute)
		_, _ = run(t.Context(), s.store, secret, does(s.ledger, "k", ""))
		check("expired", "call expired")
		_, _ = run(t.Context(), s.store, secret+"e", fails(s.ledger, "k", errBoom))
		check("error", "fn error", "release ok", "call error")
		_, _ = run(t.Context(), s.store, secret+"p", fails(s.ledger, "k", idem.Permanent("code", nil)))
		check("permanent", "fn error", "complete ok", "call failed")
		_, _ = run(t.Context(), s.store, secret+"p", fails(s.ledger, "k", nil))
		check("permanent again", "call failed")
		_, _ = run(t.Context(), s.store, secret+"u", fails(s.ledger, "k", idem.Uncertain(nil)))
		check("uncertain", "fn error", "complete ok", "call uncertain")
		s.abandon(secret+"a", time.Second, backend.Rerun)
		_, _ = run(t.Context(), s.store, secret+"a", does(s.ledger, "k", ""))
		check("in flight", "call inFlight")
		time.Sleep(time.Second)
		_, _ = run(t.Context(), s.store, secret+"a", does(s.ledger, "k", ""))
		check("takeover", "takeOver ok", "fn ok", "complete ok", "call executed")
		_, _ = run(t.Context(), s.store, secret+"b", does(s.ledger, "k", make(chan int)))
		check("not storable", "fn ok", "complete ok", "call executed")
		_, _ = run(t.Context(), s.store, secret+"b", does(s.ledger, "k", make(chan int)))
		check("unavailable", "call expired")
		s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: -1, Err: errors.New("down")})
		_, _ = run(t.Context(), s.store, secret+"d", does(s.ledger, "k", ""))
		check("unknown", "fn ok", "complete unknown", "call unknown")
		s.faulty.Heal()
		_, _ = run(t.Context(), s.store, secret+"l", func(ctx context.Context) (string, error) {
			_ = s.store.Forget(context.Background(), testScope(), secret+"l", idem.AttemptFrom(ctx).Fence, &idem.ForgetOptions{Force: true})
			<-ctx.Done()
			return "", ctx.Err()
		})
		check("lost", "leaseLost lost", "fn error", "call lost")
		s.faulty.Add(&backendtest.Fault{Method: "Reserve", Err: errors.New("down")})
		_, _ = run(t.Context(), s.store, secret+"r", does(s.ledger, "k", ""))
		check("down", "release ok", "call error")
		_ = panicked(func() {
			_, _ = run(t.Context(), s.store, secret+"x", func(context.Context) (string, error) { panic("x") })
		})
		check("panic", "release ok", "fn error", "call error")
		exited(func() {
			_, _ = run(t.Context(), s.store, secret+"x", func(context.Context) (string, error) { runtime.Goexit(); return "", nil })
		})
		check("Goexit", "release ok", "fn error", "call error")
	})
}

// The context that the observer made is the one that fn and the events see.
func TestObserverContext(t *testing.T) {
	spans := &spanObserver{}
	store, err := idem.New(memory.New(nil), &idem.Options{Observer: spans})
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(t.Context(), store, "k", func(ctx context.Context) (string, error) {
		if ctx.Value(spanKey{}) != 1 {
			t.Error("fn does not see the span")
		}
		return "v", nil
	})
	if err != nil || spans.without > 0 || spans.events == 0 {
		t.Errorf("%v; %d of %d events without the span", err, spans.without, spans.events)
	}
}

type spanKey struct{}

type spanObserver struct{ events, without int }

func (o *spanObserver) Start(ctx context.Context, _ idem.Scope) context.Context {
	return context.WithValue(ctx, spanKey{}, 1)
}

func (o *spanObserver) Observe(ctx context.Context, _ idem.Event) {
	o.events++
	if ctx.Value(spanKey{}) != 1 {
		o.without++
	}
}

// Derived keys are one identity along the chain: the same for every attempt and
// process, another for every step, scope and key.
func TestDeriveKey(t *testing.T) {
	derive := func(tenant, operation, k, step string) idem.Key {
		a := &idem.Attempt{Scope: idem.Scope{Tenant: tenant, Operation: operation}, Key: idem.Key(k)}
		return a.DeriveKey(step)
	}
	seen := map[idem.Key][4]string{}
	parts := []string{"", "a", "b", "ab", "a\x00", "\x00a", "1", "é"}
	for _, tenant := range parts {
		for _, operation := range parts {
			for _, k := range parts {
				for _, step := range parts {
					name := [4]string{tenant, operation, k, step}
					d := derive(tenant, operation, k, step)
					if other, ok := seen[d]; ok {
						t.Fatalf("%q and %q share %s", name, other, d)
					}
					seen[d] = name
					if len(d) != 36 || d[14] != '8' || !strings.Contains("89ab", string(d[19])) {
						t.Fatalf("%q is no UUID of version 8", d)
					}
				}
			}
		}
	}
	s := newSetup(t, nil)
	var keys []idem.Key
	for range 2 {
		_, _ = run(t.Context(), s.open(nil), "k", func(ctx context.Context) (string, error) {
			keys = append(keys, idem.AttemptFrom(ctx).DeriveKey("psp"))
			return "", errBoom
		})
	}
	if keys[0] != keys[1] || keys[0] != derive("acme", "pay", "k", "psp") {
		t.Errorf("the attempts derived %q", keys)
	}
}

// A context of fn that somebody keeps beyond its end says nothing about the key.
func TestContextKeptAfterTheEnd(t *testing.T) {
	s := newSetup(t, nil)
	var kept context.Context
	_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
		kept = context.WithoutCancel(ctx)
		return "v", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	res, err := run(kept, s.store, "k", does(s.ledger, "k", "x"))
	wantReplayed(t, res, err, "v")

	// What fn started with its context ends with the call.
	_, err = run(t.Context(), s.store, "k2", func(ctx context.Context) (string, error) {
		kept = ctx
		return "v", nil
	})
	if err != nil || kept.Err() == nil {
		t.Errorf("%v; fn's context lives on after the call", err)
	}
}

// A backend whose type cannot be compared works, too.
func TestBackendOfAnyType(t *testing.T) {
	type wrapper struct {
		backend.Backend
		_ []int
	}
	store, err := idem.New(wrapper{Backend: memory.New(nil)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(t.Context(), store, "k", func(ctx context.Context) (string, error) {
		res, err := run(ctx, store, "inner", func(context.Context) (string, error) { return "i", nil })
		return res.Value, err
	})
	if err != nil {
		t.Error(err)
	}
}

// The core adds little to what the backend does.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("not measured: the race detector allocates on its own account")
		return
	}
	store, err := idem.New(memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]idem.Key, 1002)
	for i := range keys {
		keys[i] = idem.Key(fmt.Sprint("k", i))
	}
	ctx, hash, i := t.Context(), hashOf("h"), 0
	fn := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	allocs := testing.AllocsPerRun(1000, func() {
		if _, err := idem.Execute(ctx, store, testScope(), keys[i], hash, fn); err != nil {
			t.Fatal(err)
		}
		i++
	})
	t.Logf("Execute of a new key over memory: %.1f allocations", allocs)
	if allocs > 25 {
		t.Errorf("%.1f allocations, want at most 25", allocs)
	}
}
