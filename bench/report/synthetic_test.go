package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/goidem/idem/bench/result"
)

// synthetic is a report as a full run gives it, with made-up figures: every family, every
// verdict, and texts that would be code if they were not escaped.
func synthetic() *result.Report {
	r := &result.Report{
		Profile: "full", Seed: 7, Started: time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC), Finished: time.Date(2026, 12, 1, 6, 7, 12, 0, time.UTC),
		Machine: result.Machine{OS: "linux", Kernel: "6.18", CPU: "AMD EPYC", CPUs: 2, Memory: 24 << 30, FileSystem: "ext4", SyncRate: 4753, Go: "go1.26.8", Module: "abcdef0"},
		Servers: []result.Server{{Name: "postgres", Version: "15.18", Own: true, Settings: map[string]string{"fsync": "on", "synchronous_commit": "on"}}},
		Skipped: []result.Skip{
			{Strategy: "crdb-lease", Reason: "needs a CockroachDB: --cockroach URL"},
			{Strategy: "pg-tx-queued", What: "worker killed after reserve", Reason: "nothing has left the process by then", NotReached: true},
			{Strategy: "pg-tx", What: "clock stepped", Reason: "its server keeps time"},
		},
	}
	for i, s := range []struct {
		result.Strategy
		at8   float64 // operations a second
		harm  int     // of 9 experiments
		weak  bool
		tests bool
	}{
		{result.Strategy{Name: "none", Title: "nothing", Family: "naive", Survives: "nothing is remembered", Cost: "none"}, 1.9e6, 4, false, true},
		{result.Strategy{Name: "memory-lru", Title: "in-memory window (LRU)", Family: "window", Survives: "nothing"}, 900e3, 3, false, true},
		{result.Strategy{Name: "memory-lease", Title: "idem on memory", Family: "lease", Survives: "nothing"}, 310e3, 2, false, true},
		{result.Strategy{Name: "fsync-floor", Title: "one bare fdatasync", Family: "floor"}, 4700, 0, false, false},
		{result.Strategy{Name: "bolt-batch", Title: "hand-written db.Batch twice", Family: "floor", Survives: "a power cut"}, 329, 0, false, false},
		{result.Strategy{Name: "bolt-lease", Title: "idem on bolt", Family: "lease", Floor: "bolt-batch", Survives: "a power cut"}, 4300, 0, true, true},
		{result.Strategy{Name: "bolt-tx", Title: "idem transactional on bolt", Family: "transactional", Floor: "bolt-batch", Survives: "a power cut"}, 5900, 0, false, true},
		{result.Strategy{Name: "redis-raw", Title: "raw SET NX and SET", Family: "floor", Needs: []string{"redis"}}, 12500, 0, false, false},
		{result.Strategy{Name: "redis-setnx", Title: "SET NX lock with a TTL", Family: "naive", Needs: []string{"redis"}, Floor: "redis-raw"}, 13800, 5, false, true},
		{result.Strategy{Name: "redis-window", Title: "idem Redis window", Family: "window", Needs: []string{"redis"}, Floor: "redis-raw"}, 14600, 0, true, true},
		{result.Strategy{Name: "redis-lease", Title: "idem on Redis", Family: "lease", Needs: []string{"redis"}, Floor: "redis-raw"}, 11900, 0, true, true},
		{result.Strategy{Name: "pg-five-trips", Title: "pgx in five round trips", Family: "floor", Needs: []string{"postgres"}}, 1450, 0, false, false},
		{result.Strategy{Name: "check-then-act", Title: "select, then insert", Family: "naive", Needs: []string{"postgres"}, Floor: "pg-five-trips"}, 2200, 3, false, true},
		{result.Strategy{Name: "unique-row", Title: "unique constraint on the business row", Family: "naive", Needs: []string{"postgres"}, Floor: "pg-five-trips"}, 2050, 1, false, true},
		{result.Strategy{Name: "pg-lease", Title: "idem on PostgreSQL", Family: "lease", Needs: []string{"postgres"}, Floor: "pg-five-trips"}, 2900, 0, true, true},
		{result.Strategy{Name: "pg-tx", Title: "idem transactional on PostgreSQL", Family: "transactional", Needs: []string{"postgres"}, Floor: "pg-five-trips"}, 2100, 0, false, true},
		{result.Strategy{Name: "pg-tx-queued", Title: "idem transactional on PostgreSQL, queued", Family: "transactional", Needs: []string{"postgres"}, Floor: "pg-five-trips"}, 2700, 0, false, true},
		{result.Strategy{Name: "odd", Title: `<script>alert("x")</script> | *odd*`, Family: `"><u>`, Needs: []string{"<i>mars</i>"}}, 50, 0, false, false},
	} {
		r.Strategies = append(r.Strategies, s.Strategy)
		for k, callers := range []int{1, 8, 64, 256} {
			x := s.at8 * []float64{.28, 1, 2.6, 3.1}[k] * (1 + .03*float64(i%5))
			r.Measurements = append(r.Measurements, measured(s.Name, result.Workload{Name: "new-keys", Callers: callers, Payload: 200, Result: 200, Length: time.Second, Seed: 7}, x))
		}
		open := measured(s.Name, result.Workload{Name: "steady", Callers: 64, Rate: 500, Duplicates: .2, Hot: .5, Payload: 200, Result: 200, Length: time.Second, Seed: 7}, min(500, s.at8))
		open.Lag = result.Latency{P50: 4000, P90: 9000, P99: 40_000, P999: 90_000, Max: 200_000}
		r.Measurements = append(r.Measurements, open)
		if !s.tests {
			continue
		}
		for k, fault := range []string{"duplicate storm", "worker killed after reserve", "worker killed after the effect", "worker killed after complete", "server killed", "Redis flushed", "fn slower than the lease", "clock stepped", "retry after expiry"} {
			if slices.ContainsFunc(r.Skipped, func(skip result.Skip) bool { return skip.Strategy == s.Name && skip.What == fault }) {
				continue
			}
			e := result.Experiment{Strategy: s.Name, Fault: fault, Promise: "once", Rounds: 20, Fired: 20, Keys: 400, Unit: "key", Trials: 400, Upper95: 0.0075, Recovery: 30 * time.Millisecond, Longest: 80 * time.Millisecond, Verdict: "kept"}
			switch {
			case k < s.harm:
				e.Verdict, e.DuplicateEffects, e.LostEffects, e.Promise, e.Upper95 = harmShown, 17*(k+1), k, "none", .21
			case s.weak && k == 2:
				e.Promise, e.DuplicateEffects, e.StuckKeys = "at least once", 20, 1
			case s.Family == "naive":
				e.Verdict, e.Promise = "did not bite", "none"
			case k == 7:
				e.Fired = 12
			case k == 8 && s.Name == "redis-window":
				e.Verdict, e.DuplicateEffects = broken, 9
			case k == 8:
				e.Verdict, e.Promise, e.DuplicateEffects = harmShown, promiseNone, 4
			}
			r.Experiments = append(r.Experiments, e)
		}
	}
	r.Measurements[1].Counts.Errors, r.Measurements[1].FirstProblem = 12, `<img src=x onerror="alert(1)">`
	return r
}

func measured(name string, w result.Workload, x float64) result.Measurement {
	p50 := time.Duration(float64(max(w.Callers, 1)) / x * 1e9 * .8)
	if w.Rate > 0 {
		p50 = time.Duration(1e9 / x * .7)
	}
	return result.Measurement{
		Strategy: name, Workload: w, Rounds: 5, Elapsed: time.Second,
		Throughput: x, ThroughputLow: x * .88, ThroughputHigh: x * 1.1,
		Counts:       result.Counts{Executed: int64(x), Replayed: int64(x / 4)},
		Latency:      result.Latency{P50: p50, P90: p50 * 2, P99: p50 * 4, P999: p50 * 9, Max: p50 * 30},
		DistinctKeys: int64(x), Effects: int64(x),
		CPUSeconds: .9, ServerCPU: -1, AllocBytes: 1800, Allocs: 22.4, WireBytes: 740, Fsyncs: .31, RecordBytes: 412,
	}
}

// huge is a report with more of everything than fits comfortably.
func huge() *result.Report {
	r := synthetic()
	for i := range 24 {
		name := fmt.Sprintf("a-strategy-with-a-long-name-%d", i)
		r.Strategies = append(r.Strategies, result.Strategy{Name: name, Title: name + " and a title that goes on and on and on", Family: []string{"naive", "lease", "floor"}[i%3], Needs: []string{"postgres"}})
		for _, callers := range []int{1, 2, 4, 8, 9, 10, 64, 1000} {
			r.Measurements = append(r.Measurements, measured(name, result.Workload{Name: "new-keys", Callers: callers}, 1000+float64(i)))
		}
	}
	return r
}
