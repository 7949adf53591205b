package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/backend/memory"
)

// slowReserve makes a reserve take time before or after it is applied.
type slowReserve struct {
	backend.Backend
	before, after time.Duration
}

func (s *slowReserve) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	time.Sleep(s.before)
	res, err := s.Backend.Reserve(ctx, r)
	time.Sleep(s.after)
	return res, err
}

// A key that is granted too late is given back, and fn does not run (R3, R10).
func TestR10_GrantedTooLate(t *testing.T) {
	for name, slow := range map[string]slowReserve{
		"request late": {before: 950 * time.Millisecond},
		"answer late":  {after: 950 * time.Millisecond},
		"both":         {before: time.Minute, after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, nil)
				slow.Backend = s.faulty
				store := s.openOver(&slow, &idem.Options{LeaseTTL: time.Second})
				_, err := run(t.Context(), store, "k", does(s.ledger, "k", "v"))
				wantOnly(t, err, idem.ErrUnavailable)
				if idem.Advise(err) != idem.AdviceRetry {
					t.Errorf("advice %v", idem.Advise(err))
				}
				s.ledger.want(t, "k", 0)
				if rec := s.record("k"); rec.State != backend.Open {
					t.Errorf("state %v, want open: the key was withdrawn", rec.State)
				}
				res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
				wantRan(t, res, err, "v")
			})
		})
	}
	t.Run("within the lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			store := s.openOver(&slowReserve{Backend: s.faulty, before: 400 * time.Millisecond, after: 400 * time.Millisecond}, &idem.Options{LeaseTTL: time.Second})
			res, err := run(t.Context(), store, "k", func(ctx context.Context) (string, error) {
				if left := time.Until(idem.AttemptFrom(ctx).LeaseUntil()); left != 100*time.Millisecond {
					t.Errorf("the lease has %v left, want it counted from the sending", left)
				}
				time.Sleep(3 * time.Second)
				return "v", ctx.Err()
			})
			wantRan(t, res, err, "v")
		})
	})
}

// A request that was sent twice may have been granted at its first arrival. The
// lease then began earlier than the answer suggests, and the record says so.
func TestR03_GrantOfAnOlderCopy(t *testing.T) {
	t.Run("lease nearly over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			store := s.openOver(&earlierCopy{Backend: s.faulty, by: 950 * time.Millisecond}, &idem.Options{LeaseTTL: time.Second, Wait: time.Minute})
			_, err := run(t.Context(), store, "k", does(s.ledger, "k", "v"))
			wantOnly(t, err, idem.ErrUnavailable)
			s.ledger.want(t, "k", 0)
			if rec := s.record("k"); rec.State != backend.Open {
				t.Errorf("state %v, want open", rec.State)
			}
		})
	})
	t.Run("lease partly over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			store := s.openOver(&earlierCopy{Backend: s.faulty, by: 600 * time.Millisecond}, &idem.Options{LeaseTTL: time.Second, Wait: time.Minute})
			res, err := run(t.Context(), store, "k", func(ctx context.Context) (string, error) {
				if left := time.Until(idem.AttemptFrom(ctx).LeaseUntil()); left > 300*time.Millisecond {
					t.Errorf("the holder counts on %v, the store on 400ms", left)
				}
				time.Sleep(3 * time.Second)
				return "v", ctx.Err()
			})
			wantRan(t, res, err, "v")
		})
	})
}

// earlierCopy answers that the key is in flight until some time has passed, while
// a copy of the first request, delayed on its way, has long got the key.
type earlierCopy struct {
	backend.Backend
	by    time.Duration
	until time.Time
}

func (e *earlierCopy) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	now := time.Now()
	if e.until.IsZero() {
		e.until = now.Add(e.by)
		if _, err := e.Backend.Reserve(ctx, r); err != nil {
			return backend.Reservation{}, err
		}
	}
	if now.Before(e.until) {
		return backend.Reservation{Outcome: backend.Existing, Now: now, Record: backend.Record{
			Ref: backend.Ref{ID: r.ID, Owner: [16]byte{9}}, State: backend.InFlight, Fence: 1, LeaseUntil: e.until,
		}}, nil
	}
	return e.Backend.Reserve(ctx, r)
}

// Nobody knows whether a reserve that got no answer was granted. The key is given
// back with its token, on a context of its own (R9, R10).
func TestR10_UnknownReserveIsWithdrawn(t *testing.T) {
	t.Run("answer lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Reserve", When: backendtest.After, Err: fmt.Errorf("%w: connection reset", backend.ErrOutcomeUnknown)})
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			// The operation was not run for certain: this is not ErrOutcomeUnknown.
			wantOnly(t, err, idem.ErrUnavailable)
			if res.Value != "" {
				t.Errorf("value %q", res.Value)
			}
			s.ledger.want(t, "k", 0)
			if rec := s.record("k"); rec.State != backend.Open {
				t.Errorf("state %v, want open", rec.State)
			}
			if got := s.events.names(); len(got) != 2 || got[0] != "release ok" || got[1] != "call error" {
				t.Errorf("events %q", got)
			}
			res, err = run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
	t.Run("caller gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Reserve", When: backendtest.After, Block: make(chan struct{})})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			begun := time.Now()
			_, err := run(ctx, s.store, "k", does(s.ledger, "k", "v"))
			wantOnly(t, err, idem.ErrUnavailable)
			wantErr(t, err, context.DeadlineExceeded)
			if took := time.Since(begun); took > time.Second {
				t.Errorf("returned after %v", took)
			}
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
	t.Run("store hangs (C01 d)", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: 5 * time.Second})
			s.faulty.Add(&backendtest.Fault{When: backendtest.After, Times: -1, Block: make(chan struct{})})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			begun := time.Now()
			_, err := run(ctx, s.store, "k", does(s.ledger, "k", "v"))
			wantOnly(t, err, idem.ErrUnavailable)
			if took := time.Since(begun); took > 1300*time.Millisecond {
				t.Errorf("returned after %v, want within 1 s of the deadline", took)
			}
			s.ledger.want(t, "k", 0)
			s.faulty.Heal()
			time.Sleep(5 * time.Second)
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
			s.ledger.want(t, "k", 1)
		})
	})
	t.Run("sent twice (C01 a)", func(t *testing.T) {
		s := newSetup(t, nil)
		for _, method := range []string{"Reserve", "Complete", "Release"} {
			s.faulty.Add(&backendtest.Fault{Method: method, When: backendtest.Twice, Times: -1})
		}
		_, err := run(t.Context(), s.store, "k", fails(s.ledger, "k", errBoom))
		if err != errBoom {
			t.Error(err)
		}
		res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
		wantRan(t, res, err, "v")
		res, err = run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
		wantReplayed(t, res, err, "v")
		s.ledger.want(t, "k", 2)
	})
}

// A store that is down at reserve: fn does not run, nothing is left (R25).
func TestR25_StoreDownAtReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Wait: time.Minute})
		down := &backendtest.Fault{Times: -1, Err: errors.New("connection refused")}
		s.faulty.Add(down)
		begun := time.Now()
		_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
		wantOnly(t, err, idem.ErrUnavailable)
		if time.Since(begun) > time.Second {
			t.Errorf("returned after %v: the wait policy is for other callers, not for outages", time.Since(begun))
		}
		for _, bad := range []error{backend.ErrCorruptRecord, &backend.VersionError{What: "record", Found: 9, Known: 1}} {
			s.faulty.Heal()
			s.faulty.ResetCounts()
			s.faulty.Add(&backendtest.Fault{Method: "Reserve", Err: fmt.Errorf("reading: %w", bad)})
			_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			want := idem.ErrCorruptRecord
			if bad != backend.ErrCorruptRecord {
				want = idem.ErrUnknownVersion
			}
			wantOnly(t, err, want)
			if n := s.faulty.Calls("Release"); n != 0 {
				t.Errorf("%d releases after a definite answer", n)
			}
		}
		s.ledger.want(t, "k", 0)
	})
}

// A renewal that comes too late to count tells fn at once.
func TestR08_LostLeaseEndsTheContext(t *testing.T) {
	t.Run("store says so", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: 3 * time.Second})
			begun := time.Now()
			res, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				fence := idem.AttemptFrom(ctx).Fence
				if err := s.store.Forget(context.Background(), testScope(), "k", fence, &idem.ForgetOptions{Force: true}); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				if at := time.Since(begun); at != time.Second {
					t.Errorf("fn heard of it after %v, want at the first renewal", at)
				}
				wantErr(t, context.Cause(ctx), idem.ErrLeaseLost)
				return "v", nil
			})
			wantOnly(t, err, idem.ErrLeaseLost)
			if res.Value != "v" || res.Replayed || res.Attempt != 1 {
				t.Errorf("result %+v, want fn's value", res)
			}
		})
	})
	t.Run("no renewal gets through", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: 30 * time.Second})
			s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")})
			begun := time.Now()
			_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				<-ctx.Done()
				if at := time.Since(begun); at < 28*time.Second || at > 29*time.Second {
					t.Errorf("lost after %v, want 29s: the lease less a margin", at)
				}
				return "", context.Cause(ctx)
			})
			wantOnly(t, err, idem.ErrLeaseLost)
			if n := s.faulty.Calls("Release"); n != 0 {
				t.Errorf("%d releases", n)
			}
			if n := s.faulty.Calls("Renew"); n < 3 || n > 12 {
				t.Errorf("%d renewals tried", n)
			}
		})
	})
	t.Run("completion is accepted while nobody took over (R12)", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
			s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")})
			res, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				time.Sleep(time.Hour)
				return "v", nil
			})
			wantRan(t, res, err, "v")
		})
	})
	t.Run("a permanent failure too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
			s.faulty.Add(&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")})
			_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				time.Sleep(time.Hour)
				res, err := run(context.Background(), s.open(nil), "k", does(s.ledger, "B", "B"))
				wantRan(t, res, err, "B")
				return "", idem.Permanent("declined", nil)
			})
			wantOnly(t, err, idem.ErrLeaseLost)
			_, err = run(t.Context(), s.store, "u", func(ctx context.Context) (string, error) {
				time.Sleep(time.Hour)
				_, _ = run(context.Background(), s.open(nil), "u", does(s.ledger, "B", "B"))
				return "", idem.Uncertain(errBoom)
			})
			wantOnly(t, err, idem.ErrLeaseLost)
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "C", "C"))
			wantReplayed(t, res, err, "B")
		})
	})
}

// Finished work is recorded on a context of its own, with a limit, while the lease
// is renewed (R9, R10).
func TestR09_RecordingGoesOn(t *testing.T) {
	t.Run("store comes back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: 6 * time.Second})
			outage := &backendtest.Fault{Method: "Complete", Times: -1, Err: errors.New("down")}
			s.faulty.Add(outage)
			ctx, cancel := context.WithCancel(t.Context())
			res, err := run(ctx, s.store, "k", func(context.Context) (string, error) {
				cancel()
				time.AfterFunc(4*time.Second, func() { s.faulty.Remove(outage) })
				return "v", nil
			})
			wantRan(t, res, err, "v")
			if n := s.faulty.Calls("Complete"); n < 5 || n > 30 {
				t.Errorf("%d tries in 4 s", n)
			}
			if s.faulty.Calls("Renew") == 0 {
				t.Error("no renewal meanwhile")
			}
		})
	})
	t.Run("release too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Release", Times: 3, Err: errors.New("down")})
			ctx, cancel := context.WithCancel(t.Context())
			_, err := run(ctx, s.store, "k", func(context.Context) (string, error) { cancel(); return "", errBoom })
			if err != errBoom {
				t.Errorf("error %v, want fn's own", err)
			}
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
	t.Run("release never", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			s.faulty.Add(&backendtest.Fault{Method: "Release", Times: -1, Block: make(chan struct{})})
			begun := time.Now()
			_, err := run(t.Context(), s.store, "k", fails(s.ledger, "k", errBoom))
			if err != errBoom || time.Since(begun) > 5*time.Second {
				t.Errorf("error %v after %v, want fn's own within 5s", err, time.Since(begun))
			}
			_, err = run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantOnly(t, err, idem.ErrInFlight)
			if n := s.events.count(idem.PhaseRelease, idem.OutcomeError); n != 1 {
				t.Errorf("the observer heard of %d failed releases", n)
			}
		})
	})
	t.Run("short lease bounds it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: 2 * time.Second})
			s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: -1, Err: errors.New("down")})
			begun := time.Now()
			_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			wantOnly(t, err, idem.ErrOutcomeUnknown)
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("returned after %v", took)
			}
		})
	})
}

// With the lease lost there is one try to record the outcome: nobody may have taken
// the key over yet.
func TestR10_OneTryWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{LeaseTTL: time.Second})
		s.faulty.Add(
			&backendtest.Fault{Method: "Renew", Times: -1, Err: errors.New("down")},
			&backendtest.Fault{Method: "Complete", Times: -1, Err: errors.New("down")})
		begun := time.Now()
		res, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) { time.Sleep(time.Minute); return "v", nil })
		wantOnly(t, err, idem.ErrOutcomeUnknown)
		if n := s.faulty.Calls("Complete"); n != 1 || res.Value != "v" || time.Since(begun) != time.Minute {
			t.Errorf("%d tries, value %q, after %v", n, res.Value, time.Since(begun))
		}
	})
}

// A renewal that is under way has ended when the call returns.
func TestR08_NoRenewalOutlivesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lingeringRenewal{Backend: memory.New(nil), started: make(chan struct{})}
		store, err := idem.New(b, &idem.Options{LeaseTTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		_, err = run(t.Context(), store, "k", func(context.Context) (string, error) { <-b.started; return "v", nil })
		if err != nil || !b.ended {
			t.Errorf("%v; the renewal has ended: %v", err, b.ended)
		}
	})
}

// lingeringRenewal takes a moment to notice that its context has ended.
type lingeringRenewal struct {
	backend.Backend
	started chan struct{}
	ended   bool
}

func (b *lingeringRenewal) Renew(ctx context.Context, _ backend.Ref, _ time.Duration) error {
	close(b.started)
	<-ctx.Done()
	time.Sleep(10 * time.Millisecond)
	b.ended = true
	return ctx.Err()
}

// Outcomes that a person or another attempt has settled meanwhile.
func TestR12_CompletionNeverCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
			err := s.store.Forget(context.Background(), testScope(), "k", idem.AttemptFrom(ctx).Fence, &idem.ForgetOptions{Force: true})
			return "v", err
		})
		wantOnly(t, err, idem.ErrLeaseLost)
		if _, err := s.store.Get(t.Context(), testScope(), "k"); !errors.Is(err, idem.ErrNotFound) {
			t.Errorf("Get: %v, want ErrNotFound", err)
		}
	})
}

// The store's clock decides about records, whatever the caller's says.
func TestStoreClockDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		offset := -1000 * time.Hour
		mem := memory.New(&memory.Options{Now: func() time.Time { return time.Now().Add(offset) }})
		store, err := idem.New(mem, &idem.Options{LeaseTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		log := &ledger{}
		res, err := run(t.Context(), store, "k", func(ctx context.Context) (string, error) {
			_, err := run(context.Background(), store, "k", does(log, "k", "x"))
			if got := idem.RetryAfter(err); got != time.Minute {
				t.Errorf("retry after %v, want the minute by the store's clock", got)
			}
			_, err = idem.Lookup[string](context.Background(), store, testScope(), "k")
			if got := idem.RetryAfter(err); got < 0 || got > 2*time.Minute {
				t.Errorf("Lookup: retry after %v, want no nonsense", got)
			}
			return "v", nil
		})
		wantRan(t, res, err, "v")
		if want := time.Now().Add(offset); !res.CompletedAt.Equal(want) {
			t.Errorf("completed at %v, want %v", res.CompletedAt, want)
		}
	})
}
