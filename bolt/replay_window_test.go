package bolt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// settle reserves a key and completes it with the given windows.
func settle(t testing.TB, db *DB, key string, body []byte, replay, known time.Duration) backend.Record {
	t.Helper()
	r := reserving(key)
	acquire(t, db, r)
	c := completeWith(r.Ref, body)
	c.ReplayFor, c.KnownFor = replay, known
	rec, err := db.Complete(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// sweepAll sweeps until nothing is due.
func sweepAll(t testing.TB, db *DB) (total backend.ExpireResult) {
	t.Helper()
	for range 1000 {
		done, err := db.Expire(t.Context(), backend.ExpireRequest{})
		if err != nil {
			t.Fatal(err)
		}
		total.Removed, total.Bodies = total.Removed+done.Removed, total.Bodies+done.Bodies
		if !done.More {
			if l, err := db.Backlog(t.Context()); err != nil || l != (backend.Backlog{}) {
				t.Errorf("after a sweep %+v is left, %v", l, err)
			}
			return total
		}
	}
	t.Fatal("the sweep does not come to an end")
	return total
}

// expectExpired insists that a key is known and its result gone.
func expectExpired(t testing.TB, db *DB, key string) {
	t.Helper()
	if rec, err := db.Get(t.Context(), id(key)); err != nil || rec.State != backend.Completed || !rec.BodyExpired || rec.Body != nil {
		t.Errorf("%s: %v, result expired %v with %d bytes, %v; want completed, its result expired", key, rec.State, rec.BodyExpired, len(rec.Body), err)
	}
	if rec := replay(t, db, key); !rec.BodyExpired || rec.Body != nil {
		t.Errorf("%s: a reserve finds a result of %d bytes, expired %v", key, len(rec.Body), rec.BodyExpired)
	}
}

// Results leave the file when their replay window is over, in both modes, and keys
// stay: also after a restart, a compaction, and with the clock set back.
func TestR22_ResultsGoAndKeysStay(t *testing.T) {
	for name, perCall := range map[string]bool{"exclusive": false, "per call": true} {
		t.Run(name, func(t *testing.T) {
			clock, path := newFakeClock(), filepath.Join(memoryFolder(t), "store.idem")
			o := &Options{Now: clock.Now, PerCall: perCall}
			db := openAt(t, path, o)
			const n = 60
			big := make([]byte, 20_000)
			for i := range n {
				settle(t, db, fmt.Sprint("short-", i), big, time.Minute, 100*time.Hour)
			}
			settle(t, db, "long", []byte("kept"), 99*time.Hour, 100*time.Hour)
			settle(t, db, "same", []byte("kept too"), 100*time.Hour, 100*time.Hour)
			settle(t, db, "empty", nil, time.Minute, 100*time.Hour)
			again := func(name string) {
				t.Helper()
				for i := range n {
					expectExpired(t, db, fmt.Sprint("short-", i))
				}
				for key, want := range map[string]string{"long": "kept", "same": "kept too"} {
					if got := replay(t, db, key); string(got.Body) != want {
						t.Errorf("%s: %s replays %q", name, key, got.Body)
					}
				}
				if found := all(t, db, backend.Filter{}); len(found) != n+3 || string(found["long"].Body) != "kept" || !found["short-1"].BodyExpired {
					t.Errorf("%s: the list has %d records", name, len(found))
				}
				if err := db.Check(t.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			stats := func() Stats {
				t.Helper()
				s, err := db.Stats(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			before := stats()
			clock.Advance(2 * time.Minute)
			if s := stats(); s.Stale != n || s.StaleDue != n || s.Due != 0 {
				t.Errorf("before the sweep: %+v", s)
			}
			if l, err := db.Backlog(t.Context()); err != nil || l.Due != n || l.Oldest <= 0 || l.Oldest > time.Minute {
				t.Errorf("before the sweep: backlog %+v, %v", l, err)
			}
			again("before the sweep")
			if done := sweepAll(t, db); done.Bodies != n || done.Removed != 0 {
				t.Errorf("the sweep: %+v; want %d results", done, n)
			}
			after := stats()
			if after.Stale != 0 || after.StaleDue != 0 || after.Records != n+3 || after.Used > before.Used/10 {
				t.Errorf("after the sweep: %+v; before it %+v", after, before)
			}
			again("after the sweep")
			// An empty result in place of the answer that is gone would be a lie.
			clock.Advance(-2 * time.Minute)
			again("with the clock set back")
			if err := db.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
			again("compacted")
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = openAt(t, path, o)
			again("opened again")
			clock.Advance(101 * time.Hour)
			sweepAll(t, db) // what is in the generation of its end is a sixteenth late
			clock.Advance(10 * time.Hour)
			sweepAll(t, db)
			if s := stats(); s.Records+s.Expired != 0 {
				t.Errorf("in the end: %+v", s)
			}
		})
	}
}

// The caller of Execute is told that it happened.
func TestR22_ExecuteAnswersResultExpired(t *testing.T) {
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})
	store, err := idem.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	scope, ran := idem.Scope{Operation: "pay"}, 0
	fn := func(context.Context) (string, error) { ran++; return "receipt", nil }
	execute := func() (idem.Result[string], error) {
		return idem.Execute(t.Context(), store, scope, "k", idem.NoFingerprint(), fn)
	}
	first, err := execute()
	if err != nil {
		t.Fatal(err)
	}
	if !first.ReplayUntil.Before(first.KnownUntil) {
		t.Fatal("this test needs windows that differ")
	}
	clock.Advance(first.ReplayUntil.Sub(clock.Now()) * 9 / 8)
	if done := sweepAll(t, db); done.Bodies != 1 {
		t.Errorf("the sweep: %+v", done)
	}
	if _, err := execute(); !errors.Is(err, idem.ErrResultExpired) || ran != 1 {
		t.Errorf("%v, fn ran %d times; want ErrResultExpired and once", err, ran)
	}
}

// A dropped generation that begins again, because the clock was set back, gives out
// the same places: nobody gets another's result.
func TestR22_PlaceOfADroppedResultIsGivenAgain(t *testing.T) {
	clock := newFakeClock()
	db := open(t, &Options{Now: clock.Now})
	for i := range 5 {
		settle(t, db, fmt.Sprint("old-", i), []byte("old"), time.Minute, 100*time.Hour)
	}
	clock.Advance(2 * time.Minute)
	sweepAll(t, db)
	clock.Advance(-2 * time.Minute)
	for i := range 3 {
		settle(t, db, fmt.Sprint("new-", i), []byte("new"), time.Minute, 100*time.Hour)
	}
	for i := range 5 {
		expectExpired(t, db, fmt.Sprint("old-", i))
	}
	for i := range 3 {
		if got := replay(t, db, fmt.Sprint("new-", i)); string(got.Body) != "new" {
			t.Errorf("the new record replays %q", got.Body)
		}
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
	// What goes takes its own result with it and no other.
	for _, key := range []string{"old-1", "new-1"} {
		rec, err := db.Get(t.Context(), id(key))
		if err == nil {
			err = db.Forget(t.Context(), backend.ForgetRequest{ID: id(key), Fence: rec.Fence})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := replay(t, db, "new-2"); string(got.Body) != "new" {
		t.Errorf("after another record was forgotten: %q", got.Body)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is damaged in a result is found by who asks for it, and by Check, and is
// never taken for a result that has expired.
func TestC48_DamagedResult(t *testing.T) {
	first := func(r *rows) (generation, []byte, []byte) {
		g := r.groups(bodyPrefix)[0]
		k, v := r.bucket(g, bodyPrefix).Cursor().First()
		return g, append([]byte(nil), k...), append([]byte(nil), v...)
	}
	for name, damage := range map[string]func(r *rows) error{
		"a flipped bit": func(r *rows) error {
			g, k, v := first(r)
			v[fenceSize] ^= 1
			return r.bucket(g, bodyPrefix).Put(k, v)
		},
		"another fence": func(r *rows) error {
			g, k, v := first(r)
			v[0] ^= 1
			return r.bucket(g, bodyPrefix).Put(k, v)
		},
		"cut short": func(r *rows) error {
			g, k, v := first(r)
			return r.bucket(g, bodyPrefix).Put(k, v[:5])
		},
		"a missing row": func(r *rows) error {
			g, k, _ := first(r)
			return r.bucket(g, bodyPrefix).Delete(k)
		},
		"a missing bucket": func(r *rows) error {
			g, _, _ := first(r)
			return r.top.DeleteBucket(g.name(bodyPrefix))
		},
		"a wrong place": func(r *rows) error {
			b := r.bucket(r.generations()[0], recordPrefix)
			k, v := b.Cursor().First()
			k, v = append([]byte(nil), k...), append([]byte(nil), v...)
			v[inlineRow] ^= 1
			return b.Put(k, v)
		},
	} {
		path := tampered(t, false, damage)
		for _, perCall := range []bool{false, true} {
			db, err := Open(path, &Options{PerCall: perCall})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := db.Reserve(t.Context(), reserving("k")); !errors.Is(err, backend.ErrCorruptRecord) {
				t.Errorf("%s, per call %v: %v, %v", name, perCall, res.Outcome, err)
			}
			if err := db.Check(t.Context()); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s, per call %v: Check: %v", name, perCall, err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	path := tampered(t, false, func(r *rows) error {
		g, _, v := first(r)
		return r.bucket(g, bodyPrefix).Put(seqKey(99), v)
	})
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Check(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("a result that belongs to no record: Check: %v", err)
	}
}

// A generation that has grown large goes on in another part: all of it is found, in
// both modes, and dropped, piece by piece.
func TestPartsOfAGeneration(t *testing.T) {
	clock, path := newFakeClock(), filepath.Join(t.TempDir(), "store.idem")
	db := openAt(t, path, &Options{Now: clock.Now})
	const each, parts = 5, 40
	for part := range parts {
		for i := range each {
			settle(t, db, fmt.Sprint(part, "-", i), []byte("body"), time.Minute, time.Hour)
		}
		// As if the last part were full.
		if err := db.excl.writer.do(t.Context(), &op{write: func(r *rows) error {
			r.wrote = true
			for _, prefix := range []byte{bodyPrefix, recordPrefix} {
				found := r.groups(prefix)
				if len(found) != part+1 {
					t.Errorf("%d parts; want %d", len(found), part+1)
				}
				if err := r.bucket(found[part], prefix).SetSequence(partRows); err != nil {
					return err
				}
			}
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, perCall := range []bool{true, false} {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = openAt(t, path, &Options{Now: clock.Now, PerCall: perCall})
		for _, key := range []string{"0-0", "7-3", fmt.Sprint(parts-1, "-", each-1)} {
			if got := replay(t, db, key); string(got.Body) != "body" {
				t.Errorf("%s replays %q", key, got.Body)
			}
		}
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	clock.Advance(2 * time.Minute)
	if done := sweepAll(t, db); done.Bodies != each*parts || done.Removed != 0 {
		t.Errorf("the sweep of results: %+v; want %d", done, each*parts)
	}
	expectExpired(t, db, "7-3")
	clock.Advance(2 * time.Hour)
	// A call ends after about so many rows, as far as the parts say.
	done, err := db.Expire(t.Context(), backend.ExpireRequest{})
	if err != nil || !done.More || done.Removed == 0 || done.Removed == each*parts {
		t.Errorf("the first call: %+v, %v; want a part of the work done", done, err)
	}
	if rest := sweepAll(t, db); done.Removed+rest.Removed != each*parts {
		t.Errorf("the sweep of records: %+v after %+v; want %d", rest, done, each*parts)
	}
	if partLimit(200) != partRows || partLimit(backend.MaxBody) != leastRows || partLimit(partBytes/1000) != 1000 {
		t.Error("the bounds of a part do not follow the size of its rows")
	}
}
