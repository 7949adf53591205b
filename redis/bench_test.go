package redis

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

// BenchmarkStore measures the store at the contract.
func BenchmarkStore(b *testing.B) {
	backendtest.Benchmark(b, func(tb testing.TB) backend.Backend {
		return newStore(tb, newRawClient(tb), newPrefix())
	})
}

// BenchmarkRounds compares the store with the bare commands in turns of a few
// milliseconds each, because round trips on one machine change their length by a
// third from one second to the next. It reports the store's speed in multiples of
// the bare commands': SET NX and SET for new keys, which is not safe, since a late
// owner overwrites, and GET for replays.
func BenchmarkRounds(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 256} {
		for _, replay := range []bool{false, true} {
			name := "New"
			if replay {
				name = "Replay"
			}
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) { rounds(b, callers, replay) })
		}
	}
}

func rounds(b *testing.B, callers int, replay bool) {
	raw := newRawClient(b)
	s := newStore(b, newRawClient(b), newPrefix())
	ours, bare := storeCalls(b, s), rawCalls(raw, newPrefix())
	ops := [2]func(ctx context.Context, i int64) error{bare.fresh, ours.fresh}
	if replay {
		const keys = 1000
		for i := range int64(keys) {
			for _, op := range ops {
				if err := op(b.Context(), i); err != nil {
					b.Fatal(err)
				}
			}
		}
		ops = [2]func(ctx context.Context, i int64) error{
			func(ctx context.Context, i int64) error { return bare.again(ctx, i%keys) },
			func(ctx context.Context, i int64) error { return ours.again(ctx, i%keys) },
		}
	}
	var spent [2]time.Duration
	next := int64(10_000)
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(max(20*callers, 100), b.N-done)
		for k := range ops {
			begun := time.Now()
			if err := drive(b.Context(), callers, next, n, ops[k]); err != nil {
				b.Fatal(err)
			}
			spent[k] += time.Since(begun)
		}
		next += int64(n)
		done += n
	}
	b.ReportMetric(float64(b.N)/spent[0].Seconds(), "raw/s")
	b.ReportMetric(float64(b.N)/spent[1].Seconds(), "store/s")
	b.ReportMetric(spent[0].Seconds()/spent[1].Seconds(), "x-raw")
}

func newRawClient(tb testing.TB) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: testdb.Redis(tb).Addr(), ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// drive makes n calls from so many callers.
func drive(ctx context.Context, callers int, first int64, n int, do func(ctx context.Context, i int64) error) error {
	ctx, cancel := context.WithCancel(ctx) // as a service's calls have one
	defer cancel()
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for failure.Load() == nil {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				if err := do(ctx, first+i); err != nil {
					failure.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

type calls struct {
	fresh, again func(ctx context.Context, i int64) error
}

// result has the length that the promises are about.
const result = 200

func storeCalls(tb testing.TB, s *Store) calls {
	run := hex.EncodeToString(newToken())
	make := func(i int64) backend.ReserveRequest {
		r := request(fmt.Sprintf("%s-%d", run[:16], i))
		r.ID.Tenant, r.ID.Operation = "acme", "billing.invoice"
		return r
	}
	body := string(make200())
	return calls{
		fresh: func(ctx context.Context, i int64) error {
			r := make(i)
			res, err := s.Reserve(ctx, r)
			if err == nil && res.Outcome != backend.Acquired {
				err = fmt.Errorf("a new key was answered %v", res.Outcome)
			}
			if err != nil {
				return err
			}
			_, err = s.Complete(ctx, completion(r.Ref, body))
			return err
		},
		again: func(ctx context.Context, i int64) error {
			res, err := s.Reserve(ctx, make(i))
			if err == nil && (res.Outcome != backend.Existing || len(res.Record.Body) != result) {
				err = fmt.Errorf("a replay was answered %v with %d bytes", res.Outcome, len(res.Record.Body))
			}
			return err
		},
	}
}

func make200() []byte {
	b := make([]byte, result)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return b
}

func newToken() []byte { t := token(); return t[:] }

func rawCalls(c *redis.Client, prefix string) calls {
	body := make200()
	return calls{
		fresh: func(ctx context.Context, i int64) error {
			key := fmt.Sprintf("%sbilling.invoice:%d", prefix, i)
			owner := newToken()
			if err := c.Process(ctx, redis.NewStatusCmd(ctx, "set", key, owner, "nx", "px", 3_600_000)); err != nil {
				return err
			}
			return c.Process(ctx, redis.NewStatusCmd(ctx, "set", key, body, "px", 7_200_000))
		},
		again: func(ctx context.Context, i int64) error {
			v, err := c.Get(ctx, fmt.Sprintf("%sbilling.invoice:%d", prefix, i)).Result()
			if err == nil && len(v) != result {
				err = fmt.Errorf("a bare GET answered %d bytes", len(v))
			}
			return err
		},
	}
}

// TestBytesPerRecord: what a completed record with a 200-byte result takes on the
// server.
func TestBytesPerRecord(t *testing.T) {
	s := newStore(t, newClient(t, testdb.StartRedis(t).Addr()), "")
	r := request("5f0c6a52-9d2e-4c77-8a56-1f6f0a1c9b7e")
	r.ID.Tenant, r.ID.Operation = "acme", "billing.invoice"
	if _, err := s.Reserve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Complete(t.Context(), completion(r.Ref, string(make200()))); err != nil {
		t.Fatal(err)
	}
	bytes, err := s.client.MemoryUsage(t.Context(), s.key(&r.ID)).Result()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a record with a %d-byte result takes %d bytes", result, bytes)
	if bytes > 460 {
		t.Errorf("a record with a %d-byte result takes %d bytes; at most 460 are promised", result, bytes)
	}
}
