package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/bolt"
)

// A store that stalls for one second in ten holds up every operation that was due
// meanwhile. A generator that waits for the answers hides it: with few callers, next
// to no operation of its own was held up (C47).
func TestCaseC47_StallShowsInOpenLoop(t *testing.T) {
	stalling := func() *stub {
		s := newStub()
		begun := time.Now()
		s.before = func(context.Context, strategy.Op) error {
			if into := time.Since(begun) % (10 * time.Second); into >= 9*time.Second {
				time.Sleep(10*time.Second - into)
			} else {
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		return s
	}
	spec := Spec{Workload: result.Workload{Name: "stall", Callers: 8, Length: 30 * time.Second}}
	synctest.Test(t, func(t *testing.T) {
		spec.Rate = 1000
		m, err := Run(t.Context(), stalling(), spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("open loop: %+v, lag %+v, %.0f/s", m.Latency, m.Lag, m.Throughput)
		if m.Latency.P99 < 500*time.Millisecond {
			t.Errorf("p99 is %v in a run with three stalls of a second; want 500ms or more", m.Latency.P99)
		}
		if m.Counts.Executed != 30_000 || m.Effects != 30_000 || m.DistinctKeys != 30_000 {
			t.Errorf("%+v, %d effects of %d keys; want 30000", m.Counts, m.Effects, m.DistinctKeys)
		}
		// In the bubble the generator is never late by itself: what the stall did is
		// the strategy's latency, and no lag.
		if m.Lag.Max > time.Millisecond {
			t.Errorf("lag %+v: what the stall did was counted as the generator's", m.Lag)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		spec.Rate = 0
		m, err := Run(t.Context(), stalling(), spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m.Latency.P99 > 100*time.Millisecond {
			t.Errorf("closed loop: p99 %v; this test thought that it hides the stall", m.Latency.P99)
		}
	})
}

// Operations that were due and that nobody got to are no success.
func TestCaseC47_RateBeyondReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub()
		s.before = func(context.Context, strategy.Op) error { time.Sleep(100 * time.Millisecond); return nil }
		m, err := Run(t.Context(), s, Spec{Workload: result.Workload{Name: "beyond", Callers: 2, Rate: 1000, Length: 2 * time.Second}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m.Counts.Executed+m.Counts.Errors != 2000 || m.Counts.Executed > 100 || m.FirstProblem == "" {
			t.Errorf("%+v (%q); want some 80 executed, and the rest of 2000 as errors", m.Counts, m.FirstProblem)
		}
		if m.Throughput > 25 {
			t.Errorf("%.0f/s; 20/s is what it can do", m.Throughput)
		}
	})
}

func TestCaseC47_MixedRunIsSeparated(t *testing.T) {
	store, err := idem.New(memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := leased{noop{NewLedger()}, store}
	spec := Spec{
		Workload:  result.Workload{Name: "mixed", Callers: 1, Duplicates: 0.5, Payload: 64, Result: 16, Seed: 3},
		Conflicts: 0.05, Failures: 0.01, Operations: 5_000, Rounds: 3,
	}
	want := make(map[kind]int64)
	for _, r := range requests(t, spec, 5_000) {
		want[r.kind]++
	}
	var last float64
	m, err := Run(t.Context(), r, spec, func(done float64) {
		if done < last-1e-9 {
			t.Errorf("progress went from %v to %v", last, done)
		}
		last = done
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %q", m.Counts, m.FirstProblem)
	if got := (result.Counts{Executed: 3 * want[fresh], Replayed: 3 * want[repeat], Mismatch: 3 * want[conflict], Errors: 3 * want[failing]}); m.Counts != got {
		t.Errorf("counted %+v; want %+v", m.Counts, got)
	}
	if m.Rounds != 3 || m.DistinctKeys != 3*want[fresh] || m.Effects != m.DistinctKeys || m.Duplicates != 0 || m.Lost != 0 {
		t.Errorf("%d effects of %d keys in %d rounds, %d twice, %d lost", m.Effects, m.DistinctKeys, m.Rounds, m.Duplicates, m.Lost)
	}
	// Neither errors nor mismatches are throughput.
	answered := float64(want[fresh]+want[repeat]) / m.Elapsed.Seconds()
	if m.Throughput < answered*0.999 || m.Throughput > answered*1.001 {
		t.Errorf("%.0f/s; answered were %.0f/s", m.Throughput, answered)
	}
	if last != 1 || m.FirstProblem != "" {
		t.Errorf("progress ended at %v, first problem %q", last, m.FirstProblem)
	}
	if m.ThroughputLow > m.Throughput || m.ThroughputHigh < m.Throughput {
		t.Errorf("spread %v to %v around %v", m.ThroughputLow, m.ThroughputHigh, m.Throughput)
	}
}

// What a strategy does wrong is seen: effects twice, effects that are not there, and errors.
func TestCaseC47_WrongEffectsAreSeen(t *testing.T) {
	spec := Spec{Workload: result.Workload{Name: "wrong", Callers: 4, Duplicates: 0.3}, Operations: 4000}
	s := newStub()
	var n atomic.Int64
	s.before = func(ctx context.Context, op strategy.Op) error {
		switch n.Add(1) {
		case 10, 20:
			return s.Effects().Apply(ctx, op.Key, "again")
		case 30:
			return errors.New("the first problem")
		case 40:
			s.mu.Lock()
			s.seen[op.Key] = string(op.Payload) // acknowledged without an effect, if it is new
			s.mu.Unlock()
		}
		return nil
	}
	m, err := Run(t.Context(), s, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Duplicates != 2 || m.Counts.Errors != 1 || m.FirstProblem != "the first problem" || m.Lost > 1 {
		t.Errorf("%+v", m)
	}
	if m.Effects-m.Duplicates+m.Lost != m.DistinctKeys {
		t.Errorf("%d effects, %d of them again, %d lost; that is not %d keys", m.Effects, m.Duplicates, m.Lost, m.DistinctKeys)
	}
}

// A round in which everything fails is the slowest, so it is never the median one.
func TestCaseC47_ErrorsOfAnyRoundAreSeen(t *testing.T) {
	s := newStub()
	var n atomic.Int64
	s.before = func(context.Context, strategy.Op) error {
		if n.Add(1) <= 100 {
			return errors.New("the first round fails")
		}
		return nil
	}
	m, err := Run(t.Context(), s, Spec{Workload: result.Workload{Name: "failing round", Callers: 2}, Operations: 100, Rounds: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (result.Counts{Executed: 200, Errors: 100}); m.Counts != want || m.FirstProblem == "" || m.Effects != 200 || m.DistinctKeys != 200 {
		t.Errorf("%+v, %d effects of %d keys, %q; want %+v", m.Counts, m.Effects, m.DistinctKeys, m.FirstProblem, want)
	}
}

func TestInterruptedRunKeepsFinishedRounds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newStub()
	var n atomic.Int64
	s.before = func(context.Context, strategy.Op) error {
		if n.Add(1) == 150 {
			cancel()
		}
		return nil
	}
	m, err := Run(ctx, s, Spec{Workload: result.Workload{Name: "cut", Callers: 2}, Operations: 100, Rounds: 3}, nil)
	if !errors.Is(err, context.Canceled) || m.Rounds != 1 || m.Counts.Executed != 100 {
		t.Errorf("%d rounds, %+v, %v; want the first round and context.Canceled", m.Rounds, m.Counts, err)
	}
}

// replaceable is a backend in memory that can be emptied: what is left in the heap
// then is not records.
type replaceable struct {
	backend.Backend // an empty one, for what no test here calls
	inner           *atomic.Pointer[memory.Backend]
}

func (r replaceable) Guarantees() backend.Guarantees { return r.inner.Load().Guarantees() }
func (r replaceable) Reserve(ctx context.Context, q backend.ReserveRequest) (backend.Reservation, error) {
	return r.inner.Load().Reserve(ctx, q)
}
func (r replaceable) Complete(ctx context.Context, q backend.CompleteRequest) (backend.Record, error) {
	return r.inner.Load().Complete(ctx, q)
}
func (r replaceable) Release(ctx context.Context, ref backend.Ref) error {
	return r.inner.Load().Release(ctx, ref)
}
func (r replaceable) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	return r.inner.Load().Renew(ctx, ref, ttl)
}
func (r replaceable) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	return r.inner.Load().Get(ctx, id)
}
func (r replaceable) Resolve(ctx context.Context, q backend.ResolveRequest) (backend.Record, error) {
	return r.inner.Load().Resolve(ctx, q)
}
func (r replaceable) Forget(ctx context.Context, q backend.ForgetRequest) error {
	return r.inner.Load().Forget(ctx, q)
}

// soakKeys is how many keys a soak completes: 1,000,000 with IDEM_BENCH_SOAK=1000000.
func soakKeys(t *testing.T) int64 {
	v := os.Getenv("IDEM_BENCH_SOAK")
	if v == "" {
		return 15_000
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 1 {
		t.Fatalf("IDEM_BENCH_SOAK=%q: it must be a positive number", v)
	}
	return n
}

// soak drives distinct keys through Execute and holds heap and goroutines against
// the start.
func soak(t *testing.T, b backend.Backend, empty func()) {
	store, err := idem.New(b, &idem.Options{Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	churn := func(name string, n int64) result.Measurement {
		m, err := Run(t.Context(), leased{noop{NewLedger()}, store}, Spec{
			Workload: result.Workload{Name: name, Callers: 64, Payload: 64, Result: 100}, Operations: n,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m.Counts.Executed != n || m.Effects != n || m.DistinctKeys != n {
			t.Fatalf("%+v, %d effects of %d keys; want %d: %s", m.Counts, m.Effects, m.DistinctKeys, n, m.FirstProblem)
		}
		return m
	}
	churn("warm", 5000)
	before, goroutines := heap(), runtime.NumGoroutine()
	n := soakKeys(t)
	m := churn("soak", n)
	empty()
	after := heap()
	t.Logf("%d keys at %.0f/s; heap %d KiB before, %d KiB after; %d goroutines before, %d after", n, m.Throughput, before>>10, after>>10, goroutines, runtime.NumGoroutine())
	// The bound is for a million keys. A short soak gets less, in proportion, and two
	// megabytes for what a runtime keeps.
	if bound := min(20<<20, 2<<20+20*n); after-before > bound {
		t.Errorf("the heap grew by %d KiB; %d KiB is the bound", (after-before)>>10, bound>>10)
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines; %d before", runtime.NumGoroutine(), goroutines)
		}
	}
	runtime.KeepAlive(store)
}

func TestCaseC47_SoakMemory(t *testing.T) {
	b := replaceable{memory.New(nil), new(atomic.Pointer[memory.Backend])}
	b.inner.Store(memory.New(nil))
	soak(t, b, func() { b.inner.Store(memory.New(nil)) })
}

func TestCaseC47_SoakBolt(t *testing.T) {
	db, err := bolt.Open(filepath.Join(t.TempDir(), "soak.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	soak(t, db, func() {})
}
