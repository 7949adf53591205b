package bolt

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// Deleting at a cursor moves it, and a naive sweep skips every other record.
func TestCaseC34_SweepLeavesExactlyTheLive(t *testing.T) {
	const each = 1000
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})

	// Settled records, expired and live ones interleaved: they differ in their
	// windows. And unsettled ones that are on disk: released after a durable
	// reservation.
	together(64, func(worker int) {
		for i := worker; i < each; i += 64 {
			for _, kind := range []string{"due", "live"} {
				r := reserving(fmt.Sprint(kind, "-", i))
				acquire(t, db, r)
				c := completeWith(r.Ref, []byte(kind))
				c.ReplayFor, c.KnownFor = time.Minute, time.Minute
				if kind == "live" {
					c.KnownFor = 100 * time.Hour
				}
				if _, err := db.Complete(t.Context(), c); err != nil {
					t.Error(err)
				}
			}
			for _, kind := range []string{"open-due", "held-live"} {
				r := reserving(fmt.Sprint(kind, "-", i))
				r.OnAbandoned, r.TTL = backend.Hold, 200*time.Hour
				acquire(t, db, r)
				if kind == "open-due" {
					if err := db.Release(t.Context(), r.Ref); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	clock.Advance(backend.OpenFor + time.Hour)

	// Some are written by a transaction right before the sweep.
	for i := range 10 {
		run(t, db, fmt.Sprint("fresh-", i), nil)
	}
	removed := 0
	for range 50 {
		done, err := db.Expire(t.Context(), backend.ExpireRequest{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		removed += done.Removed
		if !done.More {
			break
		}
	}
	if removed != 2*each {
		t.Errorf("the sweep reports %d removed; %d were due", removed, 2*each)
	}
	count := map[string]int{}
	for key := range all(t, db, backend.Filter{}) {
		count[key[:strings.LastIndexByte(key, '-')]]++
	}
	if count["live"] != each || count["held-live"] != each || count["fresh"] != 10 || len(count) != 3 {
		t.Errorf("after the sweep the store lists %v", count)
	}
	if rows := rowsOnDisk(t, db.Bolt()); rows != 2*each+10 {
		t.Errorf("%d rows are on disk; want %d: nothing due may stay, nothing live may go", rows, 2*each+10)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("records and index disagree after the sweep: %v", err)
	}
	if done, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil || done != (backend.ExpireResult{}) {
		t.Errorf("a second sweep: %+v, %v; want nothing left", done, err)
	}
}

// A sweep beside writers removes nothing that is live, and everything is found.
func TestCaseC34_SweepBesideWriters(t *testing.T) {
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(w, "-", i)
				r := reserving(key)
				acquire(t, db, r)
				c := completeWith(r.Ref, []byte(key))
				c.ReplayFor, c.KnownFor = time.Minute, time.Minute
				rec, err := db.Complete(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := db.Get(t.Context(), r.ID)
				if err != nil && clock.Now().Before(rec.KnownUntil) {
					t.Errorf("a live record is gone beside a sweep: %v", err)
				} else if err == nil && string(got.Body) != key {
					t.Errorf("%s holds %q", key, got.Body)
				}
			}
		})
	}
	removed := 0
	for range 40 {
		clock.Advance(15 * time.Second)
		done, err := db.Expire(t.Context(), backend.ExpireRequest{})
		if err != nil {
			t.Error(err)
		}
		removed += done.Removed
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	if removed == 0 {
		t.Error("nothing was swept")
	}
}

// The number of generations that live at a time is bounded for each window.
func TestGenerationsPerWindow(t *testing.T) {
	now := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	for _, window := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, 400 * 24 * time.Hour, 1<<63 - 1} {
		live := map[generation]bool{}
		for step := range 1000 {
			at := now.Add(window / 1000 * time.Duration(step))
			known := at.Add(window)
			g := generationFor(at, known)
			live[g] = true
			if g.due(known.Add(-1)) && known.Year() < 2262 {
				t.Fatalf("window %v: the generation is due before its record", window)
			}
			if late := known.Add(window/16 + 2*time.Second); late.Year() < 2262 && !g.due(late) {
				t.Fatalf("window %v: the generation outstays its record by more than a sixteenth", window)
			}
		}
		if len(live) > 40 {
			t.Errorf("window %v makes %d generations", window, len(live))
		}
	}
}

func rowsOnDisk(t testing.TB, db *bbolt.DB) (n int) {
	t.Helper()
	if err := db.View(func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		b, err := r.pending()
		if err != nil {
			return err
		}
		n = b.Stats().KeyN
		for _, g := range r.generations() {
			n += r.bucket(g, recordPrefix).Stats().KeyN
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
