package idem_test

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// forgetful is a backend that grants everything and keeps nothing.
type forgetful struct{ backend.Backend }

func (forgetful) Guarantees() backend.Guarantees { return backend.Guarantees{} }

func (forgetful) Reserve(_ context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	now := time.Now()
	return backend.Reservation{Outcome: backend.Acquired, Now: now, Record: backend.Record{
		Ref: r.Ref, State: backend.InFlight, Fence: 1, Attempt: 1, OnAbandoned: r.OnAbandoned, LeaseUntil: now.Add(r.TTL),
	}}, nil
}

func (forgetful) Complete(_ context.Context, r backend.CompleteRequest) (backend.Record, error) {
	return backend.Record{Ref: r.Ref, State: r.State, Attempt: 1, Body: r.Body}, nil
}

func (forgetful) Release(context.Context, backend.Ref) error { return nil }

// The Store keeps nothing for a key that is done with, however many there were
// (C47): no map of mutexes, no waiting list, no timer.
func TestCaseC47_StoreKeepsNothing(t *testing.T) {
	store, err := idem.New(forgetful{}, &idem.Options{Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	churn := func(prefix string, n int) {
		var all sync.WaitGroup
		for w := range 4 {
			all.Go(func() {
				for i := range n / 4 {
					_, err := run(t.Context(), store, prefix+strconv.Itoa(w)+"/"+strconv.Itoa(i), func(context.Context) (string, error) {
						if i%10 == 0 {
							return "", errBoom
						}
						return "v", nil
					})
					if err != nil && err != errBoom {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	churn("warm", 2000)
	before, goroutines := heap(), runtime.NumGoroutine()
	churn("key", 200_000)
	after := heap()
	t.Logf("heap %d KiB before, %d KiB after 200,000 keys", before>>10, after>>10)
	if after > before+1<<20 {
		t.Errorf("the heap grew by %d KiB", (after-before)>>10)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
}
