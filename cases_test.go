package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/backend/memory"
)

// The caller's context dies between fn's return and the bookkeeping.
func TestCaseC02_CallerGoesAway(t *testing.T) {
	lease := &idem.Options{LeaseTTL: time.Minute}
	t.Run("a success", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, lease)
			ctx, cancel := context.WithCancel(t.Context())
			res, err := run(ctx, s.store, "k", func(context.Context) (string, error) {
				s.ledger.add("k")
				cancel()
				return "v", nil
			})
			wantRan(t, res, err, "v")
			res, err = run(t.Context(), s.open(lease), "k", does(s.ledger, "k", "again"))
			wantReplayed(t, res, err, "v")
			s.ledger.want(t, "k", 1)
		})
	})
	t.Run("b error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, lease)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := run(ctx, s.store, "k", func(ctx context.Context) (string, error) {
				cancel()
				return "", ctx.Err()
			})
			if err != context.Canceled {
				t.Errorf("error %v, want fn's own", err)
			}
			begun := time.Now()
			res, err := run(t.Context(), s.open(lease), "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
			if res.Attempt != 2 || time.Since(begun) != 0 {
				t.Errorf("attempt %d after %v, want the second, at once", res.Attempt, time.Since(begun))
			}
		})
	})
	t.Run("c deadline inside fn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, lease)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			res, err := run(ctx, s.store, "k", func(ctx context.Context) (string, error) {
				s.ledger.add("k")
				time.Sleep(2 * time.Second)
				if ctx.Err() == nil {
					t.Error("fn's context has outlived its caller's")
				}
				return "v", nil
			})
			wantRan(t, res, err, "v")
			res, err = run(t.Context(), s.open(lease), "k", does(s.ledger, "k", "again"))
			wantReplayed(t, res, err, "v")
			s.ledger.want(t, "k", 1)
		})
	})
	t.Run("e store gone by then", func(t *testing.T) {
		for name, fault := range map[string]*backendtest.Fault{
			"refuses": {Method: "Complete", Times: -1, Err: errors.New("connection refused")},
			"hangs":   {Method: "Complete", Times: -1, Block: make(chan struct{})},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if fault.Block != nil {
						fault.Block = make(chan struct{}) // of this bubble
					}
					s := newSetup(t, lease)
					s.faulty.Add(fault)
					ctx, cancel := context.WithCancel(t.Context())
					begun := time.Now()
					res, err := run(ctx, s.store, "k", func(context.Context) (string, error) {
						cancel()
						return "v", nil
					})
					wantOnly(t, err, idem.ErrOutcomeUnknown)
					if took := time.Since(begun); took > 5*time.Second {
						t.Errorf("returned after %v, want at most 5s", took)
					}
					if res.Value != "v" {
						t.Errorf("value %q, want what fn returned", res.Value)
					}
				})
			})
		}
	})
}

// An old owner wakes up and finishes on top of the new one. The renewals are off,
// so the store gives the key away; both attempts are of one process.
func TestCaseC05_OldOwnerCannotFinish(t *testing.T) {
	for _, how := range []string{"return", "error", "panic"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
				s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("no heartbeat")})

				type answer struct {
					res   idem.Result[string]
					err   error
					panic any
				}
				wakeA, doneA := make(chan struct{}), make(chan answer, 1)
				go func() {
					var a answer
					a.panic = panicked(func() {
						a.res, a.err = run(t.Context(), s.store, "k", func(context.Context) (string, error) {
							s.ledger.add("A")
							<-wakeA
							switch how {
							case "error":
								return "", errBoom
							case "panic":
								panic("A is upset")
							}
							return "A", nil
						})
					})
					doneA <- a
				}()
				time.Sleep(1200 * time.Millisecond)

				wakeB, doneB := make(chan struct{}), make(chan answer, 1)
				go func() {
					var b answer
					b.res, b.err = run(t.Context(), s.open(nil), "k", func(ctx context.Context) (string, error) {
						s.ledger.add("B")
						if a := idem.AttemptFrom(ctx); !a.TookOver || a.Number != 2 {
							t.Errorf("B is attempt %d, took over: %v; want 2, true", a.Number, a.TookOver)
						}
						<-wakeB
						return "B", nil
					})
					doneB <- b
				}()
				synctest.Wait()
				before := s.record("k")

				close(wakeA)
				a := <-doneA
				switch how {
				case "return":
					wantOnly(t, a.err, idem.ErrLeaseLost)
					if a.res.Value != "A" {
						t.Errorf("value %q, want what fn returned", a.res.Value)
					}
				case "error":
					// The case wants LOST. DESIGN R11 stands: fn's own error comes back
					// unwrapped, and the loss goes to the observer.
					if a.err != errBoom {
						t.Errorf("error %v, want fn's own, unwrapped", a.err)
					}
				case "panic":
					if a.panic != "A is upset" {
						t.Errorf("panic value %v", a.panic)
					}
				}
				if n := s.events.count(idem.PhaseLeaseLost, idem.OutcomeLost); n != 1 {
					t.Errorf("the observer heard of %d lost leases, want 1", n)
				}
				if n := s.faulty.Calls("Release"); n != 0 {
					t.Errorf("%d releases by an attempt that lost its lease", n)
				}
				after := s.record("k")
				if after.Owner != before.Owner || after.State != backend.InFlight || after.Fence != before.Fence {
					t.Errorf("the record was %+v, is %+v after the old owner ended", before, after)
				}

				_, err := run(t.Context(), s.open(nil), "k", does(s.ledger, "C", "C"))
				wantOnly(t, err, idem.ErrInFlight)

				close(wakeB)
				b := <-doneB
				wantRan(t, b.res, b.err, "B")
				res, err := run(t.Context(), s.open(nil), "k", does(s.ledger, "C", "C"))
				wantReplayed(t, res, err, "B")
				s.ledger.want(t, "A", 1)
				s.ledger.want(t, "B", 1)
				s.ledger.want(t, "C", 0)
			})
		})
	}
}

// The store's clock makes the takeover in the very instant in which the lease
// ends: tokens, not times, tell attempts apart.
func TestCaseC05_TakeoverInTheSameInstant(t *testing.T) {
	clock := time.Unix(1_800_000_000, 0)
	mem := memory.New(&memory.Options{Now: func() time.Time { return clock }})
	store, err := idem.New(mem, &idem.Options{LeaseTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var ran []string
	res, err := run(t.Context(), store, "k", func(ctx context.Context) (string, error) {
		ran = append(ran, "A")
		clock = clock.Add(time.Hour) // exactly the end of the lease
		res, err := run(t.Context(), store, "k", func(context.Context) (string, error) {
			ran = append(ran, "B")
			return "B", nil
		})
		wantRan(t, res, err, "B")
		return "A", nil
	})
	wantOnly(t, err, idem.ErrLeaseLost)
	if res.Value != "A" || !slices.Equal(ran, []string{"A", "B"}) {
		t.Errorf("value %q, ran %v", res.Value, ran)
	}
	res, err = run(t.Context(), store, "k", func(context.Context) (string, error) { return "C", nil })
	wantReplayed(t, res, err, "B")
}

// The work is done and recording it fails.
func TestCaseC09_WorkDoneRecordingFails(t *testing.T) {
	t.Run("a always", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: 20 * time.Second})
			s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: -1, Err: errors.New("disk full")})
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v1"))
			wantOnly(t, err, idem.ErrOutcomeUnknown)
			if res.Value != "v1" {
				t.Errorf("value %q, want what fn returned", res.Value)
			}
			if n := s.faulty.Calls("Release"); n != 0 {
				t.Errorf("%d releases, want none: a store error never releases", n)
			}
			_, err = run(t.Context(), s.open(nil), "k", does(s.ledger, "k", "v2"))
			wantOnly(t, err, idem.ErrInFlight)
			s.ledger.want(t, "k", 1)

			// After the lease the policy decides; this is Rerun.
			s.faulty.Heal()
			time.Sleep(20 * time.Second)
			res, err = run(t.Context(), s.open(nil), "k", does(s.ledger, "k", "v3"))
			wantRan(t, res, err, "v3")
			s.ledger.want(t, "k", 2)
		})
	})
	t.Run("b twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: 2, Err: errors.New("hiccup")})
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
			res, err = run(t.Context(), s.open(nil), "k", does(s.ledger, "k", "v2"))
			wantReplayed(t, res, err, "v")
			s.ledger.want(t, "k", 1)
		})
	})
	t.Run("c after applying", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Complete", When: backendtest.After, Times: 2, Err: errors.New("connection reset")})
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
			res, err = run(t.Context(), s.open(nil), "k", does(s.ledger, "k", "v2"))
			wantReplayed(t, res, err, "v")
			s.ledger.want(t, "k", 1)
		})
	})
	t.Run("d reserve", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Reserve", Times: -1, Err: errors.New("overloaded")})
			for range 2 {
				_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
				wantOnly(t, err, idem.ErrUnavailable)
			}
			s.ledger.want(t, "k", 0)
			s.faulty.Heal()
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
}

// fn panics or leaves by Goexit, with ten callers of this process waiting.
func TestCaseC16_PanicAndGoexit(t *testing.T) {
	endings := map[string]func(){
		"panic":      func() { panic("x") },
		"panic(nil)": func() { panic(nil) },
		"Goexit":     runtime.Goexit,
	}
	policies := map[string]struct {
		opts []idem.CallOption
		want error // of the waiting callers; nil: they run or replay
	}{
		"rerun": {nil, nil},
		"hold":  {[]idem.CallOption{idem.OnAbandoned(idem.Hold)}, idem.ErrUnresolved},
		"recover": {[]idem.CallOption{idem.RecoverWith(func(context.Context) (string, bool, error) {
			return "", false, errors.New("must not be asked: the key is uncertain")
		})}, idem.ErrUnresolved},
	}
	for how, end := range endings {
		for policy, p := range policies {
			t.Run(how+"/"+policy, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSetup(t, &idem.Options{LeaseTTL: time.Minute})
					var failures, replays atomic.Int64
					var ended time.Time
					var all sync.WaitGroup
					waiter := func() {
						res, err := run(t.Context(), s.store, "k", does(s.ledger, "second", "v"), idem.Wait(time.Minute))
						switch {
						case p.want != nil:
							wantOnly(t, err, p.want)
							failures.Add(1)
						case err != nil || res.Value != "v":
							t.Errorf("a waiting caller got %+v, %v", res, err)
						case res.Replayed:
							replays.Add(1)
						}
						if took := time.Since(ended); took != 0 {
							t.Errorf("a waiting caller returned %v after the end", took)
						}
					}
					var value any
					all.Go(func() {
						returned := false
						defer func() {
							value = recover()
							if returned {
								t.Error("Execute returned")
							}
						}()
						_, _ = run(t.Context(), s.store, "k", func(context.Context) (string, error) {
							s.ledger.add("first")
							for range 10 {
								all.Go(waiter)
							}
							time.Sleep(10 * time.Second) // all of them wait
							ended = time.Now()
							end()
							return "", nil
						}, p.opts...)
						returned = true
					})
					all.Wait()
					switch how {
					case "panic":
						if value != "x" {
							t.Errorf("panic value %v", value)
						}
					case "panic(nil)":
						if _, ok := value.(*runtime.PanicNilError); !ok {
							t.Errorf("panic value %T", value)
						}
					case "Goexit":
						if value != nil {
							t.Errorf("panic value %v", value)
						}
					}
					if p.want == nil {
						s.ledger.want(t, "second", 1)
						if replays.Load() != 9 {
							t.Errorf("%d replays, want 9", replays.Load())
						}
						return
					}
					s.ledger.want(t, "second", 0)
					if failures.Load() != 10 {
						t.Errorf("%d waiting callers have an answer, want all 10", failures.Load())
					}
					if rec := s.record("k"); rec.State != backend.Uncertain {
						t.Errorf("state %v, want uncertain", rec.State)
					}
				})
			})
		}
	}
}

// The fingerprint stays with the record. Every step has a handle of its own.
func TestCaseC18_FingerprintStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		call := func(key string, hash idem.Fingerprint, fn func(context.Context) (string, error)) (idem.Result[string], error) {
			return idem.Execute(t.Context(), s.open(&idem.Options{LeaseTTL: time.Second}), testScope(), idem.Key(key), hash, fn)
		}
		h1, h2 := hashOf("h1"), hashOf("h2")

		res, err := call("k", h1, does(s.ledger, "k", "secret"))
		wantRan(t, res, err, "secret")
		res, err = call("k", h1, does(s.ledger, "k", "x"))
		wantReplayed(t, res, err, "secret")
		before := s.record("k")
		for _, hash := range []idem.Fingerprint{h2, idem.NoFingerprint()} {
			res, err = call("k", hash, does(s.ledger, "k", "x"))
			wantOnly(t, err, idem.ErrFingerprintMismatch)
			if res != (idem.Result[string]{}) || strings.Contains(err.Error(), "secret") {
				t.Errorf("a mismatch carries %+v, %v", res, err)
			}
		}
		if after := s.record("k"); string(after.Body) != string(before.Body) || after.Fence != before.Fence || after.State != before.State {
			t.Errorf("a mismatch changed the record: %+v", after)
		}
		s.ledger.want(t, "k", 1)

		// While an attempt with h1 runs.
		_, err = call("running", h1, func(context.Context) (string, error) {
			_, err := call("running", h1, does(s.ledger, "running", "x"))
			wantOnly(t, err, idem.ErrInFlight)
			_, err = call("running", h2, does(s.ledger, "running", "x"))
			wantOnly(t, err, idem.ErrFingerprintMismatch)
			return "v", nil
		})
		if err != nil {
			t.Error(err)
		}
		s.ledger.want(t, "running", 0)

		// Release unbinds the fingerprint (R2).
		if _, err = call("released", h1, fails(s.ledger, "released", errBoom)); err != errBoom {
			t.Error(err)
		}
		res, err = call("released", h2, does(s.ledger, "released", "v"))
		wantRan(t, res, err, "v")
		_, err = call("released", h1, does(s.ledger, "released", "x"))
		wantOnly(t, err, idem.ErrFingerprintMismatch)

		// Takeover does not.
		s.abandon("abandoned", time.Second, backend.Rerun)
		time.Sleep(2 * time.Second)
		_, err = call("abandoned", h2, does(s.ledger, "abandoned", "x"))
		wantOnly(t, err, idem.ErrFingerprintMismatch)
		s.ledger.want(t, "abandoned", 0)
		res, err = call("abandoned", h1, does(s.ledger, "abandoned", "v"))
		wantRan(t, res, err, "v")

		// Nor does an uncertain end.
		_, _ = call("uncertain", h1, fails(s.ledger, "uncertain", idem.Uncertain(errBoom)))
		_, err = call("uncertain", h2, does(s.ledger, "uncertain", "x"))
		wantOnly(t, err, idem.ErrFingerprintMismatch)

		// No fingerprint matches only no fingerprint.
		res, err = call("none", idem.NoFingerprint(), does(s.ledger, "none", "v"))
		wantRan(t, res, err, "v")
		res, err = call("none", idem.NoFingerprint(), does(s.ledger, "none", "x"))
		wantReplayed(t, res, err, "v")
		_, err = call("none", h1, does(s.ledger, "none", "x"))
		wantOnly(t, err, idem.ErrFingerprintMismatch)
		_, err = call("none", idem.Fingerprint{}, does(s.ledger, "none", "x"))
		wantOnly(t, err, idem.ErrNoFingerprint)
		s.ledger.want(t, "none", 1)
	})
}

// Retention counts from completion, leases from the last renewal.
func TestCaseC21_WindowsCountFromCompletion(t *testing.T) {
	o := &idem.Options{LeaseTTL: 30 * time.Second, Retention: keep(10*time.Minute, 10*time.Minute)}
	sweep := func(t *testing.T, s *setup) {
		t.Helper()
		if _, err := s.mem.Expire(t.Context(), backend.ExpireRequest{}); err != nil {
			t.Error(err)
		}
	}
	t.Run("a slow operation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, o)
			begun := time.Now()
			res, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) {
				s.ledger.add("k")
				time.Sleep(15 * time.Minute)
				return "v", nil
			})
			wantRan(t, res, err, "v")
			if want := begun.Add(25 * time.Minute); !res.KnownUntil.Equal(want) || !res.ReplayUntil.Equal(want) || !res.CompletedAt.Equal(begun.Add(15*time.Minute)) {
				t.Errorf("result %+v, want known until %v", res, want)
			}
			sweep(t, s)
			for _, at := range []time.Duration{16 * time.Minute, 24*time.Minute + 59*time.Second} {
				time.Sleep(time.Until(begun.Add(at)))
				res, err = run(t.Context(), s.open(o), "k", does(s.ledger, "k", "x"))
				wantReplayed(t, res, err, "v")
			}
			time.Sleep(time.Until(begun.Add(25*time.Minute + time.Second)))
			res, err = run(t.Context(), s.open(o), "k", does(s.ledger, "k", "v2"))
			wantRan(t, res, err, "v2")
			if res.Attempt != 1 {
				t.Errorf("attempt %d: an expired record reads as absent", res.Attempt)
			}
			s.ledger.want(t, "k", 2)
		})
	})
	t.Run("b killed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, o)
			s.abandon("k", 30*time.Second, backend.Rerun)
			time.Sleep(29 * time.Second)
			_, err := run(t.Context(), s.open(o), "k", does(s.ledger, "k", "x"))
			wantOnly(t, err, idem.ErrInFlight)
			if got := idem.RetryAfter(err); got != time.Second {
				t.Errorf("retry after %v, want the second that the lease has left", got)
			}
			time.Sleep(2 * time.Second)
			res, err := run(t.Context(), s.open(o), "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
	t.Run("c failure after the lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, o)
			s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("no heartbeat")})
			declined := &idem.FailedError{Code: "declined"}
			_, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) {
				time.Sleep(5 * time.Minute)
				return "", idem.Permanent("declined", nil)
			})
			wantErr(t, err, declined)
			sweep(t, s)
			time.Sleep(10*time.Minute - time.Second)
			sweep(t, s)
			_, err = run(t.Context(), s.open(o), "k", does(s.ledger, "k", "x"))
			wantErr(t, err, declined)
			s.ledger.want(t, "k", 0)
			time.Sleep(time.Second)
			res, err := run(t.Context(), s.open(o), "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
}

// Scope and key are not glued together.
func TestCaseC24_ScopeAndKeyApart(t *testing.T) {
	type name struct{ tenant, operation, key string }
	pairs := [][2]name{
		{{"t", "a:b", "c"}, {"t", "a", "b:c"}},
		{{"t", "a/b", "c"}, {"t", "a", "b/c"}},
		{{"t", "a", "bc"}, {"t", "ab", "c"}},
		{{"a:b", "o", "c"}, {"a", "o", "b:c"}},
		{{"ab", "c", "k"}, {"a", "bc", "k"}},
		{{"", "ab", "k"}, {"a", "b", "k"}},
		{{"A", "o", "k"}, {"a", "o", "k"}},
		{{"t", "A", "k"}, {"t", "a", "k"}},
		{{"t", "o", "\u00e9"}, {"t", "o", "e\u0301"}},
		{{"t", "o", "k"}, {"t", "o", "k "}},
		{{"t", "o", "k"}, {"t", "o", "K"}},
	}
	s := newSetup(t, nil)
	distinct := make(map[name]bool)
	for _, pair := range pairs {
		for _, n := range pair {
			distinct[n] = true
		}
	}
	for round := range 2 {
		for n := range distinct {
			want := fmt.Sprintf("%q", n)
			res, err := idem.Execute(t.Context(), s.open(nil), idem.Scope{Tenant: n.tenant, Operation: n.operation}, idem.Key(n.key), idem.NoFingerprint(), does(s.ledger, want, want))
			if err != nil || res.Value != want || res.Replayed != (round == 1) {
				t.Errorf("round %d of %q: %+v, %v", round, n, res, err)
			}
			s.ledger.want(t, want, 1)
		}
	}
	for _, n := range []name{{"t", "a\x00b", "c"}, {"t", "a", "b\x00c"}} {
		_, err := idem.Execute(t.Context(), s.store, idem.Scope{Tenant: n.tenant, Operation: n.operation}, idem.Key(n.key), idem.NoFingerprint(), does(s.ledger, "nul", ""))
		wantOnly(t, err, idem.ErrInvalidKey)
	}
	s.ledger.want(t, "nul", 0)

	for _, operation := range []string{"a", "a%", "a_", "a*", "A"} {
		want := 0
		for n := range distinct {
			if n.operation == operation {
				want++
			}
		}
		got := 0
		for rec, err := range s.store.List(t.Context(), idem.Filter{Operation: operation}) {
			if err != nil || rec.Scope.Operation != operation {
				t.Errorf("list %q yields %+v, %v", operation, rec, err)
			}
			got++
		}
		if got != want {
			t.Errorf("list %q yields %d records, want %d", operation, got, want)
		}
	}
}

// Slow work keeps its lease, and a late renewal does not steal it back.
func TestCaseC27_Renewals(t *testing.T) {
	o := &idem.Options{LeaseTTL: time.Second}
	t.Run("a e slow operation under a sweeper", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, o)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for ctx.Err() == nil {
					_, _ = s.mem.Expire(t.Context(), backend.ExpireRequest{})
					time.Sleep(100 * time.Millisecond)
				}
			}()
			res, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) {
				s.ledger.add("k")
				for range 25 {
					time.Sleep(200 * time.Millisecond)
					_, err := run(t.Context(), s.open(o), "k", does(s.ledger, "k", "x"))
					wantOnly(t, err, idem.ErrInFlight)
				}
				return "v", nil
			})
			wantRan(t, res, err, "v")
			s.ledger.want(t, "k", 1)
			if n := s.faulty.Calls("Renew"); n < 12 || n > 16 {
				t.Errorf("%d renewals in 5 s, want one per third of a second", n)
			}
			cancel()
			time.Sleep(time.Second)
			renewals := s.faulty.Calls("Renew")
			time.Sleep(time.Minute)
			if n := s.faulty.Calls("Renew"); n != renewals {
				t.Errorf("%d renewals after the end", n-renewals)
			}
		})
	})
	t.Run("b renewal blocks", func(t *testing.T) {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSetup(t, o)
					unblock := make(chan struct{})
					s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Block: unblock, Deaf: deaf})
					time.AfterFunc(3*time.Second, func() { close(unblock) })

					lost := make(chan time.Duration, 1)
					begun := time.Now()
					doneA := make(chan error, 1)
					go func() {
						_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
							s.ledger.add("A")
							<-ctx.Done()
							lost <- time.Since(begun)
							wantErr(t, context.Cause(ctx), idem.ErrLeaseLost)
							return "", ctx.Err()
						})
						doneA <- err
					}()
					if at := <-lost; at >= time.Second {
						t.Errorf("fn's context ended after %v, when the lease was over", at)
					}
					time.Sleep(time.Until(begun.Add(1100 * time.Millisecond)))
					res, err := run(t.Context(), s.open(&idem.Options{LeaseTTL: time.Minute}), "k", func(ctx context.Context) (string, error) {
						s.ledger.add("B")
						time.Sleep(5 * time.Second)
						return "B", ctx.Err()
					})
					wantRan(t, res, err, "B")
					// fn returned the cancellation of its own context, so the loss is
					// the answer.
					err = <-doneA
					wantOnly(t, err, idem.ErrLeaseLost)
					wantErr(t, err, context.Canceled)
				})
			})
		}
	})
	t.Run("c fails twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, o)
			s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: 2, Err: errors.New("hiccup")})
			res, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				time.Sleep(3 * time.Second)
				return "v", ctx.Err()
			})
			wantRan(t, res, err, "v")
			if n := s.events.count(idem.PhaseRenew, idem.OutcomeError); n != 2 {
				t.Errorf("the observer heard of %d failed renewals, want 2", n)
			}
		})
	})
	t.Run("d ends during a renewal", func(t *testing.T) {
		for _, when := range []backendtest.When{backendtest.Before, backendtest.After} {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, o)
				inRenewal := make(chan struct{})
				s.faulty.Add(&backendtest.Fault{
					Method: "Renew", When: when, Block: make(chan struct{}),
					Hit: func(string, backend.ID) { close(inRenewal) },
				})
				begun := time.Now()
				res, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) {
					<-inRenewal
					return "v", nil
				})
				wantRan(t, res, err, "v")
				if took := time.Since(begun); took > 500*time.Millisecond {
					t.Errorf("the call waited for its renewal: %v", took)
				}
				res, err = run(t.Context(), s.open(o), "k", does(s.ledger, "k", "x"))
				wantReplayed(t, res, err, "v")
			})
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		checkLeaks(t)
		s := newSetup(t, &idem.Options{LeaseTTL: 150 * time.Millisecond})
		renewed := make(chan struct{}, 100)
		s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Hit: func(string, backend.ID) { renewed <- struct{}{} }})
		for i := range 20 {
			_, err := run(t.Context(), s.store, fmt.Sprint(i), func(ctx context.Context) (string, error) {
				if i%4 == 0 {
					select {
					case <-renewed:
					case <-ctx.Done(): // a machine too busy to renew in time
					}
				}
				return "v", nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}
