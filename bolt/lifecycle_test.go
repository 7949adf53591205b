package bolt

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// haltClock is a clock that stops whoever reads it for the n-th time after arm.
type haltClock struct {
	mu      sync.Mutex
	t       time.Time
	n       int
	at      chan struct{}
	release chan struct{}
}

func newHaltClock() *haltClock { return &haltClock{t: time.Now()} }

func (h *haltClock) now() time.Time {
	h.mu.Lock()
	t := h.t
	var at, release chan struct{}
	if h.n > 0 {
		if h.n--; h.n == 0 {
			at, release = h.at, h.release
		}
	}
	h.mu.Unlock()
	if at != nil {
		close(at)
		<-release
	}
	return t
}

// arm makes the n-th reading from now on wait. at is closed when it does.
func (h *haltClock) arm(n int) (at <-chan struct{}, release chan<- struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n, h.at, h.release = n, make(chan struct{}), make(chan struct{})
	return h.at, h.release
}

// beside closes the store while move stands at its reading of the clock, and lets
// move end afterwards.
func beside(t *testing.T, h *haltClock, db *DB, move func() error) error {
	t.Helper()
	at, release := h.arm(1)
	done := make(chan error, 1)
	go func() { done <- move() }()
	<-at
	if err := db.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	close(release)
	return <-done
}

func TestR01_ReserveBesideCloseGrantsNothing(t *testing.T) {
	h := newHaltClock()
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, &Options{Now: h.now})
	if err != nil {
		t.Fatal(err)
	}
	var first backend.Reservation
	err = beside(t, h, db, func() (err error) {
		first, err = db.Reserve(t.Context(), reserving("k"))
		return err
	})
	if !errors.Is(err, ErrClosed) {
		t.Errorf("a reserve that Close has overtaken: %v, %v; want ErrClosed", first.Outcome, err)
	}
	again := openAt(t, path, &Options{Now: h.now})
	second := acquire(t, again, reserving("k"))
	if first.Outcome == backend.Acquired && second.Fence <= first.Record.Fence {
		t.Errorf("fence %d was given twice (%d)", second.Fence, first.Record.Fence)
	}
}

func TestR03_MovesInMemoryBesideCloseAnswerClosed(t *testing.T) {
	for name, move := range map[string]func(*DB, backend.Record) error{
		"renew":   func(db *DB, rec backend.Record) error { return db.Renew(t.Context(), rec.Ref, time.Hour) },
		"release": func(db *DB, rec backend.Record) error { return db.Release(t.Context(), rec.Ref) },
		"forget": func(db *DB, rec backend.Record) error {
			return db.Forget(t.Context(), backend.ForgetRequest{ID: rec.ID, Fence: rec.Fence, Force: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHaltClock()
			path := filepath.Join(t.TempDir(), "store.idem")
			db, err := Open(path, &Options{Now: h.now})
			if err != nil {
				t.Fatal(err)
			}
			rec := acquire(t, db, reserving("k"))
			at, release := h.arm(1)
			moved := make(chan error, 1)
			go func() { moved <- move(db, rec) }()
			<-at
			closed := make(chan error, 1)
			go func() { closed <- db.Close() }()
			select {
			case err := <-closed: // Close has overtaken it: the file has the attempt
				if err != nil {
					t.Errorf("Close: %v", err)
				}
				close(release)
				if err := <-moved; !errors.Is(err, ErrClosed) {
					t.Errorf("%v; want ErrClosed", err)
				}
				rec = replayAt(t, path, h, "k")
				if rec.State != backend.InFlight {
					t.Errorf("the file has %v; the move that failed has changed it", rec.State)
				}
			case <-time.After(500 * time.Millisecond): // Close waits for it: it counts
				close(release)
				if err := <-moved; err != nil {
					t.Errorf("Close waited for it, and it failed: %v", err)
				}
				if err := <-closed; err != nil {
					t.Errorf("Close: %v", err)
				}
				got := replayAt(t, path, h, "k")
				if name == "renew" && !got.LeaseUntil.After(rec.LeaseUntil) {
					t.Error("an acknowledged renewal is not in the file")
				}
			}
		})
	}
}

// replayAt opens the file and returns the record of a key.
func replayAt(t *testing.T, path string, h *haltClock, key string) backend.Record {
	t.Helper()
	rec, err := openAt(t, path, &Options{Now: h.now}).Get(t.Context(), id(key))
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	return rec
}

// slow occupies the store with work in a transaction until end is called.
func slow(t *testing.T, db *DB) (end func()) {
	t.Helper()
	in, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_, err := db.Transact(context.Background(), reserving("slow"), func(context.Context, *bbolt.Tx, backend.Reservation) (backend.Completion, error) {
			close(in)
			<-goOn
			return completion("slow"), nil
		})
		if err != nil {
			t.Errorf("the slow work: %v", err)
		}
	}()
	<-in
	end = sync.OnceFunc(func() {
		close(goOn)
		<-over
	})
	t.Cleanup(end)
	return end
}

func TestR09_CloseFinishesWhatIsQueued(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := acquire(t, db, reserving("k"))
	end := slow(t, db)
	done, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := db.Complete(context.Background(), completeWith(rec.Ref, []byte("result")))
		done <- err
	}()
	for n := 0; n == 0; n, _ = db.excl.writer.queued() {
		time.Sleep(time.Millisecond)
	}
	go func() { closed <- db.Close() }()
	for !db.excl.closed.Load() {
		time.Sleep(time.Millisecond)
	}
	end()
	if err := <-done; err != nil {
		t.Errorf("a completion that was queued before Close: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := replay(t, openAt(t, path, nil), "k"); string(got.Body) != "result" {
		t.Errorf("the file has %v %q; want the completion", got.State, got.Body)
	}
}

// Two stores on one database would each take itself for the only owner.
func TestR01_SecondStoreOnOneDatabaseIsRefused(t *testing.T) {
	shared, err := bbolt.Open(filepath.Join(t.TempDir(), "store.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	first, err := New(shared, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(on *bbolt.DB) {
		t.Helper()
		second, err := New(on, nil)
		if err == nil {
			_ = second.Close()
		}
		var named *FileError
		if !errors.Is(err, ErrLocked) || !errors.As(err, &named) || named.Path != on.Path() {
			t.Errorf("New on a database that has a store: %v; want a FileError that matches ErrLocked", err)
		}
	}
	refused(shared)
	run(t, first, "k", []byte("1"))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := New(shared, nil)
	if err != nil {
		t.Fatalf("New after Close of the first: %v", err)
	}
	replay(t, second, "k")
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	owned := open(t, nil)
	refused(owned.Bolt())
	before := owned.Bolt()
	if err := owned.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(owned.Bolt())
	if stores.has(before) || !stores.has(owned.Bolt()) {
		t.Error("compaction did not put the new database in the place of the old one")
	}
}

func TestR25_MustExistRefusesAFreshStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	for _, o := range []*Options{{MustExist: true}, {MustExist: true, PerCall: true}} {
		_, err := Open(path, o)
		var named *FileError
		if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &named) || named.Path != path {
			t.Errorf("%+v: %v; want a FileError that matches fs.ErrNotExist", *o, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Fatalf("%+v created the file", *o)
		}
	}
	run(t, openAt(t, path, nil), "k", nil)
}

// The file goes while a per-call handle is kept: what it has known is not taken
// for nothing.
func TestR25_MustExistHoldsForEveryMove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	first, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, first, "k", nil)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := Open(path, &Options{MustExist: true, PerCall: true})
	if err != nil {
		t.Fatal(err)
	}
	replay(t, db, "k")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Get(t.Context(), id("k")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get: %v; want fs.ErrNotExist", err)
	}
	if res, err := db.Reserve(t.Context(), reserving("k")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reserve: %v, %v; want fs.ErrNotExist", res.Outcome, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file was created")
	}
}

func TestR25_MustExistInACallersDatabase(t *testing.T) {
	shared, err := bbolt.Open(filepath.Join(t.TempDir(), "store.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	if _, err := New(shared, &Options{MustExist: true}); !errors.Is(err, ErrNotStore) {
		t.Errorf("New without the bucket: %v; want ErrNotStore", err)
	}
	for _, o := range []*Options{nil, {MustExist: true}} {
		db, err := New(shared, o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A relative name means the file that it meant at Open.
func TestR01_RelativePathOutlivesChdir(t *testing.T) {
	for name, o := range map[string]*Options{"exclusive": nil, "per call": {PerCall: true}} {
		t.Run(name, func(t *testing.T) {
			a, b := t.TempDir(), t.TempDir()
			t.Chdir(a)
			db, err := Open("store.idem", o)
			if err != nil {
				t.Fatal(err)
			}
			run(t, db, "k1", []byte("1"))
			t.Chdir(b)
			replay(t, db, "k1")
			if err := db.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, db, "k2", []byte("2"))
			if _, err := db.Stats(t.Context()); err != nil {
				t.Errorf("Stats: %v", err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(b, "store.idem")); err == nil {
				t.Error("there is a second file in the new folder")
			}
			again := openAt(t, filepath.Join(a, "store.idem"), nil)
			replay(t, again, "k1")
			replay(t, again, "k2")
		})
	}
}

// Open and Path name the file as the caller does; what comes later names it so
// that it is found from anywhere.
func TestOpenNamesTheFileAsItWasGiven(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("notes.txt", []byte("not a store, and of some length"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{nil, {PerCall: true}} {
		_, err := Open("notes.txt", o)
		var named *FileError
		if !errors.As(err, &named) || named.Path != "notes.txt" || !errors.Is(err, ErrNotStore) {
			t.Errorf("%+v: %v; want a FileError about notes.txt that matches ErrNotStore", o, err)
		}
	}
	db := openAt(t, "store.idem", nil)
	if db.Path() != "store.idem" {
		t.Errorf("Path: %q; want it as it was given", db.Path())
	}
	var locked *LockError
	if _, err := Open("store.idem", &Options{OpenTimeout: time.Millisecond}); !errors.As(err, &locked) || locked.Path != "store.idem" {
		t.Errorf("%v; want a LockError about store.idem", err)
	}
	command, err := Open("later.idem", &Options{PerCall: true})
	if err != nil {
		t.Fatal(err)
	}
	run(t, command, "k", nil)
	if err := os.WriteFile("later.idem", []byte("not a store, and of some length"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	var named *FileError
	if _, err := command.Get(t.Context(), id("k")); !errors.As(err, &named) || !filepath.IsAbs(named.Path) {
		t.Errorf("%v; want a FileError with an absolute path", err)
	}
}

// A link to nothing may be a link to a disk that is not mounted.
func TestR25_DanglingLinkIsRefused(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), link); err != nil {
		t.Skip(err)
	}
	for _, o := range []*Options{nil, {PerCall: true}, {ReadOnly: true}} {
		_, err := Open(link, o)
		var named *FileError
		if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &named) {
			t.Errorf("%+v: %v; want a FileError that matches fs.ErrNotExist", o, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("the folder has %v; want the link alone", left)
	}
}

// The same in per-call mode, while another process has the file.
func TestR09_CompactEndsWithItsContextWhileTheFileIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	command := openAt(t, path, &Options{PerCall: true})
	run(t, command, "k", nil)
	service, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := command.Compact(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %v; want the end of the context", err, time.Since(began))
	}
	if err := service.Close(); err != nil {
		t.Fatal(err)
	}
}

// A compaction that has given up still waits for bbolt's lock. Close gets past it.
func TestR09_CloseAfterACompactionThatGaveUp(t *testing.T) {
	givenUp := func(t *testing.T, db *DB) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := db.Compact(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Compact: %v; want the end of its context", err)
		}
	}
	closes := func(t *testing.T, db *DB, meanwhile func()) {
		t.Helper()
		closed := make(chan error, 1)
		go func() { closed <- db.Close() }()
		meanwhile()
		select {
		case err := <-closed:
			if err != nil {
				t.Errorf("Close: %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("Close does not return")
		}
	}
	t.Run("work", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.idem")
		db, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, db, reserving("live"))
		end := slow(t, db)
		givenUp(t, db)
		closes(t, db, end)
		again := openAt(t, path, nil)
		if got := replay(t, again, "live"); got.State != backend.InFlight {
			t.Errorf("the live attempt is %v", got.State)
		}
		replay(t, again, "slow")
	})
	// After a panic inside bbolt nobody releases its lock any more.
	t.Run("wedged", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.idem")
		db, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.Bolt().Begin(true)
		if err != nil {
			t.Fatal(err)
		}
		givenUp(t, db)
		db.excl.wedged.Store(true)
		db.excl.poison()
		closes(t, db, func() {})
		_ = tx.Rollback()
		openAt(t, path, nil)
	})
}

// A read that Close has overtaken says so, in the words of this package.
func TestR09_ReadBesideCloseAnswersClosed(t *testing.T) {
	db := open(t, nil)
	run(t, db, "k", nil)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.excl.peek(id("k"), hashOf(id("k"))); !errors.Is(err, ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
}

// A check that shares a transaction with writes does not take what is not
// committed yet, and so not in memory, for damage.
func TestCheckBesideWritesFindsNothing(t *testing.T) {
	db := open(t, nil)
	rec := acquire(t, db, reserving("k"))
	end := slow(t, db)
	queued := func(want int, fn func() error) chan error {
		done := make(chan error, 1)
		go func() { done <- fn() }()
		for n := 0; n < want; n, _ = db.excl.writer.queued() {
			time.Sleep(time.Millisecond)
		}
		return done
	}
	completed := queued(1, func() error {
		_, err := db.Complete(context.Background(), completeWith(rec.Ref, []byte("result")))
		return err
	})
	checked := queued(2, func() error { return db.Check(context.Background()) })
	end()
	if err := <-completed; err != nil {
		t.Errorf("Complete: %v", err)
	}
	if err := <-checked; err != nil {
		t.Errorf("Check of a sound store: %v", err)
	}
}

func TestR09_ChecksEndWithTheirContextWhileWorkRuns(t *testing.T) {
	db := open(t, nil)
	end := slow(t, db)
	for name, f := range map[string]func(context.Context) error{
		"Check":   db.Check,
		"Compact": db.Compact,
	} {
		for range 2 { // a second one finds what the first has left behind
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			done := make(chan error, 1)
			go func() { done <- f(ctx) }()
			select {
			case err := <-done:
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) {
					t.Errorf("%s: %v; want the end of its context", name, err)
				}
			case <-time.After(2 * time.Second):
				t.Errorf("%s does not return when its context ends", name)
			}
			cancel()
		}
	}
	end()
	if err := db.Compact(t.Context()); err != nil {
		t.Errorf("Compact afterwards: %v", err)
	}
	run(t, db, "k", nil)
}
