package report

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/bench/result"
)

// run is a small report with one measurement and one experiment.
func run(change func(*result.Report)) *result.Report {
	r := &result.Report{
		Strategies:   []result.Strategy{{Name: "s"}},
		Measurements: []result.Measurement{measured("s", result.Workload{Name: "w", Callers: 8}, 1000)},
		Experiments:  []result.Experiment{{Strategy: "s", Fault: "storm", Verdict: kept, Promise: "once", Rounds: 3, Fired: 3}},
	}
	if change != nil {
		change(r)
	}
	return r
}

func TestCompare(t *testing.T) {
	t.Parallel()
	throughput := func(low, x, high float64, rounds int) func(*result.Report) {
		return func(r *result.Report) {
			m := &r.Measurements[0]
			m.ThroughputLow, m.Throughput, m.ThroughputHigh, m.Rounds = low, x, high, rounds
		}
	}
	for _, tt := range []struct {
		name                string
		a, b                func(*result.Report)
		worse, better, warn string // parts of the one line; empty: there is none
	}{
		{name: "nothing"},
		{name: "slower", b: throughput(550, 600, 700, 5), worse: "1.00k/s (880 to 1.10k) became 600/s (550 to 700), 0.60×"},
		{name: "faster", b: throughput(1700, 2000, 2100, 5), better: "2.00×"},
		{name: "the ranges overlap", b: throughput(550, 600, 900, 5)},
		{name: "apart by less than noise", a: throughput(999, 1000, 1001, 9), b: throughput(890, 900, 910, 9)},
		{name: "one round proves little", a: throughput(1000, 1000, 1000, 1), b: throughput(750, 750, 750, 1)},
		{name: "one round proves much", a: throughput(1000, 1000, 1000, 1), b: throughput(400, 400, 400, 1), worse: "0.40×"},
		{name: "nothing is answered", b: throughput(0, 0, 0, 5), worse: "nothing is answered"},
		{name: "tail", b: func(r *result.Report) { r.Measurements[0].Latency.P99 = time.Second }, worse: "99th percentile"},
		{name: "errors", b: func(r *result.Report) { r.Measurements[0].Counts.Errors = 1 }, worse: "0 errors became 1"},
		{name: "no errors any more", a: func(r *result.Report) { r.Measurements[0].Counts.Errors = 1 }, better: "1 errors became 0"},
		{name: "twice", b: func(r *result.Report) { r.Measurements[0].Duplicates = 2 }, worse: "effects applied twice"},
		{name: "broken", b: func(r *result.Report) { r.Experiments[0].Verdict, r.Experiments[0].DuplicateEffects = broken, 4 }, worse: "✓ became ✗ broken: 4 twice"},
		{name: "mended", a: func(r *result.Report) { r.Experiments[0].Verdict, r.Experiments[0].DuplicateEffects = broken, 4 }, better: "✗ broken: 4 twice became ✓"},
		{name: "another processor", b: func(r *result.Report) { r.Machine.CPU = "other" }, warn: "processor differs: unknown and other"},
		{name: "another disk", a: func(r *result.Report) { r.Machine.SyncRate = 4000 }, b: func(r *result.Report) { r.Machine.SyncRate = 300 }, warn: "the disk flushed 4.00k times"},
		{name: "another seed", b: func(r *result.Report) { r.Seed = 5 }, warn: "seed differs"},
		{name: "partial", b: func(r *result.Report) { r.Partial = true }, warn: "second run is partial"},
		{name: "another workload of that name", b: func(r *result.Report) { r.Measurements[0].Workload.Payload = 9 }, warn: "not compared"},
		{name: "another setting of a server",
			a: func(r *result.Report) {
				r.Servers = []result.Server{{Name: "redis", Settings: map[string]string{"appendfsync": "always"}}}
			},
			b: func(r *result.Report) {
				r.Servers = []result.Server{{Name: "redis", Settings: map[string]string{"appendfsync": "no"}}}
			}, warn: "redis differs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := Compare(run(tt.a), run(tt.b))
			for _, part := range []struct {
				what string
				have []string
				want string
			}{{"worse", c.Worse, tt.worse}, {"better", c.Better, tt.better}, {"warnings", c.Warnings, tt.warn}, {"other", c.Other, ""}} {
				if part.want == "" && len(part.have) == 0 {
					continue
				}
				if part.want == "" || len(part.have) != 1 || !strings.Contains(part.have[0], part.want) {
					t.Errorf("%s: %q, want one with %q", part.what, part.have, part.want)
				}
			}
			if !strings.Contains(c.Text(), Rule()) {
				t.Error("the text does not say the rule")
			}
		})
	}
}

// TestCompareStaysQuietOnNoise compares runs of the same code whose rounds scatter as they
// do on a busy machine.
func TestCompareStaysQuietOnNoise(t *testing.T) {
	t.Parallel()
	seed := uint64(20261201)
	rng := rand.New(rand.NewPCG(seed, 1))
	alarms := 0
	noisy := func(r *result.Report) {
		m := &r.Measurements[0]
		m.ThroughputLow, m.ThroughputHigh = 1e9, 0
		sum := 0.0
		for range 5 {
			x := 1000 * (1 + .1*rng.NormFloat64())
			m.ThroughputLow, m.ThroughputHigh, sum = min(m.ThroughputLow, x), max(m.ThroughputHigh, x), sum+x
		}
		m.Throughput = sum / 5
	}
	for range 1000 {
		c := Compare(run(noisy), run(noisy))
		alarms += len(c.Worse) + len(c.Better)
	}
	if alarms > 5 {
		t.Errorf("%d false alarms in 1000 comparisons of the same, seed %d", alarms, seed)
	}
}

func TestComparisonNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	more := run(func(r *result.Report) {
		r.Measurements = append(r.Measurements, measured("t\x1b[31m", result.Workload{Name: "w"}, 1))
		r.Experiments = append(r.Experiments, result.Experiment{Strategy: "s", Fault: "flood"})
	})
	for _, tt := range []struct {
		a, b *result.Report
		in   string
	}{{more, run(nil), "first"}, {run(nil), more, "second"}} {
		text := Compare(tt.a, tt.b).Text()
		for _, want := range []string{"s, flood: only in the " + tt.in, fmt.Sprintf("t [31m: only in the %s", tt.in)} {
			if !strings.Contains(text, want) {
				t.Errorf("%s\ndoes not say %q", text, want)
			}
		}
	}
}
