package expiry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

// failing is a memory backend whose Expire fails, or hangs until its context ends.
type failing struct {
	*memory.Backend
	err   error
	hangs bool
}

func (f *failing) Expire(ctx context.Context, r backend.ExpireRequest) (backend.ExpireResult, error) {
	if f.hangs {
		<-ctx.Done()
		return backend.ExpireResult{}, ctx.Err()
	}
	return backend.ExpireResult{}, f.err
}

func settle(t *testing.T, b backend.Backend, n int) {
	t.Helper()
	for i := range n {
		ref := backend.Ref{ID: backend.ID{Operation: "pay", Key: fmt.Sprint(i)}, Owner: [16]byte{1}}
		if _, err := b.Reserve(t.Context(), backend.ReserveRequest{Ref: ref, TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Complete(t.Context(), backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
}

func start(t *testing.T, b backend.Backend, o expiry.SweeperOptions) (s *expiry.Sweeper, stop func()) {
	t.Helper()
	s, err := expiry.NewSweeper(b, &o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	return s, func() { cancel(); <-ended }
}

// One of two sweepers works; when it stops the other follows within two intervals.
func TestCaseC44_OneSweeperAndItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(nil)
		settle(t, b, 2500)
		time.Sleep(2 * time.Hour)
		first, stopFirst := start(t, b, expiry.SweeperOptions{Limit: 100})
		synctest.Wait()
		second, stopSecond := start(t, b, expiry.SweeperOptions{Limit: 100})
		defer stopSecond()
		time.Sleep(time.Minute)
		if got := first.Status(); got.Removed != 2500 || !got.Last.BacklogKnown || got.Last.Backlog.Due != 0 {
			t.Errorf("the first sweeper: %+v", got)
		}
		if got := second.Status(); got.Removed != 0 || got.Last.Leading {
			t.Errorf("the second sweeper: %+v", got)
		}
		stopFirst()
		time.Sleep(2 * time.Minute)
		if got := second.Status(); !got.Last.Leading {
			t.Errorf("two intervals later: %+v", got)
		}
	})
}

func TestCaseC44_RepeatedFailureReachesTheCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		var told int
		_, stop := start(t, &failing{Backend: memory.New(nil), err: broken}, expiry.SweeperOptions{OnFailing: func(n int, err error) {
			if told == 0 && (n != 5 || !errors.Is(err, broken)) {
				t.Errorf("told after %d: %v", n, err)
			}
			told++
		}})
		time.Sleep(10 * time.Minute)
		stop()
		if told == 0 {
			t.Error("nobody was told")
		}
	})
}

func TestCaseC44_StopsWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, stop := start(t, &failing{Backend: memory.New(nil), hangs: true}, expiry.SweeperOptions{})
		time.Sleep(time.Second)
		begun := time.Now()
		stop()
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("Run returned after %v", took)
		}
	})
}

// The lease of a sweeper that was killed is taken over within two intervals.
func TestCaseC44_DeadSweeperIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(nil)
		dead := backend.ReserveRequest{TTL: time.Minute, KnownFor: backend.OpenFor, OnAbandoned: backend.Rerun}
		dead.ID, dead.Owner = backend.ID{Operation: expiry.SweeperOperation, Key: expiry.SweeperKey}, [16]byte{7}
		if _, err := b.Reserve(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		s, stop := start(t, b, expiry.SweeperOptions{})
		defer stop()
		time.Sleep(30 * time.Second)
		if s.Status().Last.Leading {
			t.Error("it leads beside a live lease")
		}
		time.Sleep(90 * time.Second)
		if !s.Status().Last.Leading {
			t.Errorf("two intervals later: %+v", s.Status())
		}
	})
}
