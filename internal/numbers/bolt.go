package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/bolt"
)

// result is a stored result of about 200 bytes.
type result struct {
	ID, Status, Text string
	Cents            int
	Tags             []string
}

func someResult() result {
	return result{ID: "6f1c3f6e-3f0b-4b3a-9b1e-0a6f5a3f2b11", Status: "accepted", Text: string(bytes.Repeat([]byte("x"), 70)), Cents: 129900, Tags: []string{"card", "eu", "retry"}}
}

var scope = idem.Scope{Operation: "payments/create"}

func measureBolt(r *report) error {
	return r.all([]part{
		{"execute", boltExecute}, {"replay", boltReplay}, {"heap", boltHeap}, {"open", boltOpen},
		{"percall", boltPerCall}, {"flat", boltFlat}, {"core", coreOverMemory},
	})
}

// openBolt opens a store file in exclusive mode.
func (r *report) openBolt(name string) (*bolt.DB, *idem.Store, error) {
	file, err := bolt.Open(filepath.Join(r.dir, name), nil)
	if err != nil {
		return nil, nil, err
	}
	store, err := idem.New(file, nil)
	return file, store, err
}

// executeNew runs an empty fn under a new random key.
func executeNew(store *idem.Store) func() error {
	hash := idem.FingerprintBytes([]byte("request"))
	ctx, fn := context.Background(), func(context.Context) (struct{}, error) { return struct{}{}, nil }
	return func() error {
		res, err := idem.Execute(ctx, store, scope, idem.Key(uuid.NewString()), hash, fn)
		if err == nil && res.Replayed {
			return fmt.Errorf("a new key was replayed")
		}
		return err
	}
}

// fill stores n records through many callers at once.
func fill(n int, op func() error) error {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range 512 {
		wg.Go(func() {
			for left.Add(-1) >= 0 && failed.Load() == nil {
				if err := op(); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// boltExecute: new keys with an empty fn under Rerun, against three hand-written
// ways, with 200,000 records stored, random keys, and the sweeping going on.
func boltExecute(r *report) error {
	n := r.size(200_000)
	db, _, err := floorDB(r.dir, "floor.db", n)
	if err != nil {
		return err
	}
	defer db.Close()
	file, store, err := r.openBolt("execute.db")
	if err != nil {
		return err
	}
	defer file.Close()
	op := executeNew(store)
	if err := fill(n, op); err != nil {
		return err
	}
	stop := sweeping(file)
	defer stop()
	for _, at := range []struct {
		callers              int
		batch, tuned, update float64
	}{{1, 30, 0, 1.5}, {8, 15, 0, 6}, {64, 10, 4, 25}, {256, 10, 0, 40}} {
		callers := fmt.Sprint(at.callers)
		rates, ratios, err := r.compare(at.callers, []variant{
			{name: "idem", op: op},
			viaBatch("batch", db, 10*time.Millisecond),
			viaBatch("batch 1ms", db, time.Millisecond),
			viaUpdate("update", db),
		})
		if err != nil {
			return err
		}
		r.info("bolt: Execute of new keys", callers, rates[0], "/s")
		r.atLeast("bolt: Execute / two db.Batch", callers, ratios[1], at.batch, "x")
		if at.tuned > 0 {
			r.atLeast("bolt: Execute / two db.Batch of 1 ms", callers, ratios[2], at.tuned, "x")
		}
		r.atLeast("bolt: Execute / two db.Update", callers, ratios[3], at.update, "x")
	}
	return nil
}

// sweeping removes what is due every 100 ms, as a service would have it.
func sweeping(b backend.Backend) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.Expire(ctx, backend.ExpireRequest{})
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// boltReplay: a replay against a bare View, Get and copy with the same decoding.
func boltReplay(r *report) error {
	const keys = 1000
	db, _, err := floorDB(r.dir, "floor-replay.db", 1)
	if err != nil {
		return err
	}
	defer db.Close()
	body, err := json.Marshal(someResult())
	if err != nil {
		return err
	}
	file, store, err := r.openBolt("replay.db")
	if err != nil {
		return err
	}
	defer file.Close()
	ctx, hash := context.Background(), idem.FingerprintBytes([]byte("request"))
	name := func(i int64) string { return fmt.Sprintf("key-%d", i%keys) }
	for i := range int64(keys) {
		key := name(i)
		if err := db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("keys")).Put([]byte(key), body)
		}); err != nil {
			return err
		}
		if _, err := idem.Execute(ctx, store, scope, idem.Key(key), hash, func(context.Context) (result, error) { return someResult(), nil }); err != nil {
			return err
		}
	}
	for _, callers := range []int{1, 8} {
		var i, j atomic.Int64
		_, ratios, err := r.compare(callers, []variant{
			{name: "floor", op: func() error {
				var data []byte
				if err := db.View(func(tx *bbolt.Tx) error {
					data = bytes.Clone(tx.Bucket([]byte("keys")).Get([]byte(name(i.Add(1)))))
					return nil
				}); err != nil {
					return err
				}
				var v result
				return json.Unmarshal(data, &v)
			}},
			{name: "replay", op: func() error {
				res, err := idem.Execute(ctx, store, scope, idem.Key(name(j.Add(1))), hash, func(context.Context) (result, error) { return result{}, fmt.Errorf("ran again") })
				if err == nil && (!res.Replayed || res.Value.Cents == 0) {
					return fmt.Errorf("not a replay")
				}
				return err
			}},
		})
		if err != nil {
			return err
		}
		r.atMost("bolt: replay / bare View+Get+copy+decode, time", fmt.Sprint(callers), ratios[1], 1.3, "x")
	}
	return nil
}

// boltHeap: what one stored record costs in memory.
func boltHeap(r *report) error {
	n := r.size(1_000_000)
	file, store, err := r.openBolt("heap.db")
	if err != nil {
		return err
	}
	defer file.Close()
	before := heap()
	if err := fill(n, executeNew(store)); err != nil {
		return err
	}
	r.atMost("bolt: heap per stored record", "-", (heap()-before)/float64(n), 64, " B")
	return nil
}

// boltOpen: opening a file of a million records, closed cleanly before.
func boltOpen(r *report) error {
	path := filepath.Join(r.dir, "heap.db") // filled by boltHeap
	floor, err := r.timed(func() error {
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			return err
		}
		defer db.Close()
		return db.View(walk)
	})
	if err != nil {
		return err
	}
	took, err := r.timed(func() error {
		file, err := bolt.Open(path, nil)
		if err != nil {
			return err
		}
		return file.Close()
	})
	if err != nil {
		return err
	}
	r.info("bolt: bare open and cursor walk", "-", floor, " s")
	r.atMost("bolt: open and close of 1,000,000 records / bare open and walk", "-", took/floor, 2, "x")
	return nil
}

// walk visits every record below every bucket.
func walk(tx *bbolt.Tx) error {
	var down func(b *bbolt.Bucket) error
	down = func(b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return down(b.Bucket(k))
			}
			return nil
		})
	}
	return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return down(b) })
}

// boltPerCall: opening, reading one key and closing, on a large and a small file.
func boltPerCall(r *report) error {
	cost := func(name string, n int) (float64, error) {
		file, store, err := r.openBolt(name)
		if err != nil {
			return 0, err
		}
		ctx, hash := context.Background(), idem.FingerprintBytes([]byte("request"))
		if _, err := idem.Execute(ctx, store, scope, "known", hash, func(context.Context) (int, error) { return 1, nil }); err != nil {
			return 0, err
		}
		if err := fill(n, executeNew(store)); err != nil {
			return 0, err
		}
		if err := file.Close(); err != nil {
			return 0, err
		}
		one := func() error {
			file, err := bolt.Open(filepath.Join(r.dir, name), &bolt.Options{PerCall: true})
			if err != nil {
				return err
			}
			defer file.Close()
			store, err := idem.New(file, nil)
			if err != nil {
				return err
			}
			_, err = store.Get(ctx, scope, "known")
			return err
		}
		per, err := rate(1, r.cell, one)
		return 1 / per, err
	}
	small, err := cost("small.db", 100)
	if err != nil {
		return err
	}
	large, err := cost("large.db", r.size(100_000))
	if err != nil {
		return err
	}
	r.info("bolt: per-call open, read and close, 100 records", "1", small*1e6, " us")
	r.atMost("bolt: the same with 100,000 records / with 100", "1", large/small, 3, "x")
	return nil
}

// boltFlat: heap and goroutines over a million distinct keys whose records do not
// stay: each is released by an fn that fails.
func boltFlat(r *report) error {
	file, store, err := r.openBolt("flat.db")
	if err != nil {
		return err
	}
	defer file.Close()
	ctx, hash, fails := context.Background(), idem.NoFingerprint(), fmt.Errorf("not now")
	op := func() error {
		_, err := idem.Execute(ctx, store, scope, idem.Key(uuid.NewString()), hash, func(context.Context) (int, error) { return 0, fails })
		if err != fails {
			return fmt.Errorf("unexpected: %w", err)
		}
		return nil
	}
	if err := fill(r.size(200_000), op); err != nil { // fills what is bounded
		return err
	}
	before, goroutines := heap(), runtime.NumGoroutine()
	if err := fill(r.size(1_000_000), op); err != nil {
		return err
	}
	r.atMost("bolt: heap growth over 1,000,000 released keys", "-", (heap()-before)/(1<<20), 20, " MiB")
	r.atMost("bolt: goroutines more after them", "-", float64(runtime.NumGoroutine()-goroutines), 0, "")
	return nil
}

// coreOverMemory: the core alone.
func coreOverMemory(r *report) error {
	store, err := idem.New(memory.New(nil), nil)
	if err != nil {
		return err
	}
	op := executeNew(store)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, n := m.Mallocs, r.size(200_000)
	begun := time.Now()
	for range n {
		if err := op(); err != nil {
			return err
		}
	}
	took := time.Since(begun)
	runtime.ReadMemStats(&m)
	r.info("core: Execute over memory, empty fn", "1", float64(took.Nanoseconds())/float64(n), " ns")
	// One allocation of these is the random key.
	r.atMost("core: allocations of one Execute over memory", "1", float64(m.Mallocs-before)/float64(n), 25, "")
	return nil
}
