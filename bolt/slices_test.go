package bolt

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/goidem/idem/backend"
)

// Slices that bbolt hands out point into the file's mapping and die with their
// transaction: later they show other data, or fault. What the store hands out must
// not be theirs.
func TestCaseC33_ReturnedBytesOutliveTheirTransaction(t *testing.T) {
	for _, mode := range []string{"exclusive", "per call"} {
		t.Run(mode, func(t *testing.T) {
			perCall := mode == "per call"
			db := openAt(t, filepath.Join(t.TempDir(), "store.idem"), &Options{PerCall: perCall})
			more, workers := 3000, 64
			if perCall {
				more, workers = 20, 4 // each is several syncs
			}
			want := bytes.Repeat([]byte("result-k1 "), 410)
			given := bytes.Clone(want)
			r := reserving("k1")
			r.Fingerprint = append([]byte{1}, make([]byte, 32)...)
			acquire(t, db, r)
			if _, err := db.Complete(t.Context(), completeWith(r.Ref, given)); err != nil {
				t.Fatal(err)
			}
			clear(given) // the caller's slices are the caller's again
			clear(r.Fingerprint)

			again := reserving("k1")
			again.Fingerprint = append([]byte{1}, make([]byte, 32)...)
			res, err := db.Reserve(t.Context(), again)
			if err != nil || res.Outcome != backend.Existing {
				t.Fatal(res.Outcome, err)
			}
			kept := res.Record
			got, err := db.Get(t.Context(), id("k1"))
			if err != nil {
				t.Fatal(err)
			}
			clear(got.Body) // one caller's copy is not another's

			listed := make(map[string]backend.Record)
			together(30, func(i int) { run(t, db, fmt.Sprint("list-", i), fmt.Append(nil, "body-", i)) })
			for rec, err := range db.List(t.Context(), backend.Filter{}) {
				if err != nil {
					t.Fatal(err)
				}
				listed[rec.ID.Key] = rec
			}

			filler := make([]byte, 8<<10)
			together(workers, func(worker int) {
				for i := worker; i < more; i += workers {
					run(t, db, fmt.Sprint("filler-", i), filler)
				}
			})
			if err := db.Forget(t.Context(), backend.ForgetRequest{ID: id("k1"), Fence: kept.Fence}); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil {
				t.Fatal(err)
			}
			run(t, db, "k1", []byte("another"))

			if !bytes.Equal(kept.Body, want) {
				t.Error("a result that was kept changed under its reader")
			}
			for i := range 30 {
				rec := listed[fmt.Sprint("list-", i)]
				if string(rec.Body) != fmt.Sprint("body-", i) || rec.ID != id(fmt.Sprint("list-", i)) {
					t.Errorf("a record kept from a listing changed: %q", rec.Body)
				}
			}
		})
	}
}

// What one caller does to a slice it was given must not show in another's, also
// while the record is in memory only.
func TestCaseC33_RecordsInMemoryAreNotShared(t *testing.T) {
	db := open(t, nil)
	r := reserving("k1")
	r.Fingerprint = append([]byte{1}, bytes.Repeat([]byte{7}, 32)...)
	first := acquire(t, db, r)
	clear(first.Fingerprint)
	clear(r.Fingerprint)
	second, err := db.Get(t.Context(), id("k1"))
	if err != nil || second.Fingerprint[1] != 7 {
		t.Fatalf("the fingerprint in the store changed with a caller's copy: %v, %v", second.Fingerprint, err)
	}
	clear(second.Fingerprint)
	if third, _ := db.Get(t.Context(), id("k1")); third.Fingerprint[1] != 7 {
		t.Error("the fingerprint in the store changed with a reader's copy")
	}
	rec, err := db.Complete(t.Context(), completeWith(r.Ref, []byte("done")))
	if err != nil {
		t.Fatal(err)
	}
	clear(rec.Body)
	if got, _ := db.Get(t.Context(), id("k1")); string(got.Body) != "done" {
		t.Errorf("the stored result changed with the completer's copy: %q", got.Body)
	}
}
