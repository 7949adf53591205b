package bolt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// tampered makes a store with one completed key, "k", and changes its file. An
// unclean store was never closed: its records are not in the index buckets.
func tampered(t *testing.T, unclean bool, change func(r *rows) error) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, "k", []byte("1"))
	if unclean {
		copied := crashed(t, db)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		path = copied
	} else if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Update(func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		return change(r)
	}); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// One bit of the hash in front of a record is not what it was. The record is
// there, so its operation must not run again.
func TestC48_FlippedBitInTheHashOfARecord(t *testing.T) {
	for _, unclean := range []bool{false, true} {
		for _, perCall := range []bool{false, true} {
			path := tampered(t, unclean, func(r *rows) error {
				for _, g := range r.generations() {
					b := r.bucket(g, recordPrefix)
					k, v := b.Cursor().First()
					k, v = bytes.Clone(k), bytes.Clone(v)
					v[3] ^= 4
					if err := b.Put(k, v); err != nil {
						return err
					}
				}
				return nil
			})
			db, err := Open(path, &Options{PerCall: perCall})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := db.Reserve(t.Context(), reserving("k")); !errors.Is(err, backend.ErrCorruptRecord) {
				t.Errorf("unclean %v, per call %v: %v, %v", unclean, perCall, res.Outcome, err)
			}
			if err := db.Check(t.Context()); !errors.Is(err, ErrDamaged) {
				t.Errorf("unclean %v, per call %v: Check: %v", unclean, perCall, err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A sequence says how many records there may be. Memory is taken for what the
// file has room for, not for what a damaged number says.
func TestC48_DamagedSequenceDoesNotTakeAllMemory(t *testing.T) {
	for _, sequence := range []uint64{1 << 42, 1 << 60, 1<<64 - 2} {
		path := tampered(t, false, func(r *rows) error {
			for _, g := range r.generations() {
				if err := r.bucket(g, recordPrefix).SetSequence(sequence); err != nil {
					return err
				}
			}
			return nil
		})
		for _, perCall := range []bool{false, true} {
			db, err := Open(path, &Options{PerCall: perCall})
			if errors.Is(err, ErrDamaged) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if res, err := db.Reserve(t.Context(), reserving("k")); err != nil || res.Outcome != backend.Existing {
				t.Errorf("sequence %d, per call %v: %v, %v", sequence, perCall, res.Outcome, err)
			}
			_ = db.Close()
		}
	}
}

// More generations than can be numbered: those that are due go first, so that the
// store opens and can be swept.
func TestTooManyGenerations(t *testing.T) {
	base := nanos(time.Now())>>minClass - 70000
	path := tampered(t, false, func(r *rows) error {
		for i := range uint64(maxSlots + 1) {
			if _, err := r.top.CreateBucket(generation{class: minClass, index: base + i}.name(recordPrefix)); err != nil {
				return err
			}
		}
		return nil
	})
	perCall := openAt(t, path, &Options{PerCall: true})
	if rec, err := perCall.Get(t.Context(), id("k")); err != nil || string(rec.Body) != "1" {
		t.Errorf("per call: Get: %q, %v", rec.Body, err)
	}
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := replay(t, db, "k"); string(got.Body) != "1" {
		t.Errorf("replayed %q", got.Body)
	}
	if n := len(db.excl.gens.all()); n > crowd {
		t.Errorf("%d generations are left", n)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, perCall, "other", nil)
}

// A store that nobody sweeps drops what is due before its slots run out.
func TestWriterDropsWhatIsDueWhenSlotsRunLow(t *testing.T) {
	c := newGatedClock()
	db := open(t, &Options{Now: c.now})
	rec := acquire(t, db, reserving("short"))
	if _, err := db.Complete(t.Context(), shortLived(rec.Ref)); err != nil {
		t.Fatal(err)
	}
	now := nanos(c.now())
	for i := range uint64(crowd) { // numbered, without a bucket: only the numbers count here
		g := generation{class: minClass, index: now>>minClass + 100_000 + i}
		db.excl.gens.mu.Lock()
		if db.excl.gens.slots == nil {
			db.excl.gens.slots = make(map[generation]uint16)
		}
		db.excl.gens.slots[g] = 0
		db.excl.gens.mu.Unlock()
	}
	c.add(time.Hour)
	run(t, db, "k", nil)
	left := 0
	if err := db.excl.view(func(r *rows) error {
		left = len(r.generations())
		return nil
	}); err != nil || left != 1 {
		t.Errorf("%d generations on disk, %v; want that of the new record only", left, err)
	}
	db.excl.gens.mu.Lock()
	for g := range db.excl.gens.slots {
		if g.index >= now>>minClass+100_000 && g.class == minClass {
			delete(db.excl.gens.slots, g)
		}
	}
	db.excl.gens.mu.Unlock()
	if got := fmt.Sprint(len(db.excl.gens.all())); got != "1" {
		t.Errorf("%s generations are numbered", got)
	}
}

// ownHash knows where a record has its ID.
func TestOwnHashIsThatOfTheID(t *testing.T) {
	rec := backend.Record{Ref: backend.Ref{ID: id("some key"), Owner: token()}, State: backend.Completed, Fence: 7, Body: []byte("body")}
	for _, tag := range []byte{inline, apart} {
		row := appendRow(nil, 1, &rec, tag)
		if got := ownHash(row); got != hashOf(rec.ID) {
			t.Errorf("%x; the hash of the ID is %x", got, hashOf(rec.ID))
		}
		for n := hashSize; n < len(row); n++ {
			_ = ownHash(row[:n]) // never out of range
		}
	}
}

// A file from before the first release is refused, whole, rather than misread.
func TestR28_LayoutFromBeforeTheReleaseIsRefused(t *testing.T) {
	data, err := os.ReadFile("testdata/before-release.idem")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "store.idem")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{nil, {PerCall: true}, {ReadOnly: true}} {
		_, err := Open(path, o)
		var file *FileError
		if !errors.Is(err, backend.ErrUnknownVersion) || !errors.As(err, &file) || !strings.Contains(err.Error(), "before the first release") {
			t.Errorf("%+v: %v; want a FileError that matches ErrUnknownVersion", o, err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, data) {
		t.Errorf("the file was touched: %v", err)
	}
}
