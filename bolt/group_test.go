package bolt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// effects is the bucket of the tests' own effects.
const effects = "effects"

func openWithEffects(t testing.TB, o *Options) *DB {
	t.Helper()
	db := open(t, o)
	if err := db.Bolt().Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte(effects))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return db
}

// effect adds a row; nothing in the bucket is unique.
func effect(tx *bbolt.Tx, name string) error {
	b := tx.Bucket([]byte(effects))
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(seqKey(n), []byte(name))
}

func countEffects(t testing.TB, db *DB) map[string]int {
	t.Helper()
	found := map[string]int{}
	if err := db.Bolt().View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(effects)).ForEach(func(_, v []byte) error {
			found[string(v)]++
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// bbolt's Batch makes a lone caller wait for a timer. Here it pays for its own
// commit and nothing else.
func TestCaseC43_LoneCallerWaitsForNobody(t *testing.T) {
	db := open(t, nil)
	raw := open(t, nil).Bolt()
	var ours, floor []time.Duration
	for i := range 60 { // in turns: the disk changes its mind
		start := time.Now()
		run(t, db, fmt.Sprint("key-", i), make([]byte, 200))
		ours = append(ours, time.Since(start))
		start = time.Now()
		for range 2 {
			if err := raw.Update(func(tx *bbolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists([]byte("raw"))
				if err != nil {
					return err
				}
				return b.Put(fmt.Append(nil, "key-", i), make([]byte, 265))
			}); err != nil {
				t.Fatal(err)
			}
		}
		floor = append(floor, time.Since(start))
	}
	slices.Sort(ours)
	slices.Sort(floor)
	a, b := ours[len(ours)/2], floor[len(floor)/2]
	t.Logf("median Execute %v, two plain updates %v", a, b)
	if a > 2*b+time.Millisecond {
		t.Errorf("the median Execute takes %v, two plain updates %v; want at most twice that", a, b)
	}
}

// One member of a group that fails, panics or ends its goroutine does not disturb
// the others, and nobody's work runs more than about twice.
func TestCaseC43_FailuresStayWithTheirCaller(t *testing.T) {
	const callers = 48
	db := openWithEffects(t, nil)
	errWork := errors.New("work failed")
	for round := range 8 {
		var runs [callers]atomic.Int32
		var verdicts [callers]string
		start := make(chan struct{})
		together(callers+1, func(i int) {
			if i == callers {
				close(start)
				return
			}
			<-start
			name := fmt.Sprint(round, "-", i)
			done := make(chan struct{})
			go func() { // a goroutine of its own, because some end it
				defer close(done)
				verdicts[i] = "goexit"
				defer func() {
					if p := recover(); p != nil {
						verdicts[i] = fmt.Sprint("panic ", p)
					}
				}()
				res, err := db.Transact(context.Background(), reserving(name), func(_ context.Context, tx *bbolt.Tx, res backend.Reservation) (backend.Completion, error) {
					runs[i].Add(1)
					if res.Record.State != backend.InFlight || res.Record.Attempt != 1 {
						t.Errorf("work was shown %v, attempt %d", res.Record.State, res.Record.Attempt)
					}
					if err := effect(tx, name); err != nil {
						return backend.Completion{}, err
					}
					switch i {
					case 7:
						panic("boom")
					case 11:
						runtime.Goexit()
					case 13:
						return backend.Completion{}, errWork
					case 17: // refused by the store itself
						return backend.Completion{State: backend.Completed, Body: make([]byte, backend.MaxBody+1), ReplayFor: 1, KnownFor: 1}, nil
					case 19:
						return backend.Completion{State: backend.Failed, Body: []byte("no"), ReplayFor: time.Hour, KnownFor: time.Hour, Undo: true}, nil
					}
					return completion(name), nil
				})
				verdicts[i] = fmt.Sprint(res.Outcome, " ", res.Record.State, " ", err)
				if i == 17 && errors.Is(err, backend.ErrInvalidRequest) {
					verdicts[i] = "refused"
				}
			}()
			<-done
		})
		seen := countEffects(t, db)
		for i := range callers {
			name := fmt.Sprint(round, "-", i)
			want, effects, state := "acquired completed <nil>", 1, backend.Completed
			switch i {
			case 7:
				want, effects, state = "panic boom", 0, 0
			case 11:
				want, effects, state = "goexit", 0, 0
			case 13:
				want, effects, state = "outcome 0 absent work failed", 0, 0
			case 17:
				want, effects, state = "refused", 0, 0
			case 19:
				want, effects, state = "acquired failed <nil>", 0, backend.Failed
			}
			if verdicts[i] != want {
				t.Errorf("caller %d was told %q; want %q", i, verdicts[i], want)
			}
			if seen[name] != effects {
				t.Errorf("caller %d has %d effects; want %d", i, seen[name], effects)
			}
			rec, err := db.Get(t.Context(), id(name))
			if state == 0 && !errors.Is(err, backend.ErrNotFound) || state != 0 && rec.State != state {
				t.Errorf("caller %d left %v, %v; want %v", i, rec.State, err, state)
			}
			if n := runs[i].Load(); n < 1 || n > 3 {
				t.Errorf("the work of caller %d ran %d times", i, n)
			}
		}
	}
	run(t, db, "afterwards", nil)
}

// While somebody's work is slow inside a transaction, nothing commits. What needs
// no commit goes on: reservations, renewals, reads, and what waits can leave.
func TestSlowWorkDoesNotStopLeases(t *testing.T) {
	db := openWithEffects(t, nil)
	lease := reserving("lease")
	acquire(t, db, lease)
	run(t, db, "settled", []byte("answer"))

	inside, leave := make(chan struct{}), make(chan struct{})
	slow := make(chan error, 1)
	go func() {
		_, err := db.Transact(context.Background(), reserving("slow"), func(ctx context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
			close(inside)
			// Its own key and others can be read from inside.
			if _, err := db.Get(ctx, id("slow")); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("Get of the own key inside work: %v", err)
			}
			<-leave
			return completion("slow"), effect(tx, "slow")
		})
		slow <- err
	}()
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := db.Renew(ctx, lease.Ref, time.Hour); err != nil {
		t.Errorf("Renew beside slow work: %v", err)
	}
	if rec, err := db.Get(ctx, lease.ID); err != nil || time.Until(rec.LeaseUntil) < 50*time.Minute {
		t.Errorf("the renewal is not visible: %v, %v", rec.LeaseUntil, err)
	}
	acquire(t, db, reserving("another"))
	if got := replay(t, db, "settled"); string(got.Body) != "answer" {
		t.Errorf("replay beside slow work: %q", got.Body)
	}
	// A duplicate of the slow key is told that it is busy, soon.
	start := time.Now()
	res, err := db.Reserve(ctx, reserving("slow"))
	if err != nil || res.Outcome != backend.Busy || time.Since(start) > time.Second {
		t.Errorf("a duplicate of a key whose transaction is open: %v, %v after %v; want busy", res.Outcome, err, time.Since(start))
	}
	// A completion that cannot commit yet is withdrawn when its caller leaves.
	short, cancelShort := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancelShort()
	_, err = db.Complete(short, completeWith(lease.Ref, nil))
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("Complete beside slow work, with a deadline: %v; want the deadline, and nothing unknown about it", err)
	}
	if rec, err := db.Get(ctx, lease.ID); err != nil || rec.State != backend.InFlight {
		t.Errorf("after a withdrawn completion: %v, %v", rec.State, err)
	}
	// So is work that has not been started.
	short2, cancelShort2 := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancelShort2()
	_, err = db.Transact(short2, reserving("queued"), func(context.Context, *bbolt.Tx, backend.Reservation) (backend.Completion, error) {
		t.Error("work ran although its caller had left")
		return completion(""), nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Transact beside slow work, with a deadline: %v", err)
	}
	close(leave)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if _, err := db.Complete(t.Context(), completeWith(lease.Ref, nil)); err != nil {
		t.Errorf("Complete after the slow work: %v", err)
	}
}

// Finish holds its key while work runs, and the lease can be renewed meanwhile.
func TestRenewPassesFinish(t *testing.T) {
	for _, policy := range []backend.Abandoned{backend.Rerun, backend.Hold} {
		db := openWithEffects(t, nil)
		r := reserving("k")
		r.OnAbandoned = policy
		acquire(t, db, r)
		rec, err := db.Finish(t.Context(), r.Ref, func(ctx context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
			soon, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if err := db.Renew(soon, r.Ref, time.Hour); err != nil {
				t.Errorf("%v: Renew inside Finish: %v", policy, err)
			}
			return completion("done"), effect(tx, "k")
		})
		if err != nil || rec.State != backend.Completed {
			t.Errorf("%v: Finish: %v, %v", policy, rec.State, err)
		}
		if n := countEffects(t, db)["k"]; n != 1 {
			t.Errorf("%v: %d effects", policy, n)
		}
	}
}

// A commit handler that a caller's work registers and that panics takes neither
// the process nor the commit with it.
func TestPanicInCommitHandler(t *testing.T) {
	db := openWithEffects(t, nil)
	r := reserving("k")
	_, err := db.Transact(t.Context(), r, func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
		tx.OnCommit(func() { panic("handler") })
		return completion("done"), effect(tx, "k")
	})
	if !errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("Transact: %v; want ErrOutcomeUnknown", err)
	}
	res, err := db.Transact(t.Context(), r, func(context.Context, *bbolt.Tx, backend.Reservation) (backend.Completion, error) {
		t.Error("work ran again although its commit stands")
		return completion("again"), nil
	})
	if err != nil || res.Outcome != backend.Existing || string(res.Record.Body) != "done" {
		t.Errorf("asking again: %v, %v", res.Outcome, err)
	}
	run(t, db, "next", nil)
}

// Every caller of a storm on one key gets the one result or is told to wait.
func TestStormOnOneKey(t *testing.T) {
	db := openWithEffects(t, nil)
	var ran, busy atomic.Int32
	together(64, func(int) {
		r := reserving("k")
		r.Wait = time.Minute
		res, err := db.Transact(context.Background(), r, func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
			ran.Add(1)
			return completion("once"), effect(tx, "k")
		})
		switch {
		case err != nil:
			t.Error(err)
		case res.Outcome == backend.Busy:
			busy.Add(1)
		case string(res.Record.Body) != "once":
			t.Errorf("%v with %q", res.Outcome, res.Record.Body)
		}
	})
	if ran.Load() != 1 || countEffects(t, db)["k"] != 1 || busy.Load() != 0 {
		t.Errorf("work ran %d times, %d effects, %d busy", ran.Load(), countEffects(t, db)["k"], busy.Load())
	}
}
