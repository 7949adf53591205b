package strategy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/bench/workload"
	"github.com/goidem/idem/internal/testdb"
)

// bounds notes how many connections were open at each bound of a measured round, where
// the wire is asked for.
type bounds struct {
	strategy.Runner
	dials []int64
}

func (b *bounds) Wire() int64 {
	b.dials = append(b.dials, strategy.Dials(b.Runner))
	return b.Runner.Wire()
}

// All connections of a round are open before it, however little of them the warm-up had use
// for: a round would measure how fast a server accepts.
func TestRoundsOpenNoConnections(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t).AdminURL()
	redis := testdb.Redis(t).URL()
	for _, s := range strategy.All() {
		needs := s.Info().Needs
		if len(needs) == 0 || slices.Contains(needs, strategy.Cockroach) {
			continue
		}
		t.Run(s.Info().Name, func(t *testing.T) {
			const callers = 8
			env := strategy.Env{
				URLs:  map[strategy.Server]string{strategy.Postgres: pg, strategy.Redis: redis},
				Place: "dials_" + strings.ReplaceAll(s.Info().Name, "-", "_"), Effects: workload.NewLedger(),
			}
			r, err := s.Open(t.Context(), env)
			if err != nil {
				t.Fatal(err)
			}
			defer strategy.Erase(t.Context(), env)
			defer r.Close()
			b := &bounds{Runner: r}
			spec := workload.Spec{Workload: result.Workload{Name: "dials", Callers: callers, Length: 50 * time.Millisecond}, Warmup: 2 * callers}
			for round := range 2 {
				b.dials = nil
				if _, err := workload.RunRound(t.Context(), b, spec, round, nil); err != nil {
					t.Fatal(err)
				}
				if len(b.dials) != 2 || b.dials[0] == 0 || b.dials[1] != b.dials[0] {
					t.Errorf("round %d: %d connections had been opened at its bounds; want two equal numbers above 0", round, b.dials)
				}
			}
		})
	}
}
