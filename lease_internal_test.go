package idem

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/goidem/idem/backend"
)

// A lease counts as over when either of the holder's clocks says so: the monotonic
// one stands still while a machine is suspended, the wall clock can be set (R8).
func TestR08_EitherClockEndsALease(t *testing.T) {
	const ttl = time.Minute // on the real clocks: a bubble has no monotonic one
	for name, tt := range map[string]struct {
		mono, wall time.Duration // passed since the request was sent
		over       bool
	}{
		"nothing passed":     {0, 0, false},
		"some passed":        {40 * time.Second, 40 * time.Second, false},
		"margin reached":     {59 * time.Second, 59 * time.Second, true},
		"suspended":          {time.Second, time.Hour, true},
		"clock set back":     {time.Hour, -time.Hour, true},
		"clock set back 2":   {time.Second, -time.Hour, false},
		"clock set to start": {time.Hour, 0, true},
	} {
		sent := clocksPassed(t, tt.mono, tt.wall)
		if got, want := elapsed(sent), max(tt.mono, tt.wall); got < want || got > want+10*time.Second {
			t.Errorf("%s: elapsed %v, want %v", name, got, want)
		}
		if leaseOver(sent, ttl) != tt.over {
			t.Errorf("%s: over: %v, want %v", name, !tt.over, tt.over)
		}
		l := newTestLease(ttl, sent)
		if over := l.left() == 0; over != tt.over {
			t.Errorf("%s: %v left", name, l.left())
		}
		if l.isLost() != tt.over {
			t.Errorf("%s: lost: %v", name, !tt.over)
		}
		if lost := l.ctx.Err() != nil; lost != tt.over || lost && context.Cause(l.ctx) != ErrLeaseLost {
			t.Errorf("%s: context ended: %v, cause %v", name, lost, context.Cause(l.ctx))
		}
	}
}

// A timer that fires late, after a suspend, does not renew: it ends the operation.
func TestR08_LateTimerDoesNotRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &countRenewals{}
		l := newTestLease(time.Second, now())
		l.c.s.b = b
		l.start(now())
		time.Sleep(100 * time.Millisecond)
		l.mu.Lock()
		l.sent = now().Add(-time.Hour) // the machine slept for an hour
		l.mu.Unlock()
		<-l.ctx.Done()
		synctest.Wait()
		if b.n != 0 || context.Cause(l.ctx) != ErrLeaseLost {
			t.Errorf("%d renewals, cause %v", b.n, context.Cause(l.ctx))
		}
		l.stop()
		if l.lose(); l.left() != 0 {
			t.Error("a lost lease came back")
		}
	})
}

// A renewal counts from its sending, and never without one.
func TestR08_RenewalCountsFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &countRenewals{takes: 200 * time.Millisecond}
		l := newTestLease(900*time.Millisecond, now())
		l.c.s.b = b
		begun := now()
		l.start(begun)
		time.Sleep(510 * time.Millisecond) // renewed at 300, answered at 500
		if got, want := l.until().Sub(begun), 300*time.Millisecond+810*time.Millisecond; got != want {
			t.Errorf("lease until %v, want %v: counted from the sending", got, want)
		}
		time.Sleep(3 * time.Second)
		l.stop()
		if b.n < 10 || b.n > 12 {
			t.Errorf("%d renewals in 3.5 s, want one each 300 ms", b.n)
		}
		if l.isLost() {
			t.Error("lost")
		}
	})
}

type countRenewals struct {
	backend.Backend
	n     int
	takes time.Duration
}

func (c *countRenewals) Renew(context.Context, backend.Ref, time.Duration) error {
	c.n++
	time.Sleep(c.takes)
	return nil
}

func newTestLease(ttl time.Duration, sent time.Time) *lease {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &lease{c: &call{s: &Store{}}, ttl: ttl, ctx: ctx, cancel: cancel, sent: sent}
}

// clocksPassed returns a reading of the clocks such that since then so much has
// passed on each of them. Only the inside of a time.Time can say this.
func clocksPassed(t *testing.T, mono, wall time.Duration) time.Time {
	t.Helper()
	then := time.Now().Add(-wall)
	inside := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&then))
	if inside.wall>>63 != 1 {
		t.Fatal("the time has no monotonic reading")
	}
	inside.ext += int64(wall - mono)
	n := time.Now()
	for got, want := range map[time.Duration]time.Duration{n.Sub(then): mono, n.Round(0).Sub(then.Round(0)): wall} {
		if got < want || got > want+5*time.Second {
			t.Fatalf("passed %v, want %v", got, want)
		}
	}
	return then
}
