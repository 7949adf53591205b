package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// manyRecords is the size of the tests that promise something about a million
// records; IDEM_BOLT_RECORDS=1000000 runs them in full.
func manyRecords() int {
	if n, err := strconv.Atoi(os.Getenv("IDEM_BOLT_RECORDS")); err == nil {
		return n
	}
	return 20_000
}

// bulk fills a store with records of 200-byte results, a day's window, as fast as
// the writer goes, and returns its path. The store is closed unless killed is set:
// then it is left as a crash leaves it.
func bulk(t testing.TB, path string, n int, killed bool) {
	t.Helper()
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	const workers = 512
	together(workers, func(w int) {
		for i := w; i < n; i += workers {
			if err := executeOnce(db, uint64(i)+1); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if killed {
		db.excl.closed.Store(true)
		db.excl.writer.stop()
		err = db.Bolt().Close()
	} else {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A stored record costs at most 64 bytes of heap in the process that keeps the
// store open, everything included.
func TestHeapPerRecord(t *testing.T) {
	n := manyRecords()
	path := filepath.Join(t.TempDir(), "store.idem")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	together(512, func(w int) {
		for i := w; i < n; i += 512 {
			if err := executeOnce(db, uint64(i)+1); err != nil {
				t.Error(err)
				return
			}
		}
	})
	grown := float64(heap()-before) / float64(n)
	size, _ := os.Stat(path)
	t.Logf("%d records: %.1f bytes of heap each while they are written; %.0f bytes of file", n, grown, float64(size.Size())/float64(n))
	if grown > 64 {
		t.Errorf("%.1f bytes of heap per record; at most 64 are allowed", grown)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = nil
	before = heap()
	if db, err = Open(path, nil); err != nil {
		t.Fatal(err)
	}
	grown = float64(heap()-before) / float64(n)
	t.Logf("%.1f bytes of heap each after opening", grown)
	if grown > 64 {
		t.Errorf("%.1f bytes of heap per record after opening; at most 64 are allowed", grown)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Keys that fail and are released leave no more behind than the last of them.
func TestHeapStaysFlatOverDistinctKeys(t *testing.T) {
	db := open(t, nil)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	ctx := context.Background()
	round := func(n, from int) {
		for i := range n {
			r := reserving(fmt.Sprint("key-", from+i))
			if _, err := db.Reserve(ctx, r); err != nil {
				t.Fatal(err)
			}
			if err := db.Release(ctx, r.Ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	const first, more = maxOpen + maxOpen/8, maxOpen
	round(first, 0)
	full := heap()
	round(more, first)
	if now := heap(); now > full+full/4 {
		t.Errorf("the heap grew from %d to %d bytes over %d keys that left nothing", full, now, more)
	}
	entries := 0
	for i := range db.excl.shards {
		entries += len(db.excl.shards[i].entries)
	}
	if entries > maxOpen {
		t.Errorf("%d entries are in memory; at most %d", entries, maxOpen)
	}
	// The latest are still there, with their fence.
	if rec, err := db.Get(ctx, id(fmt.Sprint("key-", first+more-1))); err != nil || rec.State != backend.Open {
		t.Errorf("the latest released key: %v, %v", rec.State, err)
	}
}

// Opening costs at most twice what bbolt itself needs to open the file and to walk
// over it once, after a clean end and after a crash.
func TestOpenCost(t *testing.T) {
	n := manyRecords()
	for _, killed := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "store.idem")
		bulk(t, path, n, killed)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var ours, bare []time.Duration
		for range 3 {
			start := time.Now()
			file, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
			if err != nil {
				t.Fatal(err)
			}
			rows := 0
			if err := file.View(func(tx *bbolt.Tx) error {
				r, err := newRows(tx)
				if err != nil {
					return err
				}
				for _, g := range r.generations() {
					c := r.bucket(g, recordPrefix).Cursor()
					for k, v := c.First(); k != nil; k, v = c.Next() {
						rows += min(len(v), 1)
					}
				}
				return nil
			}); err != nil || rows != n {
				t.Fatal(rows, err)
			}
			bare = append(bare, time.Since(start))
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}

			start = time.Now()
			db, err := Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			ours = append(ours, time.Since(start))
			db.excl.closed.Store(true)
			db.excl.writer.stop()
			if err := db.Bolt().Close(); err != nil {
				t.Fatal(err)
			}
			// As it was, and on disk: the next opener's sync is not to pay for it.
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if f, err := os.OpenFile(path, os.O_RDWR, 0); err != nil || errors.Join(f.Sync(), f.Close()) != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(ours)
		slices.Sort(bare)
		ratio := float64(ours[1]) / float64(bare[1])
		t.Logf("killed %v: %d records, ours %v, bare %v, ratio %.2f", killed, n, ours, bare, ratio)
		if ratio > 2 && n >= 1_000_000 {
			t.Errorf("killed %v: opening takes %.2f times what bbolt needs; at most 2", killed, ratio)
		}
	}
}

// A short-lived command pays for its own record and not for the size of the file.
func TestPerCallCostDoesNotGrowWithTheFile(t *testing.T) {
	cost := map[int]time.Duration{}
	for _, n := range []int{100, manyRecords()} {
		path := filepath.Join(t.TempDir(), "store.idem")
		bulk(t, path, n, false)
		best := time.Hour
		for range 40 {
			start := time.Now()
			db, err := Open(path, &Options{PerCall: true})
			if err != nil {
				t.Fatal(err)
			}
			if rec, err := db.Get(t.Context(), benchID(7)); err != nil || len(rec.Body) != 200 {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		cost[n] = best
	}
	t.Logf("open, read one key, close: %v", cost)
	if a, b := cost[100], cost[manyRecords()]; b > 3*a {
		t.Errorf("with %d records it takes %v, with 100 %v; at most three times that", manyRecords(), b, a)
	}
}

// A file that a crash left unindexed is put in order by the first command.
func TestPerCallAfterCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	bulk(t, path, 2*maxScan, true)
	db := openAt(t, path, &Options{PerCall: true})
	for i := 1; i < 2*maxScan; i += 501 {
		if rec, err := db.Get(t.Context(), benchID(uint64(i))); err != nil || len(rec.Body) != 200 {
			t.Fatalf("record %d after a crash: %v", i, err)
		}
	}
	if _, err := db.Get(t.Context(), id("never")); !errors.Is(err, backend.ErrNotFound) {
		t.Error(err)
	}
	p := db.engine.(*perCall)
	if err := p.read(t.Context(), func(r *rows) error {
		for _, g := range r.generations() {
			if n := r.unindexed(g); n != 0 {
				t.Errorf("%d records are still not indexed", n)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	reader := openAt(t, path, &Options{ReadOnly: true})
	if rec, err := reader.Get(t.Context(), benchID(3)); err != nil || len(rec.Body) != 200 {
		t.Errorf("a reader: %v", err)
	}
}
