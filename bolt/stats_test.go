package bolt

import (
	"fmt"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

func TestStatsTellWhatASweepAndACompactionWouldGive(t *testing.T) {
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})
	body := make([]byte, 30_000)
	together(16, func(worker int) {
		for i := worker; i < 400; i += 16 {
			r := reserving(fmt.Sprint("k-", i))
			acquire(t, db, r)
			c := completeWith(r.Ref, body)
			c.ReplayFor, c.KnownFor = time.Minute, time.Hour
			if i%4 == 0 {
				c.KnownFor = 1000 * time.Hour
			}
			if _, err := db.Complete(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	})
	stats := func() Stats {
		t.Helper()
		s, err := db.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := stats(); s.Records != 400 || s.Expired != 0 || s.Stale != 0 || s.Used > s.Size || s.Used < 400*30_000 {
		t.Errorf("at first: %+v", s)
	}
	clock.Advance(24 * time.Hour)
	if s := stats(); s.Records != 100 || s.Expired != 300 || s.Due != 300 || s.Stale != 100 {
		t.Errorf("after a day: %+v", s)
	}
	if _, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil {
		t.Fatal(err)
	}
	s := stats()
	if s.Records != 100 || s.Expired != 0 || s.Used > s.Size/2 {
		t.Errorf("after the sweep: %+v", s)
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := stats(); c.Records != 100 || c.Size > s.Size/2 || c.Used > c.Size {
		t.Errorf("after the compaction: %+v, before it %+v", c, s)
	}
}
