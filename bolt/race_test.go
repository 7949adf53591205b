package bolt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// gatedClock is a clock that stands still. Armed, its n-th reading waits at a
// gate, so that a test can step in between a decision and its write.
type gatedClock struct {
	mu    sync.Mutex
	t     time.Time
	left  int
	at    chan struct{}
	gates chan struct{}
}

func newGatedClock() *gatedClock { return &gatedClock{t: time.Now()} }

func (c *gatedClock) now() time.Time {
	c.mu.Lock()
	t := c.t
	var at, open chan struct{}
	if c.left > 0 {
		if c.left--; c.left == 0 {
			at, open = c.at, c.gates
		}
	}
	c.mu.Unlock()
	if at != nil {
		close(at)
		<-open
	}
	return t
}

// arm makes the n-th reading from now close at and wait until open is closed.
func (c *gatedClock) arm(n int) (at, open chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.at, c.gates = n, make(chan struct{}), make(chan struct{})
	return c.at, c.gates
}

func (c *gatedClock) add(d time.Duration) {
	c.mu.Lock()
	c.t = c.t.Add(d)
	c.mu.Unlock()
}

func shortLived(ref backend.Ref) backend.CompleteRequest {
	return backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: time.Second, KnownFor: time.Second}
}

// An expired record's generation is dropped, and its number given to another one,
// between the decision over that record and the write of the next (R24).
func TestR24_SweepBesideAWriteLosesNothing(t *testing.T) {
	expired := func(t *testing.T, db *DB, c *gatedClock) backend.ReserveRequest {
		rec := acquire(t, db, reserving("k"))
		if _, err := db.Complete(t.Context(), shortLived(rec.Ref)); err != nil {
			t.Fatal(err)
		}
		c.add(time.Minute)
		r := reserving("k")
		r.TakeOver = rec.Fence
		return r
	}
	t.Run("transact", func(t *testing.T) {
		c := newGatedClock()
		db := open(t, &Options{Now: c.now})
		r, ran := expired(t, db, c), 0
		work := func(context.Context, *bbolt.Tx, backend.Reservation) (backend.Completion, error) {
			ran++
			return completion("2"), nil
		}
		at, gate := c.arm(2) // the first reading is that of the look without a lock
		done := make(chan error, 1)
		go func() {
			_, err := db.Transact(context.Background(), r, work)
			done <- err
		}()
		<-at
		if _, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil {
			t.Fatal(err)
		}
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := db.Transact(t.Context(), reserving("k"), work); err != nil || ran != 1 {
			t.Errorf("a retry: %v; work ran %d times", err, ran)
		}
	})
	t.Run("complete", func(t *testing.T) {
		c, path := newGatedClock(), filepath.Join(t.TempDir(), "store.idem")
		db, err := Open(path, &Options{Now: c.now})
		if err != nil {
			t.Fatal(err)
		}
		rec := acquire(t, db, expired(t, db, c))
		at, gate := c.arm(1)
		done := make(chan error, 1)
		go func() {
			_, err := db.Complete(context.Background(), completeWith(rec.Ref, []byte("2")))
			done <- err
		}()
		<-at
		if _, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil {
			t.Fatal(err)
		}
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := db.Get(t.Context(), id("k")); err != nil {
			t.Errorf("Get of a completed key: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		for _, perCall := range []bool{true, false} {
			db := openAt(t, path, &Options{Now: c.now, PerCall: perCall})
			if _, err := db.Get(t.Context(), id("k")); err != nil {
				t.Errorf("reopened, per call %v: %v", perCall, err)
			}
		}
	})
	t.Run("short windows and a sweeper", func(t *testing.T) {
		var clock atomic.Int64
		clock.Store(time.Now().UnixNano())
		db := open(t, &Options{Now: func() time.Time { return time.Unix(0, clock.Load()) }})
		lost := 0
		for i := range 300 {
			key := fmt.Sprint("k", i)
			rec := acquire(t, db, reserving(key))
			if _, err := db.Complete(t.Context(), shortLived(rec.Ref)); err != nil {
				t.Fatal(err)
			}
			clock.Add(int64(5 * time.Second))
			r := reserving(key)
			r.TakeOver = rec.Fence
			swept := make(chan error, 1)
			go func() {
				_, err := db.Expire(context.Background(), backend.ExpireRequest{})
				swept <- err
			}()
			res, err := db.Transact(t.Context(), r, func(context.Context, *bbolt.Tx, backend.Reservation) (backend.Completion, error) {
				return backend.Completion{State: backend.Completed, ReplayFor: time.Second, KnownFor: time.Second}, nil
			})
			if serr := <-swept; err != nil || serr != nil {
				t.Fatal(err, serr)
			}
			if _, err := db.Get(t.Context(), id(key)); res.Outcome == backend.Acquired && err != nil {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("%d acknowledged commits were not to be seen", lost)
		}
	})
}

// A record that exists all the time is found all the time, also while a commit
// moves it from one place to another.
func TestGetDuringACommitFindsTheRecord(t *testing.T) {
	db := open(t, nil)
	missing := 0
	for i := range 200 {
		key := fmt.Sprint("k", i)
		rec := acquire(t, db, reserving(key))
		if _, err := db.Complete(t.Context(), backend.CompleteRequest{Ref: rec.Ref, State: backend.Uncertain}); err != nil {
			t.Fatal(err)
		}
		stop, counted := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					counted <- n
					return
				default:
				}
				if _, err := db.Get(context.Background(), id(key)); errors.Is(err, backend.ErrNotFound) {
					n++
				}
			}
		}()
		if _, err := db.Resolve(t.Context(), backend.ResolveRequest{ID: id(key), Fence: rec.Fence, Applied: true, ReplayFor: time.Hour, KnownFor: time.Hour}); err != nil {
			t.Fatal(err)
		}
		close(stop)
		if <-counted > 0 {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("in %d of 200 rounds Get did not find a record that was there", missing)
	}
}

// Work may look at its own key, and at others', from inside the transaction.
func TestGetInsideWorkDoesNotWait(t *testing.T) {
	db := open(t, nil)
	run(t, db, "other", nil)
	_, err := db.Transact(t.Context(), reserving("k"), func(ctx context.Context, _ *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
		if _, err := db.Get(ctx, id("k")); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Get of the own key inside its first transaction: %v", err)
		}
		if _, err := db.Get(ctx, id("other")); err != nil {
			t.Errorf("Get of another key: %v", err)
		}
		return completion("x"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What a caller takes back while the writer is kept waiting leaves nothing behind.
func TestWithdrawnMovesLeaveTheQueue(t *testing.T) {
	db := open(t, nil)
	tx, err := db.Bolt().Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc >> 20)
	}
	before := heap()
	for i := range 100 {
		rec := acquire(t, db, reserving(fmt.Sprint(i)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := db.Complete(ctx, completeWith(rec.Ref, make([]byte, 1<<20))); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	if grown := heap() - before; grown > 30 {
		t.Errorf("100 withdrawn completions of 1 MB keep %d MB", grown)
	}
	if n, _ := db.excl.writer.queued(); n > 1 {
		t.Errorf("%d of them are still queued", n)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

// The cause of a caller's context belongs to the caller. Taken for the store's
// answer, it says things about the key that nobody has looked up.
func TestCauseOfTheContextIsNoAnswer(t *testing.T) {
	db := openWithEffects(t, nil)
	s, err := idem.NewTx[*bbolt.Tx](db, nil)
	if err != nil {
		t.Fatal(err)
	}
	scope := idem.Scope{Operation: "o"}
	if _, err := idem.Execute(t.Context(), s.Store, scope, "k", idem.NoFingerprint(), func(context.Context) (int, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancelCause(t.Context())
	end(idem.ErrNotFound)
	if _, err := s.Get(ended, scope, "k"); err == nil || errors.Is(err, idem.ErrNotFound) {
		t.Errorf("Get of an existing record: %v", err)
	}
	if _, err := idem.Lookup[int](ended, s.Store, scope, "k"); err == nil || errors.Is(err, idem.ErrNotFound) {
		t.Errorf("Lookup of an existing record: %v", err)
	}
	for _, cause := range []error{idem.ErrOutcomeUnknown, idem.ErrCorruptRecord, idem.ErrInvalidKey} {
		tx, err := db.Bolt().Begin(true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := idem.ExecuteTx(ctx, s, scope, "new", idem.NoFingerprint(), func(context.Context, *bbolt.Tx) (int, error) { return 1, nil })
			done <- err
		}()
		time.Sleep(30 * time.Millisecond)
		cancel(cause)
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, cause) {
			t.Errorf("a call that waited for its turn: %v; its context ended with %v", err, cause)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

// The command line of whoever has the file may hold a key.
func TestLockErrorNamesTheProgramOnly(t *testing.T) {
	e := &LockError{Path: "p", PID: 1, Command: "/usr/bin/idem run --op o --key secret-key -- x"}
	if text := e.Error(); strings.Contains(text, "secret-key") || !strings.Contains(text, "process 1 (idem)") {
		t.Error(text)
	}
}

// The core knows what to advise about every error of this package.
func TestErrorKinds(t *testing.T) {
	for _, c := range []struct {
		err, kind error
		advice    idem.Advice
	}{
		{ErrDamaged, backend.ErrCorruptRecord, idem.AdviceAsk},
		{&FileError{Path: "p", Err: fmt.Errorf("%w: page 3", ErrDamaged)}, backend.ErrCorruptRecord, idem.AdviceAsk},
		{ErrClosed, backend.ErrInvalidRequest, idem.AdviceChange},
		{ErrReadOnly, backend.ErrInvalidRequest, idem.AdviceChange},
		{ErrPerCall, backend.ErrInvalidRequest, idem.AdviceChange},
		{ErrWrongTx, backend.ErrInvalidRequest, idem.AdviceChange},
	} {
		if !errors.Is(c.err, c.kind) || idem.Advise(c.err) != c.advice {
			t.Errorf("%v: is %v: %v, advice %v", c.err, c.kind, errors.Is(c.err, c.kind), idem.Advise(c.err))
		}
	}
	if errors.Is(ErrClosed, ErrReadOnly) || errors.Is(ErrDamaged, ErrNotStore) {
		t.Error("errors of this package are taken for one another")
	}
}
