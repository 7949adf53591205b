package bolt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// crashed copies the file as it is now: what the next process would find if this
// one died here.
func crashed(t *testing.T, db *DB) (path string) {
	t.Helper()
	data, err := os.ReadFile(db.Path())
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "copy.idem")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A function that ends the caller's transaction itself cannot be stopped from
// doing so, where the type is *bbolt.Tx. Its effect must not be committed twice.
func TestR19_FnThatEndsTheCallersTransaction(t *testing.T) {
	for name, end := range map[string]func(*bbolt.Tx) error{"commit": (*bbolt.Tx).Commit, "rollback": (*bbolt.Tx).Rollback} {
		t.Run(name, func(t *testing.T) {
			db := openWithEffects(t, nil)
			s, err := idem.NewTx[*bbolt.Tx](db, nil)
			if err != nil {
				t.Fatal(err)
			}
			ran := 0
			call := func() error {
				tx, err := db.Bolt().Begin(true)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }()
				_, err = idem.ExecuteIn(t.Context(), s, tx, idem.Scope{Operation: "o"}, "k", idem.NoFingerprint(), func(_ context.Context, tx *bbolt.Tx) (string, error) {
					ran++
					return "v", errors.Join(effect(tx, "e"), end(tx))
				})
				return err
			}
			if err := call(); !errors.Is(err, idem.ErrOutcomeUnknown) {
				t.Errorf("the first call: %v; want an unknown outcome", err)
			}
			err = call()
			if name == "commit" {
				if !errors.Is(err, idem.ErrUnresolved) || ran != 1 || countEffects(t, db)["e"] != 1 {
					t.Errorf("the second call: %v; ran %d times, %d effects", err, ran, countEffects(t, db)["e"])
				}
				if _, err := openAt(t, crashed(t, db), nil).Get(t.Context(), backend.ID{Operation: "o", Key: "k"}); err != nil {
					t.Errorf("after a crash: %v", err)
				}
				return
			}
			if !errors.Is(err, idem.ErrOutcomeUnknown) || ran != 2 || countEffects(t, db)["e"] != 0 {
				t.Errorf("the second call: %v; ran %d times, %d effects", err, ran, countEffects(t, db)["e"])
			}
		})
	}
}

// An attempt that lived in memory only is found abandoned by a caller that holds:
// once it was called uncertain, neither a clean end of the process nor a crash
// may hand it out again (R13).
func TestR13_HoldInsideACallersTransactionOutlivesTheProcess(t *testing.T) {
	for _, crash := range []bool{false, true} {
		c, path := newGatedClock(), filepath.Join(t.TempDir(), "store.idem")
		db, err := Open(path, &Options{Now: c.now})
		if err != nil {
			t.Fatal(err)
		}
		r := reserving("k")
		r.TTL = time.Second
		rec := acquire(t, db, r)
		c.add(time.Minute)
		hold := reserving("k")
		hold.OnAbandoned, hold.TakeOver = backend.Hold, rec.Fence
		if err := db.Bolt().Update(func(tx *bbolt.Tx) error {
			for range 2 {
				res, err := db.Join(t.Context(), tx, hold, completes("x"))
				if err != nil || res.Outcome != backend.Existing || res.Record.State != backend.Uncertain {
					t.Errorf("Join: %v, %v", res.Outcome, err)
				}
			}
			if res, err := db.Reserve(t.Context(), reserving("k")); err != nil || res.Outcome != backend.Existing || res.Record.State != backend.Uncertain {
				t.Errorf("beside the transaction: %v, %v", res.Outcome, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if rec, err := db.Get(t.Context(), id("k")); err != nil || rec.State != backend.Uncertain {
			t.Errorf("Get: %v, %v", rec.State, err)
		}
		next := db
		if crash {
			run(t, db, "other", nil) // one more commit: by then the row is on disk
			next = openAt(t, crashed(t, db), &Options{Now: c.now})
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if !crash {
			next = openAt(t, path, &Options{Now: c.now})
		}
		if res, err := next.Reserve(t.Context(), reserving("k")); err != nil || res.Outcome != backend.Existing || res.Record.State != backend.Uncertain {
			t.Errorf("crash %v: an uncertain key: %v, %v", crash, res.Outcome, err)
		}
	}
}

// What memory calls uncertain is written by Close also if the writer had no turn
// for it.
func TestCloseWritesWhatIsUncertainInMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := acquire(t, db, reserving("k"))
	k, _, err := db.excl.hold(t.Context(), id("k"), hashOf(id("k")), false, 0)
	if err != nil {
		t.Fatal(err)
	}
	rec.State, rec.KnownUntil = backend.Uncertain, time.Time{}
	if err := k.remember(rec, 0); err != nil {
		t.Fatal(err)
	}
	k.release()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if rec, err := openAt(t, path, nil).Get(t.Context(), id("k")); err != nil || rec.State != backend.Uncertain {
		t.Errorf("%v, %v", rec.State, err)
	}
}

// A fence given inside a caller's transaction is covered by the mark on disk even
// if that transaction is rolled back and the process then dies (R4).
func TestR4_FenceGivenInARolledBackTransactionIsNotGivenAgain(t *testing.T) {
	db := open(t, nil)
	f := &db.excl.fences
	f.last.Store(f.mark.Load()) // the block is used up, and nothing could move the mark
	given := uint64(0)
	join := func() error {
		tx, err := db.Bolt().Begin(true)
		if err != nil {
			return err
		}
		_, err = db.Join(t.Context(), tx, reserving("j"), func(_ context.Context, _ *bbolt.Tx, r backend.Reservation) (backend.Completion, error) {
			given = r.Record.Fence
			return completion("x"), nil
		})
		return errors.Join(err, tx.Rollback())
	}
	if err := join(); !errors.Is(err, backend.ErrRetryTransaction) || given != 0 {
		t.Fatalf("Join with no fence to give: %v, fence %d", err, given)
	}
	run(t, db, "other", nil) // the writer has its turn
	if err := join(); err != nil || given == 0 {
		t.Fatalf("Join again: %v, fence %d", err, given)
	}
	if rec := acquire(t, openAt(t, crashed(t, db), nil), reserving("j")); rec.Fence <= given {
		t.Errorf("fence %d after a crash; %d had been given", rec.Fence, given)
	}
}

// The mark is moved when half a block is used up, long before a caller's
// transaction would have to be refused.
func TestFenceMarkMovesAhead(t *testing.T) {
	db := open(t, nil)
	f := &db.excl.fences
	before := f.mark.Load()
	f.last.Store(before - fenceBlock/2 + 1)
	acquire(t, db, reserving("k"))
	run(t, db, "other", nil)
	if after := f.mark.Load(); after < before+fenceBlock/2 {
		t.Errorf("the mark went from %d to %d", before, after)
	}
}
