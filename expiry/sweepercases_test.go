package expiry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

// inbox is a store with a policy and a sweeper that runs all the time.
func inbox(t *testing.T, rule expiry.Rule, lease time.Duration) (execute func(op, key string, fn func() error) (ran bool, err error), stop func()) {
	t.Helper()
	p, err := expiry.New(rule)
	if err != nil {
		t.Fatal(err)
	}
	b := memory.New(nil)
	store, err := idem.New(b, &idem.Options{Retention: p, LeaseTTL: lease})
	if err != nil {
		t.Fatal(err)
	}
	_, stop = start(t, b, expiry.SweeperOptions{Interval: time.Second})
	return func(op, key string, fn func() error) (bool, error) {
		res, err := idem.Execute(t.Context(), store, idem.Scope{Operation: op}, idem.Key(key), idem.FingerprintBytes([]byte(key)), func(context.Context) (string, error) { return "done", fn() })
		return err == nil && !res.Replayed, err
	}, stop
}

// Windows count from the end of the work, with a sweeper beside it all the time.
func TestCaseC21_SweeperCountsFromTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		execute, stop := inbox(t, expiry.Rule{Operation: "*", Replay: 10 * time.Minute, Dedup: 10 * time.Minute}, 30*time.Second)
		defer stop()
		begun := time.Now()
		if ran, err := execute("pay", "slow", func() error { time.Sleep(15 * time.Minute); return nil }); !ran || err != nil {
			t.Fatal(ran, err)
		}
		_, refused := execute("pay", "declined", func() error { time.Sleep(time.Minute); return idem.Permanent("declined", nil) })
		for _, c := range []struct {
			at  time.Duration
			ran bool
		}{{16 * time.Minute, false}, {24*time.Minute + 59*time.Second, false}, {25*time.Minute + time.Second, true}} {
			time.Sleep(time.Until(begun.Add(c.at)))
			if ran, err := execute("pay", "slow", func() error { return nil }); ran != c.ran || err != nil {
				t.Errorf("at %v: ran %v, %v", c.at, ran, err)
			}
		}
		// The failure came at 16 minutes and is kept until 26.
		var failed *idem.FailedError
		if _, err := execute("pay", "declined", func() error { return nil }); !errors.As(refused, &failed) || !errors.As(err, &failed) {
			t.Errorf("the failure: %v, then %v", refused, err)
		}
		time.Sleep(time.Minute)
		if ran, err := execute("pay", "declined", func() error { return nil }); !ran || err != nil {
			t.Errorf("after its window: ran %v, %v", ran, err)
		}
	})
}

// A message is handled once by each consumer for as long as its queue may send it
// again, whatever the sweeper does; a window below that is refused when it is built.
func TestCaseC49_SweeperBesideRedelivery(t *testing.T) {
	redrive := expiry.Horizons{QueueRedrive: 4 * time.Hour}
	if _, err := expiry.New(expiry.Rule{Operation: "inbox.*", Dedup: time.Hour, Horizons: redrive}); err == nil {
		t.Error("a window below the redelivery is accepted")
	}
	synctest.Test(t, func(t *testing.T) {
		execute, stop := inbox(t, expiry.Rule{Operation: "inbox.*", Replay: time.Hour, Dedup: 4 * time.Hour, Horizons: redrive}, 30*time.Second)
		defer stop()
		handled := make(map[string]int)
		begun := time.Now()
		for _, at := range []time.Duration{0, 59 * time.Minute, 61 * time.Minute, 3 * time.Hour, 4*time.Hour - time.Second, 4*time.Hour + time.Minute} {
			time.Sleep(time.Until(begun.Add(at)))
			for _, consumer := range []string{"inbox.a", "inbox.b"} {
				if _, err := execute(consumer, "m1", func() error { handled[consumer]++; return nil }); err != nil && !errors.Is(err, idem.ErrResultExpired) {
					t.Errorf("%s at %v: %v", consumer, at, err)
				}
				want := 1
				if at > 4*time.Hour {
					want = 2
				}
				if handled[consumer] != want {
					t.Errorf("%s at %v: handled %d times", consumer, at, handled[consumer])
				}
			}
		}
	})
}

// Expired and live records in turn: the sweeper leaves exactly the live ones.
func TestCaseC34_SweeperLeavesExactlyTheLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(nil)
		settle(t, b, 1000)
		for i := 1; i < 1000; i += 2 {
			r := backend.ReserveRequest{Ref: backend.Ref{ID: backend.ID{Operation: "live", Key: fmt.Sprint(i)}, Owner: [16]byte{3}}, TTL: 100 * time.Hour, KnownFor: time.Hour, OnAbandoned: backend.Rerun}
			if _, err := b.Reserve(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		s, stop := start(t, b, expiry.SweeperOptions{Limit: 100})
		time.Sleep(time.Minute)
		stop()
		live := 0
		for i := 1; i < 1000; i += 2 {
			if rec, err := b.Get(t.Context(), backend.ID{Operation: "live", Key: fmt.Sprint(i)}); err == nil && rec.State == backend.InFlight {
				live++
			}
		}
		if got := s.Status(); got.Removed != 1000 || got.Last.Backlog.Due != 0 || live != 500 {
			t.Errorf("%d live are left: %+v", live, got)
		}
	})
}
