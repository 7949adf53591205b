package bolt

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// What a sweep has picked comes back to life before it is removed, or the clock is
// set back: the record that is alive stays.
func TestCaseC14_PickedRecordComesBackToLife(t *testing.T) {
	type world struct {
		db    *DB
		clock *fakeClock
		fence uint64 // of the expired record
	}
	takeOver := func(t *testing.T, w world, policy backend.Abandoned) backend.Ref {
		r := reserving("k")
		r.TakeOver, r.OnAbandoned = w.fence, policy
		acquire(t, w.db, r)
		return r.Ref
	}
	for name, v := range map[string]struct {
		revive func(t *testing.T, w world)
		want   backend.State
	}{
		"reserved": {func(t *testing.T, w world) { takeOver(t, w, backend.Rerun) }, backend.InFlight},
		"held":     {func(t *testing.T, w world) { takeOver(t, w, backend.Hold) }, backend.InFlight},
		"renewed": {func(t *testing.T, w world) {
			if err := w.db.Renew(t.Context(), takeOver(t, w, backend.Rerun), time.Hour); err != nil {
				t.Fatal(err)
			}
		}, backend.InFlight},
		"completed": {func(t *testing.T, w world) {
			if _, err := w.db.Complete(t.Context(), completeWith(takeOver(t, w, backend.Rerun), []byte("new"))); err != nil {
				t.Fatal(err)
			}
		}, backend.Completed},
		"uncertain": {func(t *testing.T, w world) {
			c := completeWith(takeOver(t, w, backend.Rerun), nil)
			c.State = backend.Uncertain
			if _, err := w.db.Complete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}, backend.Uncertain},
		"clock set back": {func(_ *testing.T, w world) { w.clock.Advance(-time.Hour) }, backend.Completed},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newFakeClock()
			db := open(t, &Options{Now: clock.Now})
			w := world{db, clock, settle(t, db, "k", []byte("old"), time.Second, 10*time.Minute).Fence}
			clock.Advance(time.Hour)
			var picked []group
			if err := db.excl.view(func(r *rows) error {
				picked = db.excl.due(r, clock.Now(), true)
				return nil
			}); err != nil || len(picked) != 2 {
				t.Fatalf("%d groups are due, %v; want one of results and one of records", len(picked), err)
			}
			v.revive(t, w)
			if _, err := db.excl.drop(t.Context(), picked); err != nil {
				t.Fatal(err)
			}
			db.excl.forgetDropped()
			rec, err := db.Get(t.Context(), id("k"))
			if err != nil || rec.State != v.want {
				t.Errorf("%v, %v; want %v", rec.State, err, v.want)
			}
			if res, err := db.Reserve(t.Context(), reserving("k")); err != nil || res.Outcome != backend.Existing {
				t.Errorf("another caller: %v, %v; want existing", res.Outcome, err)
			}
			if err := db.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// However old: live, held, recovering and uncertain records are in no generation
// that a sweep drops.
func TestCaseC14_SweepsPassTheLive(t *testing.T) {
	for name, perCall := range map[string]bool{"exclusive": false, "per call": true} {
		t.Run(name, func(t *testing.T) {
			clock := newFakeClock()
			db := openAt(t, filepath.Join(memoryFolder(t), "store.idem"), &Options{Now: clock.Now, PerCall: perCall})
			live := reserving("live")
			held, recovering, uncertain := reserving("held"), reserving("recovering"), reserving("uncertain")
			held.OnAbandoned, recovering.OnAbandoned, uncertain.OnAbandoned = backend.Hold, backend.Recover, backend.Hold
			for _, r := range []backend.ReserveRequest{live, held, recovering, uncertain} {
				acquire(t, db, r)
			}
			c := completeWith(uncertain.Ref, []byte("perhaps"))
			c.State = backend.Uncertain
			if _, err := db.Complete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			swept := 0
			for day := range 20 {
				for i := range 3 {
					settle(t, db, fmt.Sprint(day, "-", i), []byte("r"), time.Hour, 12*time.Hour)
				}
				if err := db.Renew(t.Context(), live.Ref, 48*time.Hour); err != nil {
					t.Fatal(err)
				}
				clock.Advance(24 * time.Hour)
				swept += sweepAll(t, db).Removed
			}
			if swept != 60 {
				t.Errorf("%d records were swept; want 60", swept)
			}
			found := all(t, db, backend.Filter{})
			for key, want := range map[string]backend.State{"live": backend.InFlight, "held": backend.InFlight, "recovering": backend.InFlight, "uncertain": backend.Uncertain} {
				if found[key].State != want {
					t.Errorf("%s is %v", key, found[key].State)
				}
			}
			if len(found) != 4 || string(found["uncertain"].Body) != "perhaps" {
				t.Errorf("left are %v", found)
			}
		})
	}
}

// Windows count from the completion, not from the reservation or its lease.
func TestCaseC21_RetentionCountsFromTheCompletion(t *testing.T) {
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})
	reserve := func(key string) backend.ReserveRequest {
		r := reserving(key)
		r.TTL, r.KnownFor = 30*time.Second, 10*time.Minute
		acquire(t, db, r)
		return r
	}
	finish := func(r backend.ReserveRequest, state backend.State) {
		c := backend.CompleteRequest{Ref: r.Ref, State: state, Body: []byte("r"), ReplayFor: 10 * time.Minute, KnownFor: 10 * time.Minute}
		if _, err := db.Complete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		sweepAll(t, db)
	}
	expect := func(key string, want backend.Outcome) {
		t.Helper()
		if res, err := db.Reserve(t.Context(), reserving(key)); err != nil || res.Outcome != want {
			t.Errorf("%s: %v, %v; want %v", key, res.Outcome, err, want)
		}
	}
	// (a) It takes longer than the window, and is renewed meanwhile.
	slow := reserve("slow")
	for range 45 {
		clock.Advance(20 * time.Second)
		if err := db.Renew(t.Context(), slow.Ref, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		sweepAll(t, db)
	}
	finish(slow, backend.Completed)
	// (c) It fails for good after its lease has run out.
	late := reserve("late")
	clock.Advance(5 * time.Minute)
	finish(late, backend.Failed)
	clock.Advance(5*time.Minute - time.Second)
	sweepAll(t, db)
	if got := replay(t, db, "slow"); string(got.Body) != "r" {
		t.Errorf("a second before the end: %q", got.Body)
	}
	clock.Advance(2 * time.Second)
	expect("slow", backend.Existing) // expired, and says so
	if _, err := db.Get(t.Context(), id("slow")); err == nil {
		t.Error("slow is known after its window")
	}
	clock.Advance(5*time.Minute - 2*time.Second)
	sweepAll(t, db)
	if rec := replay(t, db, "late"); rec.State != backend.Failed || string(rec.Body) != "r" {
		t.Errorf("the failure a second before its end: %v %q", rec.State, rec.Body)
	}
	clock.Advance(2 * time.Minute)
	sweepAll(t, db)
	expect("slow", backend.Acquired)
	expect("late", backend.Acquired)
	// (b) Abandoned: the lease decides when another may have it.
	dead := reserve("dead")
	clock.Advance(29 * time.Second)
	sweepAll(t, db)
	expect("dead", backend.Existing)
	clock.Advance(2 * time.Second)
	sweepAll(t, db)
	again := reserving("dead")
	rec, err := db.Get(t.Context(), dead.ID)
	if err != nil {
		t.Fatal(err)
	}
	again.TakeOver = rec.Fence
	acquire(t, db, again)
}

// Round after round is written, expires and is swept: the file stops growing. The
// size of a round is that of IDEM_SWEEP_ROUND where it is to be taken seriously.
func TestCaseC44_FileStopsGrowing(t *testing.T) {
	n := 1000
	if _, err := fmt.Sscan(os.Getenv("IDEM_SWEEP_ROUND"), &n); err != nil && os.Getenv("IDEM_SWEEP_ROUND") != "" {
		t.Fatal(err)
	}
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})
	if done, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil || done != (backend.ExpireResult{}) {
		t.Errorf("the first sweep of a new file: %+v, %v", done, err)
	}
	body := make([]byte, 1000)
	var sizes []int64
	for round := range 10 {
		together(64, func(worker int) {
			for i := worker; i < n; i += 64 {
				settle(t, db, fmt.Sprint(round, "-", i), body, time.Minute, time.Hour)
			}
		})
		clock.Advance(2 * time.Minute)
		if done := sweepAll(t, db); done.Bodies != n {
			t.Errorf("round %d: %+v; want %d results", round, done, n)
		}
		clock.Advance(2 * time.Hour)
		if done := sweepAll(t, db); done.Removed != n {
			t.Errorf("round %d: %+v; want %d records", round, done, n)
		}
		info, err := os.Stat(db.Path())
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, info.Size())
	}
	if last := sizes[len(sizes)-1]; float64(last) > 1.2*float64(sizes[2]) {
		t.Errorf("the file goes on growing: %v", sizes)
	}
}

// Sweeps by several at once remove each record once, say so, and end with Close.
func TestCaseC44_SweepsBesideEachOtherAndClose(t *testing.T) {
	clock, path := newFakeClock(), filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, &Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	const n = 900
	fill := func(name string) {
		together(90, func(worker int) {
			for i := worker; i < n; i += 90 { // thirty windows: so many generations
				settle(t, db, fmt.Sprint(name, i), []byte("r"), time.Minute, time.Hour+time.Duration(i%30)*time.Hour)
			}
		})
	}
	fill("")
	clock.Advance(100 * time.Hour)
	var mu sync.Mutex
	var total backend.ExpireResult
	together(4, func(int) {
		for more := true; more; {
			done, err := db.Expire(t.Context(), backend.ExpireRequest{Limit: 7})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			total.Removed, total.Bodies = total.Removed+done.Removed, total.Bodies+done.Bodies
			mu.Unlock()
			more = done.More
		}
	})
	if total.Removed != n || total.Bodies != n {
		t.Errorf("four sweeps report %+v; there were %d", total, n)
	}
	fill("again-")
	clock.Advance(100 * time.Hour)
	swept := make(chan error, 1)
	go func() {
		for {
			if _, err := db.Expire(t.Context(), backend.ExpireRequest{Limit: 1}); err != nil {
				swept <- err
				return
			}
		}
	}()
	begun := time.Now()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 20*time.Second { // two, on a machine with nothing else to do
		t.Errorf("Close beside a sweep took %v", took)
	}
	if err := <-swept; err == nil {
		t.Error("sweeps go on after Close")
	}
	openAt(t, path, &Options{Now: clock.Now}) // checked at the end
}

// The backlog counts what a sweep would look at, and says for how long it has been
// due.
func TestBacklog(t *testing.T) {
	for name, perCall := range map[string]bool{"exclusive": false, "per call": true} {
		t.Run(name, func(t *testing.T) {
			clock := newFakeClock()
			db := openAt(t, filepath.Join(memoryFolder(t), "store.idem"), &Options{Now: clock.Now, PerCall: perCall})
			expect := func(due int64, least, most time.Duration) {
				t.Helper()
				l, err := db.Backlog(t.Context())
				if err != nil || l.Due != due || l.Capped || l.Oldest < least || l.Oldest > most {
					t.Errorf("%+v, %v; want %d, the oldest due for %v to %v", l, err, due, least, most)
				}
			}
			expect(0, 0, 0)
			r := reserving("abandoned")
			r.KnownFor = time.Minute
			acquire(t, db, r)
			settle(t, db, "a", []byte("r"), time.Minute, 10*time.Hour)
			settle(t, db, "b", []byte("r"), 10*time.Hour, 10*time.Hour)
			expect(0, 0, 0)
			clock.Advance(time.Hour)
			expect(2, 55*time.Minute, time.Hour) // a result, and the abandoned record
			clock.Advance(20 * time.Hour)
			expect(4, 19*time.Hour, 21*time.Hour)
			sweepAll(t, db)
			expect(0, 0, 0)
		})
	}
}
