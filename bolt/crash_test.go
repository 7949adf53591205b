package bolt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// childCrash executes keys until it is killed and logs each one that was
// acknowledged, synced, outside of the store.
func childCrash() error {
	log, err := os.OpenFile(os.Getenv("IDEM_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	acknowledged := func(key string, rec backend.Record) error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := fmt.Fprintln(log, key, rec.Fence, string(rec.Body)); err != nil {
			return err
		}
		return log.Sync()
	}
	perCall := os.Getenv("IDEM_PERCALL") != ""
	db, err := Open(os.Getenv("IDEM_FILE"), &Options{PerCall: perCall})
	if err != nil {
		return err
	}
	if !perCall {
		if err := db.Bolt().Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists([]byte(effects))
			return err
		}); err != nil {
			return err
		}
	}
	fmt.Println("open")
	failed := make(chan error, 1)
	together(8, func(worker int) {
		ctx := context.Background()
		for i := 0; ; i++ {
			key := fmt.Sprintf("%s-%d-%d", os.Getenv("IDEM_ROUND"), worker, i)
			r := reserving(key)
			var rec backend.Record
			var err error
			switch {
			case i%3 == 1 && !perCall:
				key = "tx-" + key
				r.ID = id(key)
				var res backend.Reservation
				res, err = db.Transact(ctx, r, func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
					return completion("body of " + key), effect(tx, key)
				})
				rec = res.Record
			default:
				if i%3 == 2 {
					key = "hold-" + key
					r.ID, r.OnAbandoned = id(key), backend.Hold
				}
				if _, err = db.Reserve(ctx, r); err == nil {
					if i%3 == 2 {
						err = acknowledged("reserved-"+key, backend.Record{})
					}
					if err == nil {
						rec, err = db.Complete(ctx, completeWith(r.Ref, []byte("body of "+key)))
					}
				}
			}
			if err == nil {
				err = acknowledged(key, rec)
			}
			if err != nil {
				select {
				case failed <- err:
				default:
				}
				return
			}
		}
	})
	return <-failed
}

// A process that is killed at any moment loses nothing that it acknowledged, and
// leaves a file that opens.
func TestCaseC48_CrashLosesNothingAcknowledged(t *testing.T) {
	rounds := 6
	if n, err := strconv.Atoi(os.Getenv("IDEM_CRASH_ROUNDS")); err == nil {
		rounds = n
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	path, logPath := filepath.Join(dir, "store.idem"), filepath.Join(dir, "acknowledged")
	highest := uint64(0)
	for round := range rounds {
		env := []string{"IDEM_FILE=" + path, "IDEM_LOG=" + logPath, fmt.Sprint("IDEM_ROUND=", round)}
		perCall := round%3 == 2
		if perCall {
			env = append(env, "IDEM_PERCALL=1")
		}
		cmd := child(t, "crash", env...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
			_ = cmd.Wait()
			t.Fatalf("seed %d, round %d: the child did not start: %s", seed, round, stderrOf(cmd))
		}
		time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := stderrOf(cmd); text != "" {
			t.Fatalf("seed %d, round %d: the child failed: %s", seed, round, text)
		}

		// By turns the next opener is a command and a service: both must make do
		// with what the crash has left.
		db := openAt(t, path, &Options{PerCall: round%2 == 1})
		verifyAcknowledged(t, db, logPath, &highest)
		if t.Failed() {
			t.Fatalf("seed %d, round %d", seed, round)
		}
		if rec := acquire(t, db, reserving(fmt.Sprint("after-", round))); rec.Fence <= highest {
			t.Errorf("seed %d, round %d: a fence of %d after one of %d", seed, round, rec.Fence, highest)
		}
		if err := db.Check(t.Context()); err != nil {
			t.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
		if db.Bolt() != nil {
			verifyEffects(t, db)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func verifyAcknowledged(t *testing.T, db *DB, logPath string, highest *uint64) {
	t.Helper()
	log, err := os.ReadFile(logPath)
	if errors.Is(err, os.ErrNotExist) {
		return // killed before the first
	}
	if err != nil {
		t.Fatal(err)
	}
	records := all(t, db, backend.Filter{})
	n := 0
	for line := range strings.Lines(string(log)) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		key, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		fence, body, _ := strings.Cut(rest, " ")
		number, _ := strconv.ParseUint(fence, 10, 64)
		*highest = max(*highest, number)
		n++
		if reserved, ok := strings.CutPrefix(key, "reserved-"); ok {
			if rec := records[reserved]; rec.State != backend.InFlight && rec.State != backend.Completed {
				t.Errorf("a reservation under Hold of %s was acknowledged and is %v", reserved, rec.State)
			}
			continue
		}
		rec := records[key]
		if rec.State != backend.Completed || string(rec.Body) != body || rec.Fence != number {
			t.Errorf("%s was acknowledged and is %v with %q", key, rec.State, rec.Body)
		}
		if n%50 == 0 { // the listing and the lookup agree
			if got := replay(t, db, key); string(got.Body) != body {
				t.Errorf("%s replays %q", key, got.Body)
			}
		}
	}
	t.Logf("%d acknowledgements stand", n)
}

// verifyEffects: effect and record are both there or both not.
func verifyEffects(t *testing.T, db *DB) {
	t.Helper()
	records := all(t, db, backend.Filter{})
	found := countEffects(t, db)
	for name, n := range found {
		if n != 1 || records[name].State != backend.Completed {
			t.Errorf("%s has %d effects and a record that is %v", name, n, records[name].State)
		}
	}
	for key, rec := range records {
		if strings.HasPrefix(key, "tx-") && found[key] != 1 {
			t.Errorf("%s is %v and has %d effects", key, rec.State, found[key])
		}
	}
}

// A write that fails leaves open what the disk has: everybody in it is told so,
// and the handle answers nothing more until the file is opened again.
func TestPoisonedAfterFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, "before", []byte("stands"))
	var reqs []backend.ReserveRequest
	for i := range 8 {
		reqs = append(reqs, reserving(fmt.Sprint("key-", i)))
		acquire(t, db, reqs[i])
	}
	_ = db.excl.file.Close() // as if the disk had gone
	together(len(reqs), func(i int) {
		_, err := db.Complete(context.Background(), completeWith(reqs[i].Ref, nil))
		if !errors.Is(err, backend.ErrOutcomeUnknown) && !errors.Is(err, ErrPoisoned) {
			t.Errorf("a member of a failed commit was told %v", err)
		}
	})
	_, unknown := db.Complete(t.Context(), completeWith(reqs[0].Ref, nil))
	for name, err := range map[string]error{
		"Complete": unknown,
		"Reserve":  func() error { _, err := db.Reserve(t.Context(), reserving("new")); return err }(),
		"replay":   func() error { _, err := db.Reserve(t.Context(), reserving("before")); return err }(),
		"Get":      func() error { _, err := db.Get(t.Context(), id("before")); return err }(),
		"Renew":    db.Renew(t.Context(), reqs[0].Ref, time.Hour),
		"Check":    db.Check(t.Context()),
	} {
		if !errors.Is(err, ErrPoisoned) {
			t.Errorf("%s on a poisoned handle: %v", name, err)
		} else if !strings.Contains(err.Error(), "open the file again") {
			t.Errorf("%q does not say what to do", err)
		}
	}
	_ = db.Close()
	again := openAt(t, path, nil)
	if err := again.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if got := replay(t, again, "before"); string(got.Body) != "stands" {
		t.Errorf("what was acknowledged is %q", got.Body)
	}
	run(t, again, "after", nil)
}

// A store that may not grow refuses, stores nothing, goes on answering, and works
// again once it may.
func TestCaseC48_FullStoreHeals(t *testing.T) {
	db := open(t, &Options{MaxSize: 4 << 20})
	stored := fillUp(t, db)
	db.Bolt().MaxSize = 64 << 20
	afterRoom(t, db, stored)
}

// fillUp executes until the store refuses, and returns how many were stored.
func fillUp(t testing.TB, db *DB) int {
	t.Helper()
	for i := range 10_000 {
		r := reserving(fmt.Sprint("fill-", i))
		acquire(t, db, r)
		_, err := db.Complete(t.Context(), completeWith(r.Ref, make([]byte, 8<<10)))
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrFull) || errors.Is(err, backend.ErrOutcomeUnknown) {
			t.Fatalf("no room for record %d: %v; want ErrFull, and nothing unknown about it", i, err)
		}
		if rec, err := db.Get(t.Context(), r.ID); err != nil || rec.State != backend.InFlight {
			t.Errorf("the attempt that could not be stored is %v, %v; want in flight still", rec.State, err)
		}
		if i < 10 {
			t.Fatalf("only %d records fit", i)
		}
		return i
	}
	t.Fatal("the store never filled up")
	return 0
}

func afterRoom(t testing.TB, db *DB, stored int) {
	t.Helper()
	for i := range stored {
		if got := replay(t, db, fmt.Sprint("fill-", i)); len(got.Body) != 8<<10 {
			t.Fatalf("record %d has %d bytes", i, len(got.Body))
		}
	}
	run(t, db, "after", make([]byte, 8<<10))
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A durable reservation, a held one and one that was in flight in memory when the
// store was closed are there for the next opener, lease and all.
func TestReopenKeepsAttempts(t *testing.T) {
	clock := newFakeClock()
	path := filepath.Join(t.TempDir(), "store.idem")
	db := openAt(t, path, &Options{Now: clock.Now})
	durable, hold, memory, open := reserving("durable"), reserving("hold"), reserving("memory"), reserving("open")
	durable.Durable, hold.OnAbandoned = true, backend.Hold
	open.OnAbandoned = backend.Hold
	for _, r := range []backend.ReserveRequest{durable, hold, memory, open} {
		acquire(t, db, r)
	}
	if err := db.Release(t.Context(), open.Ref); err != nil {
		t.Fatal(err)
	}
	if err := db.Renew(t.Context(), memory.Ref, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := db.Renew(t.Context(), durable.Ref, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, perCall := range []bool{true, false} {
		db = openAt(t, path, &Options{Now: clock.Now, PerCall: perCall})
		for _, r := range []backend.ReserveRequest{durable, hold, memory} {
			rec, err := db.Get(t.Context(), r.ID)
			if err != nil || rec.State != backend.InFlight || rec.Owner != r.Owner {
				t.Errorf("%s after reopening: %v, %v; want in flight", r.ID.Key, rec.State, err)
			}
			if want := clock.Now().Add(time.Hour); r.OnAbandoned != backend.Hold && !rec.LeaseUntil.Equal(want) {
				t.Errorf("%s has a lease until %v; want the renewed %v", r.ID.Key, rec.LeaseUntil, want)
			}
			if res, err := db.Reserve(t.Context(), reserving(r.ID.Key)); err != nil || res.Outcome != backend.Existing {
				t.Errorf("%s was given out during its lease: %v, %v", r.ID.Key, res.Outcome, err)
			}
		}
		if rec, err := db.Get(t.Context(), open.ID); err != nil || rec.State != backend.Open {
			t.Errorf("the released record after reopening: %v, %v", rec.State, err)
		}
	}
	// The owners are still alive and finish through the new handle.
	if err := db.Renew(t.Context(), hold.Ref, 2*time.Hour); err != nil {
		t.Errorf("Renew through a new handle: %v", err)
	}
	for _, r := range []backend.ReserveRequest{durable, hold, memory} {
		if _, err := db.Complete(t.Context(), completeWith(r.Ref, []byte("done"))); err != nil {
			t.Errorf("%s: Complete through a new handle: %v", r.ID.Key, err)
		}
	}
	if n := rowsOnDisk(t, db.Bolt()); n != 4 {
		t.Errorf("%d rows on disk; want 4", n)
	}
}

// Compaction gives free pages back, keeps everything, and the store works on
// through it.
func TestCompact(t *testing.T) {
	clock := newFakeClock()
	path := filepath.Join(t.TempDir(), "store.idem")
	db := openAt(t, path, &Options{Now: clock.Now})
	together(32, func(w int) {
		for i := w; i < 1500; i += 32 {
			r := reserving(fmt.Sprint("short-", i))
			acquire(t, db, r)
			c := completeWith(r.Ref, make([]byte, 4<<10))
			c.ReplayFor, c.KnownFor = time.Minute, time.Minute
			if _, err := db.Complete(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	})
	run(t, db, "long", []byte("kept"))
	flight := reserving("in-flight")
	acquire(t, db, flight)
	clock.Advance(10 * time.Minute)
	if done, err := db.Expire(t.Context(), backend.ExpireRequest{}); err != nil || done.Removed != 1500 {
		t.Fatalf("Expire: %+v, %v", done, err)
	}
	before, _ := os.Stat(path)
	stop, stopped := make(chan struct{}), make(chan struct{})
	writes := 0
	go func() {
		defer close(stopped)
		for ; ; writes++ {
			select {
			case <-stop:
				return
			default:
				run(t, db, fmt.Sprint("beside-", writes), nil)
			}
		}
	}()
	for range 3 {
		if err := db.Compact(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
	after, _ := os.Stat(path)
	if after.Size() > before.Size()/2 {
		t.Errorf("the file had %d bytes and has %d", before.Size(), after.Size())
	}
	if got := replay(t, db, "long"); string(got.Body) != "kept" {
		t.Errorf("after compaction: %q", got.Body)
	}
	if _, err := db.Complete(t.Context(), completeWith(flight.Ref, nil)); err != nil {
		t.Errorf("completing what was in flight: %v", err)
	}
	if db.Bolt().Path() != path {
		t.Errorf("the file calls itself %s", db.Bolt().Path())
	}
	if _, err := Open(path, &Options{OpenTimeout: 20 * time.Millisecond}); !errors.Is(err, ErrLocked) {
		t.Errorf("the new file is not locked: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	command := openAt(t, path, &Options{PerCall: true, Now: clock.Now})
	if err := command.Compact(t.Context()); err != nil {
		t.Error(err)
	}
	if found := all(t, command, backend.Filter{}); len(found) != writes+2 {
		t.Errorf("%d records; want %d", len(found), writes+2)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}
