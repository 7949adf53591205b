package expiry_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

func leaseRef(owner byte) backend.Ref {
	return backend.Ref{ID: backend.ID{Operation: expiry.SweeperOperation, Key: expiry.SweeperKey}, Owner: [16]byte{owner}}
}

// A record of somebody else in the place of the lease is not overwritten: it is told,
// with what to do, and sweeping begins when it is gone.
func TestSweeperFindsAForeignRecord(t *testing.T) {
	for name, settleIt := range map[string]func(*testing.T, *memory.Backend){
		"completed": func(t *testing.T, b *memory.Backend) {
			if _, err := b.Complete(t.Context(), backend.CompleteRequest{Ref: leaseRef(7), State: backend.Completed, ReplayFor: 100 * time.Hour, KnownFor: 100 * time.Hour}); err != nil {
				t.Fatal(err)
			}
		},
		"uncertain": func(t *testing.T, b *memory.Backend) {
			if _, err := b.Complete(t.Context(), backend.CompleteRequest{Ref: leaseRef(7), State: backend.Uncertain}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New(nil)
				settle(t, b, 10)
				time.Sleep(2 * time.Hour)
				if _, err := b.Reserve(t.Context(), backend.ReserveRequest{Ref: leaseRef(7), TTL: time.Hour, KnownFor: time.Hour, OnAbandoned: backend.Hold, Fingerprint: make([]byte, 33)}); err != nil {
					t.Fatal(err)
				}
				settleIt(t, b)
				var told error
				s, stop := start(t, b, expiry.SweeperOptions{FailAfter: 2, OnFailing: func(_ int, err error) { told = err }})
				defer stop()
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if got := s.Status(); told == nil || !strings.Contains(told.Error(), expiry.SweeperOperation) || got.Removed != 0 || got.Last.Leading {
					t.Fatalf("told %v: %+v", told, got)
				}
				rec, err := b.Get(t.Context(), leaseRef(7).ID)
				if err != nil || rec.Owner != leaseRef(7).Owner {
					t.Fatalf("the foreign record: %+v, %v", rec, err)
				}
				if err := b.Forget(t.Context(), backend.ForgetRequest{ID: rec.ID, Fence: rec.Fence}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				if got := s.Status(); got.Removed != 10 || !got.Last.Leading || got.Failures != 0 {
					t.Errorf("after it was forgotten: %+v", got)
				}
			})
		})
	}
}

// What is cut off because Run ends has not failed.
func TestSweeperCutOffIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &failing{Backend: memory.New(nil), hangs: true}
		s, stop := start(t, b, expiry.SweeperOptions{FailAfter: 1, OnFailing: func(_ int, err error) { t.Errorf("told: %v", err) }})
		time.Sleep(time.Second)
		stop()
		if got := s.Status(); got.Rounds != 1 || got.Errors != 0 || got.Failures != 0 || got.Last.Err != nil {
			t.Errorf("%+v", got)
		}
		// The lease is given back, so that another need not wait for its end.
		if rec, err := b.Get(t.Context(), leaseRef(0).ID); err != nil || rec.State != backend.Open {
			t.Errorf("the lease: %v, %v", rec.State, err)
		}
	})
}

// A batch that never ends by itself fails after a while, and another sweeper is not
// kept from its turn by it.
func TestSweeperHungBatchFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &failing{Backend: memory.New(nil), hangs: true}
		var told int
		_, stop := start(t, b, expiry.SweeperOptions{FailAfter: 2, OnFailing: func(int, error) { told++ }})
		time.Sleep(10 * time.Minute)
		stop()
		if told == 0 {
			t.Error("nobody was told")
		}
	})
}

// Rounds come an interval apart, a fifth more or less, and not in step.
func TestSweeperJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		_, stop := start(t, memory.New(nil), expiry.SweeperOptions{OnRound: func(expiry.Round) { at = append(at, time.Now()) }})
		time.Sleep(time.Hour)
		stop()
		least, most := time.Hour, time.Duration(0)
		for i := range at[1:] {
			d := at[i+1].Sub(at[i])
			least, most = min(least, d), max(most, d)
		}
		if len(at) < 45 || least < 48*time.Second || most > 72*time.Second || most-least < 5*time.Second {
			t.Errorf("%d rounds, %v to %v apart", len(at), least, most)
		}
	})
}

// A leader that was cut off from its store for longer than its lease stands back for
// the one that took over.
func TestSweeperStandsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(nil)
		s, stop := start(t, b, expiry.SweeperOptions{})
		defer stop()
		time.Sleep(time.Second)
		rec, err := b.Get(t.Context(), leaseRef(0).ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Forget(t.Context(), backend.ForgetRequest{ID: rec.ID, Fence: rec.Fence, Force: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Reserve(t.Context(), backend.ReserveRequest{Ref: leaseRef(9), TTL: 10 * time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if got := s.Status(); got.Last.Leading || got.Last.Err != nil {
			t.Errorf("beside another's lease: %+v", got)
		}
		time.Sleep(10 * time.Minute)
		if got := s.Status(); !got.Last.Leading {
			t.Errorf("after the other's death: %+v", got)
		}
	})
}

// The clock of the store decides what is due, whatever the sweeper's says. Set back
// it removes nothing early; set forward it removes what is due then, and nothing that
// has no end.
func TestSweeperClocksStepped(t *testing.T) {
	for _, mine := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var step, other atomic.Int64
			now := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
			b := memory.New(&memory.Options{Now: now})
			o := expiry.SweeperOptions{Now: now}
			if !mine {
				o.Now = func() time.Time { return time.Now().Add(time.Duration(other.Load())) }
			}
			settle(t, b, 10) // due in an hour
			held := backend.Ref{ID: backend.ID{Operation: "pay", Key: "held"}, Owner: [16]byte{2}}
			if _, err := b.Reserve(t.Context(), backend.ReserveRequest{Ref: held, TTL: time.Minute, KnownFor: time.Minute, OnAbandoned: backend.Hold}); err != nil {
				t.Fatal(err)
			}
			s, stop := start(t, b, o)
			defer stop()
			time.Sleep(50 * time.Minute)
			step.Add(-int64(time.Hour))
			time.Sleep(50 * time.Minute) // it is 40 minutes after settle
			if got := s.Status(); got.Removed != 0 || got.Errors != 0 {
				t.Errorf("set back: %+v", got)
			}
			step.Add(int64(2 * time.Hour))
			other.Add(-int64(5 * time.Hour))
			time.Sleep(3 * time.Minute)
			if got := s.Status(); got.Removed != 10 || got.Errors != 0 || !got.Last.Leading {
				t.Errorf("set forward: %+v", got)
			}
			if rec, err := b.Get(t.Context(), held.ID); err != nil || rec.State == 0 {
				t.Errorf("a held record without an end: %v, %v", rec.State, err)
			}
		})
	}
}
