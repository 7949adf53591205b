package benchcmd

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/goidem/idem/bench/report"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/bench/workload"
)

// atOnce is a strategy that sends nothing before its end.
type atOnce struct{ slow }

func (a atOnce) Info() strategy.Info {
	i := a.slow.Info()
	i.AtOnce = true
	return i
}

func (a atOnce) Open(ctx context.Context, env strategy.Env) (strategy.Runner, error) {
	return a.slow.Open(ctx, env)
}

// That a strategy does not reach a point is in the file of the report, and not only in what
// the experiments answered: the tables are made from the file.
func TestWhatIsNotReachedIsReported(t *testing.T) {
	t.Parallel()
	p := &plan{strategies: []strategy.Strategy{atOnce{slow{workload.NewLedger(), 0}}}, out: t.TempDir(), dir: t.TempDir(), experiments: []string{"worker killed after reserve"}}
	var said bytes.Buffer
	r := &runner{plan: p, screen: newScreen(&said), report: &result.Report{Started: time.Now()}}
	if err := r.run(t.Context()); err != nil {
		t.Fatalf("%v; %s", err, said.String())
	}
	kept, err := result.ReadFile(filepath.Join(p.out, report.JSONFile))
	if err != nil {
		t.Fatal(err)
	}
	if s := kept.Skipped; len(s) != 1 || !s[0].NotReached || s[0].What != "worker killed after reserve" || s[0].Reason == "" {
		t.Errorf("skipped: %+v; want the one experiment, as not reached", s)
	}
}
