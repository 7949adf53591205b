package expiry_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

// endless is a store in which something is always due. A batch takes 20ms, and a Get
// as long as quiet says, or as disturbed says while a batch runs and for lag after.
type endless struct {
	*memory.Backend
	quiet, disturbed atomic.Int64
	lag              time.Duration
	running          atomic.Int64
	ended            atomic.Int64
	removed          atomic.Int64
}

func newEndless(quiet, disturbed, lag time.Duration) *endless {
	e := &endless{Backend: memory.New(nil), lag: lag}
	e.quiet.Store(int64(quiet))
	e.disturbed.Store(int64(disturbed))
	return e
}

func (e *endless) Expire(_ context.Context, r backend.ExpireRequest) (backend.ExpireResult, error) {
	e.running.Add(1)
	time.Sleep(20 * time.Millisecond)
	e.ended.Store(time.Now().UnixNano())
	e.running.Add(-1)
	e.removed.Add(int64(r.Limit))
	return backend.ExpireResult{Removed: r.Limit, More: true}, nil
}

func (e *endless) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	d := e.quiet.Load()
	if e.running.Load() > 0 || time.Now().UnixNano()-e.ended.Load() < int64(e.lag) {
		d = e.disturbed.Load()
	}
	time.Sleep(time.Duration(d))
	return e.Backend.Get(ctx, id)
}

// perMinute returns how many records a minute are removed over d.
func (e *endless) perMinute(d time.Duration) float64 {
	before := e.removed.Load()
	time.Sleep(d)
	return float64(e.removed.Load()-before) / d.Minutes()
}

// When the latency of others doubles the rate drops, and it recovers. Only a Get that
// runs beside a batch sees it: it is over when the batch is.
func TestSweeperAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndless(10*time.Millisecond, 10*time.Millisecond, 0)
		_, stop := start(t, e, expiry.SweeperOptions{})
		defer stop()
		time.Sleep(5 * time.Minute)
		free := e.perMinute(5 * time.Minute)
		e.disturbed.Store(int64(20 * time.Millisecond))
		time.Sleep(time.Minute)
		slowed := e.perMinute(5 * time.Minute)
		e.disturbed.Store(int64(10 * time.Millisecond))
		time.Sleep(time.Minute)
		again := e.perMinute(5 * time.Minute)
		t.Logf("%.0f, %.0f, %.0f a minute", free, slowed, again)
		if slowed > free/8 || slowed == 0 || again < 0.9*free {
			t.Errorf("removed %.0f a minute, %.0f when disturbing doubled latency, and %.0f afterwards", free, slowed, again)
		}
	})
}

// What the sweeper itself does to latency, also for a while after each batch, does
// not become what it compares with.
func TestSweeperDoesNotGetUsedToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndless(10*time.Millisecond, 10*time.Millisecond, 500*time.Millisecond)
		s, stop := start(t, e, expiry.SweeperOptions{})
		defer stop()
		time.Sleep(5 * time.Minute)
		free := e.perMinute(5 * time.Minute)
		e.disturbed.Store(int64(20 * time.Millisecond))
		time.Sleep(90 * time.Minute)
		if slowed := e.perMinute(20 * time.Minute); slowed > free/8 || slowed == 0 {
			t.Errorf("removed %.0f a minute, and %.0f after hours of doubled latency (share %v)", free, slowed, s.Status().Share)
		}
	})
}

// A store that has become slower by itself is not spared for ever.
func TestSweeperLearnsANewPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndless(10*time.Millisecond, 10*time.Millisecond, 0)
		_, stop := start(t, e, expiry.SweeperOptions{})
		defer stop()
		time.Sleep(5 * time.Minute)
		free := e.perMinute(5 * time.Minute)
		e.quiet.Store(int64(30 * time.Millisecond))
		e.disturbed.Store(int64(30 * time.Millisecond))
		time.Sleep(time.Minute)
		first := e.perMinute(time.Minute)
		time.Sleep(30 * time.Minute)
		if then := e.perMinute(5 * time.Minute); first > free/4 || then < free/2 {
			t.Errorf("removed %.0f a minute, %.0f right after all became slower, and %.0f half an hour later", free, first, then)
		}
	})
}

// The caller's own figure of latency is heeded.
func TestSweeperHeedsTheCallersLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p99 atomic.Int64
		p99.Store(int64(10 * time.Millisecond))
		e := newEndless(0, 0, 0)
		_, stop := start(t, e, expiry.SweeperOptions{Latency: func() time.Duration {
			if e.running.Load() > 0 || time.Now().UnixNano()-e.ended.Load() < int64(100*time.Millisecond) {
				return time.Duration(p99.Load())
			}
			return 10 * time.Millisecond
		}})
		defer stop()
		time.Sleep(5 * time.Minute)
		free := e.perMinute(time.Minute)
		p99.Store(int64(20 * time.Millisecond))
		time.Sleep(time.Minute)
		if slowed := e.perMinute(5 * time.Minute); slowed > free/8 || slowed == 0 {
			t.Errorf("removed %.0f a minute, and %.0f with twice the p99", free, slowed)
		}
	})
}

// choosy is a store that removes at most 100 records at once.
type choosy struct {
	*memory.Backend
	refused int
}

func (c *choosy) Expire(ctx context.Context, r backend.ExpireRequest) (backend.ExpireResult, error) {
	if r.Limit > 100 {
		c.refused++
		return backend.ExpireResult{}, errors.New("statement timeout")
	}
	return c.Backend.Expire(ctx, r)
}

// A batch that is too large for the server does not fail the same way for ever.
func TestCaseC44_SmallerBatchesAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &choosy{Backend: memory.New(nil)}
		settle(t, c, 2500)
		time.Sleep(2 * time.Hour)
		s, stop := start(t, c, expiry.SweeperOptions{})
		time.Sleep(10 * time.Minute)
		stop()
		if got := s.Status(); got.Removed != 2500 || c.refused == 0 {
			t.Errorf("after %d refusals: %+v", c.refused, got)
		}
	})
}
