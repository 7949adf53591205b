package bolt

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// fdatasyncRate measures what the disk does right now: the machine's disk has a
// slow and a fast regime, and a number without this beside it says nothing.
func fdatasyncRate(b *testing.B) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "sync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	start, n := time.Now(), 0
	for ; time.Since(start) < 100*time.Millisecond; n++ {
		if _, err := f.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// BenchmarkReserveComplete is one Execute as the store sees it: a reserve and a
// completion with a 200-byte result, on a key that was never seen before.
func BenchmarkReserveComplete(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			db, err := Open(filepath.Join(b.TempDir(), "store.idem"), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			syncs := fdatasyncRate(b)
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			drive(b, callers, func() error { return executeOnce(db, uint64(next.Add(1))) })
			b.StopTimer()
			b.ReportMetric(syncs, "fsync/s")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "exec/s")
		})
	}
}

// BenchmarkTransact is the same with an effect of the caller's own in the same
// commit.
func BenchmarkTransact(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			db, err := Open(filepath.Join(b.TempDir(), "store.idem"), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			if err := db.Bolt().Update(func(tx *bbolt.Tx) error {
				_, err := tx.CreateBucket([]byte("effects"))
				return err
			}); err != nil {
				b.Fatal(err)
			}
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			drive(b, callers, func() error {
				n := uint64(next.Add(1))
				r := benchReserve(n)
				_, err := db.Transact(context.Background(), r, func(_ context.Context, tx *bbolt.Tx, _ backend.Reservation) (backend.Completion, error) {
					err := tx.Bucket([]byte("effects")).Put([]byte(r.ID.Key), make([]byte, 100))
					return backend.Completion{State: backend.Completed, Body: make([]byte, 200), ReplayFor: time.Hour, KnownFor: 24 * time.Hour}, err
				})
				return err
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "exec/s")
		})
	}
}

// BenchmarkReplay is a reserve that finds a result, beside bbolt's own read of a
// value of that size.
func BenchmarkReplay(b *testing.B) {
	db, err := Open(filepath.Join(b.TempDir(), "store.idem"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	const stored = 20_000
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 256 {
		wg.Go(func() {
			for n := next.Add(1); n <= stored; n = next.Add(1) {
				if err := executeOnce(db, uint64(n)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := db.Bolt().Update(func(tx *bbolt.Tx) error {
		raw, err := tx.CreateBucket([]byte("raw"))
		if err != nil {
			return err
		}
		for n := range uint64(stored) {
			if err := raw.Put([]byte(benchID(n+1).Key), make([]byte, 265)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	b.Run("idem", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			r := benchReserve(uint64(i%stored) + 1)
			r.Owner = [16]byte{1}
			res, err := db.Reserve(context.Background(), r)
			if err != nil || res.Outcome != backend.Existing || len(res.Record.Body) != 200 {
				b.Fatal(res, err)
			}
		}
	})
	b.Run("raw", func(b *testing.B) {
		b.ReportAllocs()
		var value []byte
		for i := range b.N {
			key := []byte(benchID(uint64(i%stored) + 1).Key)
			if err := db.Bolt().View(func(tx *bbolt.Tx) error {
				value = append([]byte(nil), tx.Bucket([]byte("raw")).Get(key)...)
				return nil
			}); err != nil || len(value) != 265 {
				b.Fatal(len(value), err)
			}
		}
	})
}

// drive runs b.N calls of fn on so many goroutines.
func drive(b *testing.B, callers int, fn func() error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := fn(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func benchID(n uint64) backend.ID {
	// Scattered like UUIDs, without the price of making one.
	x := n * 0x9e3779b97f4a7c15
	return backend.ID{Operation: "payments.create", Key: fmt.Sprintf("%016x-%04x-%016x", x, n&0xffff, x^n)}
}

func benchReserve(n uint64) backend.ReserveRequest {
	r := backend.ReserveRequest{
		Fingerprint: append([]byte{1}, make([]byte, 32)...),
		TTL:         time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun,
	}
	r.ID = benchID(n)
	binary.BigEndian.PutUint64(r.Owner[:], n)
	r.Owner[15] = 1
	return r
}

func executeOnce(db *DB, n uint64) error {
	ctx := context.Background()
	r := benchReserve(n)
	res, err := db.Reserve(ctx, r)
	if err != nil {
		return err
	}
	if res.Outcome != backend.Acquired {
		return fmt.Errorf("outcome %v", res.Outcome)
	}
	_, err = db.Complete(ctx, backend.CompleteRequest{
		Ref: r.Ref, State: backend.Completed, Body: make([]byte, 200), ReplayFor: time.Hour, KnownFor: 24 * time.Hour,
	})
	return err
}
