package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// TestFaultServerClockMoves: leases and windows follow the server's wall clock where it
// goes, and nothing else does: an attempt that is called abandoned too early is told when
// it completes, and no result is overwritten.
func TestFaultServerClockMoves(t *testing.T) {
	t.Parallel()
	srv, set := testdb.StartRedisWithClock(t)
	s := newStore(t, newClient(t, srv.Addr()), "")
	reserve := func(r backend.ReserveRequest, want backend.Outcome) backend.Reservation {
		t.Helper()
		res, err := s.Reserve(t.Context(), r)
		if err != nil || res.Outcome != want {
			t.Fatalf("Reserve answered %v, %v; want %v", res.Outcome, err, want)
		}
		return res
	}

	// Forward, beyond the lease: the attempt counts as abandoned, and is told so.
	a := request("k")
	first := reserve(a, backend.Acquired)
	set(90 * time.Minute)
	seen := reserve(request("k"), backend.Existing)
	if !seen.Record.IsAbandoned(seen.Now) {
		t.Errorf("an hour and a half ahead a lease of an hour is not over: %+v at %v", seen.Record, seen.Now)
	}
	b := request("k")
	b.TakeOver = first.Record.Fence
	second := reserve(b, backend.Acquired)
	if second.Record.Fence <= first.Record.Fence || !second.Record.TookOver {
		t.Errorf("the takeover has fence %d after %d", second.Record.Fence, first.Record.Fence)
	}
	if _, err := s.Complete(t.Context(), completion(a.Ref, "A")); !errors.Is(err, backend.ErrLeaseLost) {
		t.Errorf("the first attempt completes: %v; want ErrLeaseLost", err)
	}
	if _, err := s.Complete(t.Context(), completion(b.Ref, "B")); err != nil {
		t.Fatal(err)
	}

	// Back, by more than the lease: leases last longer, nobody gets in early, and the
	// result stands.
	c := request("c")
	held := reserve(c, backend.Acquired)
	set(-2 * time.Hour)
	seen = reserve(request("c"), backend.Existing)
	if !seen.Record.IsLive(seen.Now) || seen.Record.LeaseUntil.Sub(seen.Now) < 3*time.Hour {
		t.Errorf("after the clock was set back, the lease ends in %v", seen.Record.LeaseUntil.Sub(seen.Now))
	}
	if got := reserve(request("k"), backend.Existing); string(got.Record.Body) != "B" {
		t.Errorf("after the clock was set back, the result is %q", got.Record.Body)
	}
	if _, err := s.Complete(t.Context(), completion(c.Ref, "C")); err != nil {
		t.Error(err)
	}

	// A record that was forgotten while the clock was ahead is followed by a lower fence.
	// That is what the documentation says, and why nobody should set clocks back.
	srv.Do(t, "FLUSHALL")
	if after := reserve(request("c"), backend.Acquired); after.Record.Fence >= held.Record.Fence {
		t.Errorf("fence %d after %d: better than is documented", after.Record.Fence, held.Record.Fence)
	}

	// Forward, beyond every window: everything is over at once, and reads as absent.
	set(10 * time.Hour)
	if _, err := s.Get(t.Context(), c.ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("beyond the window: %v; want ErrNotFound", err)
	}
	reserve(request("k"), backend.Acquired)
}
