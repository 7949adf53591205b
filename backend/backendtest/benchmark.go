package backendtest

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goidem/idem/backend"
)

// Benchmark measures a backend with 1, 8 and 64 callers at the same time: new
// keys, each reserved and completed, and replays of completed keys. Every answer
// is checked, so that a fast wrong one does not count. open returns a handle on an
// empty store; it is called once for each measurement.
func Benchmark(b *testing.B, open func(t testing.TB) backend.Backend) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("New/callers=%d", callers), func(b *testing.B) {
			s := open(b)
			concurrently(b, callers, func(ctx context.Context, _ int) error { return newKey(ctx, s) })
		})
	}
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("Replay/callers=%d", callers), func(b *testing.B) {
			s := open(b)
			const keys = 1000
			refs := make([]backend.ReserveRequest, keys)
			for i := range refs {
				refs[i] = benchRequest()
				if _, err := s.Reserve(b.Context(), refs[i]); err != nil {
					b.Fatal(err)
				}
				if _, err := s.Complete(b.Context(), benchCompletion(refs[i].Ref)); err != nil {
					b.Fatal(err)
				}
			}
			concurrently(b, callers, func(ctx context.Context, i int) error {
				r := refs[i%keys]
				r.Owner = token()
				res, err := s.Reserve(ctx, r)
				if err == nil && (res.Outcome != backend.Existing || len(res.Record.Body) != benchBody) {
					err = fmt.Errorf("a replay was answered %v, %s", res.Outcome, show(res.Record))
				}
				return err
			})
		})
	}
}

// BenchmarkTx measures Transact on new keys with 1, 8 and 64 callers at the same
// time. effect does something small inside the transaction.
func BenchmarkTx[Tx any](b *testing.B, open func(t testing.TB) backend.Transactional[Tx], effect func(ctx context.Context, tx Tx) error) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("Transact/callers=%d", callers), func(b *testing.B) {
			s := open(b)
			concurrently(b, callers, func(ctx context.Context, _ int) error {
				r := benchRequest()
				res, err := s.Transact(ctx, r, func(ctx context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
					c := benchCompletion(r.Ref)
					return backend.Completion{State: c.State, Body: c.Body, ReplayFor: c.ReplayFor, KnownFor: c.KnownFor}, effect(ctx, tx)
				})
				if err == nil && (res.Outcome != backend.Acquired || res.Record.State != backend.Completed) {
					err = fmt.Errorf("a new key was answered %v, %s", res.Outcome, show(res.Record))
				}
				return err
			})
		})
	}
}

// benchBody is the size of a stored result, that of a small JSON document.
const benchBody = 200

func benchRequest() backend.ReserveRequest {
	owner, key := token(), token()
	return backend.ReserveRequest{
		Ref:         backend.Ref{ID: backend.ID{Tenant: "acme", Operation: "billing.invoice", Key: hex.EncodeToString(key[:])}, Owner: owner},
		Fingerprint: append([]byte{1}, make([]byte, 32)...),
		TTL:         long, KnownFor: long, OnAbandoned: backend.Rerun,
		Holder: backend.Holder{Host: "worker-7", PID: 4711},
	}
}

func benchCompletion(ref backend.Ref) backend.CompleteRequest {
	return backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: make([]byte, benchBody), ReplayFor: long, KnownFor: 2 * long}
}

func newKey(ctx context.Context, s backend.Backend) error {
	r := benchRequest()
	res, err := s.Reserve(ctx, r)
	if err != nil {
		return err
	}
	if res.Outcome != backend.Acquired {
		return fmt.Errorf("a new key was answered %v, %s", res.Outcome, show(res.Record))
	}
	rec, err := s.Complete(ctx, benchCompletion(r.Ref))
	if err == nil && rec.State != backend.Completed {
		err = fmt.Errorf("a completion was answered %s", show(rec))
	}
	return err
}

// concurrently spreads b.N calls over so many callers.
func concurrently(b *testing.B, callers int, do func(ctx context.Context, i int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for failure.Load() == nil {
				i := next.Add(1) - 1
				if i >= int64(b.N) {
					return
				}
				if err := do(b.Context(), int(i)); err != nil {
					failure.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if err := failure.Load(); err != nil {
		b.Fatal(*err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
