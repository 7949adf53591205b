package benchcmd

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/bench/experiment"
	"github.com/goidem/idem/bench/report"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/bench/workload"
)

// slow is a strategy that executes everything, and whose store takes long to be looked at.
type slow struct {
	strategy.Ledger
	look time.Duration
}

func (slow) Info() strategy.Info {
	return strategy.Info{Name: "slow", Family: strategy.Naive, Survives: "nothing"}
}
func (s slow) Open(context.Context, strategy.Env) (strategy.Runner, error) { return s, nil }
func (s slow) Do(ctx context.Context, op strategy.Op) (strategy.Outcome, error) {
	return strategy.Executed, s.Apply(ctx, op.Key, op.Caller)
}
func (s slow) Effects() strategy.Ledger { return s.Ledger }
func (slow) Wire() int64                { return 0 }
func (slow) Close() error               { return nil }

func (slow) Usage(context.Context) (strategy.Usage, error) { return strategy.Usage{}, nil }

func (s slow) Flushes(ctx context.Context) (int64, error) {
	select {
	case <-time.After(s.look):
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// limitedRun runs workloads, and experiments where faults says so, on a slow strategy.
func limitedRun(t *testing.T, look, limit time.Duration, faults bool) (*result.Report, time.Duration) {
	t.Helper()
	p := &plan{strategies: []strategy.Strategy{slow{workload.NewLedger(), look}}, noFaults: !faults, out: t.TempDir(), dir: t.TempDir(), seed: 1}
	spec := workload.Spec{Rounds: 1, Workload: result.Workload{Name: "w", Length: 10 * time.Millisecond}}
	p.profile = profile{name: "test", limit: limit, workloads: []load{{spec, []int{1, 2, 3}}}}
	var said bytes.Buffer
	r := &runner{plan: p, screen: newScreen(&said), report: &result.Report{Started: time.Now()}}
	begun := time.Now()
	if err := r.run(t.Context()); err != nil {
		t.Fatalf("%v; %s", err, said.String())
	}
	took := time.Since(begun)
	kept, err := result.ReadFile(p.out + "/" + report.JSONFile)
	if err != nil {
		t.Fatal(err)
	}
	return kept, took
}

// A run that its limit has cut off ends in time, and its report is not called whole.
func TestLimitCutsWorkloads(t *testing.T) {
	t.Parallel()
	for _, faults := range []bool{false, true} {
		r, took := limitedRun(t, time.Second, 3*time.Second, faults)
		if !r.Partial || !strings.Contains(r.Reason, "The limit was over") || !strings.Contains(r.Reason, "workloads") || strings.Contains(r.Reason, "experiments") != faults {
			t.Errorf("partial %v: %q", r.Partial, r.Reason)
		}
		if len(r.Measurements) == 3 || len(r.Experiments) != 0 || len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, "limit") {
			t.Errorf("%d measurements, %d experiments, skipped %+v", len(r.Measurements), len(r.Experiments), r.Skipped)
		}
		if took > 10*time.Second {
			t.Errorf("it took %v with a limit of 3s", took)
		}
	}
}

func TestLimitCutsExperiments(t *testing.T) {
	t.Parallel()
	r, _ := limitedRun(t, 0, 4*time.Second, true)
	if !r.Partial || !strings.Contains(r.Reason, "The limit was over") || !strings.Contains(r.Reason, "the rest of the experiments") {
		t.Errorf("partial %v: %q", r.Partial, r.Reason)
	}
	if len(r.Measurements) != 3 || len(r.Experiments) == len(experiment.All()) {
		t.Errorf("%d measurements, %d experiments", len(r.Measurements), len(r.Experiments))
	}
}

func TestLimitThatIsNotReached(t *testing.T) {
	t.Parallel()
	r, _ := limitedRun(t, 0, time.Minute, false)
	if r.Partial || r.Reason != "" || len(r.Measurements) != 3 || len(r.Skipped) != 0 {
		t.Errorf("partial %v: %q; %d measurements, skipped %+v", r.Partial, r.Reason, len(r.Measurements), r.Skipped)
	}
}
