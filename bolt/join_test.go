package bolt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

func completes(body string) backend.Work[*bbolt.Tx] {
	return func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
		return completion(body), effect(tx, body)
	}
}

// Until the caller's transaction ends, its key belongs to nobody else; how it
// ended is found out without the caller's help.
func TestJoinedKeyIsBusyUntilItsTransactionEnds(t *testing.T) {
	for _, commits := range []bool{true, false} {
		db := openWithEffects(t, nil)
		tx, err := db.Bolt().Begin(true)
		if err != nil {
			t.Fatal(err)
		}
		res, err := db.Join(t.Context(), tx, reserving("k"), completes("joined"))
		if err != nil || res.Outcome != backend.Acquired || res.Record.State != backend.Completed {
			t.Fatal(res.Outcome, err)
		}
		start := time.Now()
		if res, err := db.Reserve(t.Context(), reserving("k")); err != nil || res.Outcome != backend.Busy {
			t.Errorf("beside the open transaction: %v, %v; want busy", res.Outcome, err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("failing fast took %v", took)
		}
		if _, err := db.Get(t.Context(), id("k")); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Get beside the open transaction: %v", err)
		}
		acquire(t, db, reserving("other")) // memory only: no need to wait

		waited := make(chan backend.Reservation, 1)
		go func() {
			r := reserving("k")
			r.Wait = 10 * time.Second
			res, err := db.Reserve(context.Background(), r)
			if err != nil {
				t.Error(err)
			}
			waited <- res
		}()
		time.Sleep(20 * time.Millisecond)
		if commits {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
		got := <-waited
		if commits && (got.Outcome != backend.Existing || string(got.Record.Body) != "joined") {
			t.Errorf("after the commit a waiter got %v", got.Outcome)
		}
		if !commits && got.Outcome != backend.Acquired {
			t.Errorf("after the roll-back a waiter got %v", got.Outcome)
		}
		want := 0
		if commits {
			want = 1
		}
		if n := countEffects(t, db)["joined"]; n != want {
			t.Errorf("%d effects; want %d", n, want)
		}
	}
}

// A transaction that was rolled back leaves its sequence number to the next one.
// The row that then stands there is another key's and must not pass for ours.
func TestJoinRollbackIsNotMistakenForTheNextRecord(t *testing.T) {
	db := openWithEffects(t, nil)
	tx, err := db.Bolt().Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Join(t.Context(), tx, reserving("rolled-back"), completes("a")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	run(t, db, "next", []byte("b"))
	acquire(t, db, reserving("rolled-back"))
	if got := replay(t, db, "next"); string(got.Body) != "b" {
		t.Errorf("the next record is %q", got.Body)
	}
}

// After an error of work, after a panic, and where effects were to be undone, the
// key is uncertain if the caller commits all the same (R21), and as before if not.
func TestJoinWithoutSavepoint(t *testing.T) {
	errWork := errors.New("work failed")
	works := map[string]backend.Work[*bbolt.Tx]{
		"error": func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
			return backend.Completion{}, errors.Join(effect(tx, "half"), errWork)
		},
		"panic": func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
			_ = effect(tx, "half")
			panic("boom")
		},
		"undo": func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
			return backend.Completion{State: backend.Failed, ReplayFor: 1, KnownFor: 1, Undo: true}, effect(tx, "half")
		},
	}
	for name, work := range works {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " commits=", commits), func(t *testing.T) {
				db := openWithEffects(t, nil)
				errOut := errors.New("rolled back")
				err := db.Bolt().Update(func(tx *bbolt.Tx) error {
					func() {
						defer func() {
							if p := recover(); p != nil && (name != "panic" || p != "boom") {
								t.Errorf("panic %v", p)
							}
						}()
						res, err := db.Join(t.Context(), tx, reserving("k"), work)
						switch {
						case name == "panic":
							t.Error("the panic did not come through")
						case name == "error" && !errors.Is(err, errWork):
							t.Errorf("Join: %v", err)
						case name == "undo" && (err != nil || res.Record.State != backend.Uncertain):
							t.Errorf("Join: %v, %v", res.Record.State, err)
						}
					}()
					if !commits {
						return errOut
					}
					return nil
				})
				if commits != (err == nil) {
					t.Fatal(err)
				}
				rec, err := db.Get(t.Context(), id("k"))
				if commits && rec.State != backend.Uncertain {
					t.Errorf("after the commit: %v, %v; want uncertain", rec.State, err)
				}
				if !commits {
					acquire(t, db, reserving("k"))
				}
			})
		}
	}
}

// Join inside work that the store itself has put into a transaction is the way to
// nest; when the group is rolled back for another's sake, it is done again.
func TestJoinInsideTransact(t *testing.T) {
	db := openWithEffects(t, nil)
	errWork := errors.New("work failed")
	for round := range 10 {
		together(8, func(i int) {
			name := fmt.Sprint(round, "-", i)
			_, err := db.Transact(context.Background(), reserving("outer-"+name), func(ctx context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
				res, err := db.Join(ctx, tx, reserving("inner-"+name), completes("inner-"+name))
				if err != nil || res.Outcome != backend.Acquired {
					return backend.Completion{}, fmt.Errorf("inner %v: %w", res.Outcome, err)
				}
				if i == 3 {
					return backend.Completion{}, errWork
				}
				return completion("outer"), effect(tx, "outer-"+name)
			})
			if i == 3 && !errors.Is(err, errWork) || i != 3 && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	seen := countEffects(t, db)
	for round := range 10 {
		for i := range 8 {
			for _, which := range []string{"inner-", "outer-"} {
				name := fmt.Sprint(which, round, "-", i)
				want, state := 1, backend.Completed
				if i == 3 {
					want, state = 0, 0
				}
				rec, err := db.Get(t.Context(), id(name))
				if seen[name] != want || rec.State != state {
					t.Errorf("%s: %d effects, %v, %v; want %d, %v", name, seen[name], rec.State, err, want, state)
				}
			}
		}
	}
}

// Transactions that are not an open write transaction of this file are refused.
func TestJoinRefusesOtherTransactions(t *testing.T) {
	db, other := openWithEffects(t, nil), openWithEffects(t, nil)
	never := func(context.Context, *bbolt.Tx, backend.Reservation) (backend.Completion, error) {
		t.Error("work ran")
		return completion(""), nil
	}
	try := func(what string, tx *bbolt.Tx) {
		t.Helper()
		if _, err := db.Join(t.Context(), tx, reserving("k"), never); !errors.Is(err, ErrWrongTx) {
			t.Errorf("%s: %v; want ErrWrongTx", what, err)
		}
	}
	try("no transaction", nil)
	if err := db.Bolt().View(func(tx *bbolt.Tx) error { try("a read transaction", tx); return nil }); err != nil {
		t.Error(err)
	}
	if err := other.Bolt().Update(func(tx *bbolt.Tx) error { try("another file", tx); return nil }); err != nil {
		t.Error(err)
	}
	tx, err := db.Bolt().Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	try("one that has ended", tx)
}

// New shares the caller's file, beside its own buckets, and leaves it open.
func TestNewOnTheCallersFile(t *testing.T) {
	file, err := bbolt.Open(filepath.Join(t.TempDir(), "app.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte(effects))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var fence uint64
	for i := range 3 {
		db, err := New(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if db.Bolt() != file {
			t.Error("Bolt is not the caller's database")
		}
		if _, err := db.Transact(t.Context(), reserving(fmt.Sprint("tx-", i)), completes("effect")); err != nil {
			t.Fatal(err)
		}
		rec := run(t, db, fmt.Sprint("key-", i), nil)
		if rec.Fence <= fence {
			t.Errorf("fences went from %d to %d across handles", fence, rec.Fence)
		}
		fence = rec.Fence
		if n := len(all(t, db, backend.Filter{})); n != 2*(i+1) {
			t.Errorf("%d records; want %d", n, 2*(i+1))
		}
		if err := db.Compact(t.Context()); err == nil {
			t.Error("Compact replaced the caller's file")
		}
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Reserve(t.Context(), reserving("late")); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if err := file.View(func(tx *bbolt.Tx) error { return nil }); err != nil {
		t.Errorf("Close closed the caller's database: %v", err)
	}
	file.NoSync = true
	if _, err := New(file, nil); err == nil {
		t.Error("NoSync was accepted")
	}
	file.NoSync = false
}
