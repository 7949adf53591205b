package bolt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// fakeClock moves only when it is told to.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestConformanceExclusive(t *testing.T) {
	backendtest.RunTx(t, func(t testing.TB) *backendtest.TxHarness[*bbolt.Tx] {
		clock := newFakeClock()
		db, err := Open(filepath.Join(t.TempDir(), "store.idem"), &Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeChecked(t, db) })
		if err := db.Bolt().Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("effects"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return &backendtest.TxHarness[*bbolt.Tx]{
			// The lock of the file allows one handle.
			Open:                func(testing.TB) backend.Transactional[*bbolt.Tx] { return db },
			Advance:             clock.Advance,
			Parallel:            true,
			FenceOutlivesRecord: true,
			NoSavepoint:         true,
			Put:                 func(t testing.TB, r backend.Record) { put(t, db, r) },
			Damage: func(t testing.TB, id backend.ID) {
				flush(t, db, id)
				rewrite(t, db.Bolt(), id, func(b []byte) { b[len(b)-1] ^= 0xff })
			},
			Future: func(t testing.TB, id backend.ID) {
				flush(t, db, id)
				rewrite(t, db.Bolt(), id, func(b []byte) { b[0] = 99 })
			},
			Effect: func(t testing.TB, tx *bbolt.Tx, name string) {
				b := tx.Bucket([]byte("effects"))
				n, err := b.NextSequence()
				if err == nil {
					err = b.Put(seqKey(n), []byte(name))
				}
				if err != nil {
					t.Error(err)
				}
			},
			Count: func(t testing.TB, name string) (n int) {
				if err := db.Bolt().View(func(tx *bbolt.Tx) error {
					return tx.Bucket([]byte("effects")).ForEach(func(_, v []byte) error {
						if string(v) == name {
							n++
						}
						return nil
					})
				}); err != nil {
					t.Error(err)
				}
				return n
			},
			InOwnTx: func(t testing.TB, do func(tx *bbolt.Tx) error) error { return db.Bolt().Update(do) },
			EndEarly: func(tx *bbolt.Tx) (ended bool) {
				defer func() { ended = recover() == nil }()
				return tx.Commit() == nil
			},
		}
	})
}

func TestConformancePerCall(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
		clock := newFakeClock()
		path := filepath.Join(memoryFolder(t), "store.idem")
		open := func(t testing.TB) *DB {
			db, err := Open(path, &Options{Now: clock.Now, PerCall: true})
			if err != nil {
				t.Fatal(err)
			}
			return db
		}
		file := func(t testing.TB, do func(db *bbolt.DB)) {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			do(db)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			if db, err := Open(path, &Options{PerCall: true}); err == nil {
				if _, serr := os.Stat(path); serr == nil {
					if err := db.Check(context.Background()); err != nil && !errors.Is(err, backend.ErrCorruptRecord) && !errors.Is(err, backend.ErrUnknownVersion) {
						t.Errorf("Check: %v", err)
					}
				}
			}
		})
		return &backendtest.Harness{
			Open:                func(t testing.TB) backend.Backend { return open(t) },
			Advance:             clock.Advance,
			Parallel:            true,
			FenceOutlivesRecord: true,
			Put: func(t testing.TB, rec backend.Record) {
				if err := open(t).engine.(*perCall).step(t.Context(), rec.ID, true, func(*rows, backend.Record, time.Time) (backend.Step, error) {
					return backend.Step{Next: rec.Clone(), Changed: true}, nil
				}); err != nil {
					t.Fatal(err)
				}
			},
			Damage: func(t testing.TB, id backend.ID) {
				file(t, func(db *bbolt.DB) { rewrite(t, db, id, func(b []byte) { b[len(b)-1] ^= 0xff }) })
			},
			Future: func(t testing.TB, id backend.ID) {
				file(t, func(db *bbolt.DB) { rewrite(t, db, id, func(b []byte) { b[0] = 99 }) })
			},
		}
	})
}

// memoryFolder is a folder whose files need no disk, where there is one: the suite
// makes tens of thousands of moves, each of which syncs in per-call mode, and
// nothing in it is about durability.
func memoryFolder(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "idem-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// closeChecked closes a store after a look at the whole file.
func closeChecked(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// put plants a record as if the file had been opened after it was written.
func put(t testing.TB, db *DB, rec backend.Record) {
	t.Helper()
	s := db.excl
	k, _, err := s.hold(t.Context(), rec.ID, hashOf(rec.ID), false, 0)
	if err != nil {
		t.Fatal(err)
	}
	cur, err := k.load()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.store(t.Context(), rec.Clone(), cur.at); err != nil {
		t.Fatal(err)
	}
	if k, _, err = s.hold(t.Context(), rec.ID, hashOf(rec.ID), false, 0); err != nil {
		t.Fatal(err)
	}
	k.forget()
	k.release()
}

// flush writes a record to disk that may be in memory only, and forgets it.
func flush(t testing.TB, db *DB, id backend.ID) {
	t.Helper()
	rec, err := db.excl.peek(id, hashOf(id))
	if err != nil || rec.State == 0 {
		t.Fatalf("no record to write: %v", err)
	}
	put(t, db, rec)
}

// rewrite changes the stored bytes of a record, wherever it is.
func rewrite(t testing.TB, db *bbolt.DB, id backend.ID, change func([]byte)) {
	t.Helper()
	if err := db.Update(func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		pending, err := r.pending()
		if err != nil {
			return err
		}
		key := id.AppendTo(nil)
		if v := pending.Get(key); v != nil {
			v = append([]byte(nil), v...)
			change(v)
			return pending.Put(key, v)
		}
		for _, g := range r.generations() {
			b := r.bucket(g, recordPrefix)
			c := b.Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				_, _, stored, err := splitRow(v)
				if err != nil {
					continue
				}
				if rec, err := backend.ParseRecord(stored); err == nil && rec.ID == id {
					v = append([]byte(nil), v...)
					change(v[len(v)-len(stored):])
					return b.Put(append([]byte(nil), k...), v)
				}
			}
		}
		t.Error("no stored record to change")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
