package experiment

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/goidem/idem/bench/strategy"
)

// named returns strategies by name.
func named(t *testing.T, names ...string) []strategy.Strategy {
	t.Helper()
	var some []strategy.Strategy
	for _, name := range names {
		s, err := strategy.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		some = append(some, s)
	}
	return some
}

// made is a strategy of this test.
type made struct {
	info strategy.Info
	do   func(ctx context.Context, env strategy.Env, op strategy.Op) (strategy.Outcome, error)
}

func (m made) Info() strategy.Info { return m.info }

func (m made) Open(_ context.Context, env strategy.Env) (strategy.Runner, error) {
	return madeRunner{m, env}, nil
}

type madeRunner struct {
	made
	env strategy.Env
}

func (r madeRunner) Do(ctx context.Context, op strategy.Op) (strategy.Outcome, error) {
	return r.do(ctx, r.env, op)
}
func (r madeRunner) Effects() strategy.Ledger                      { return r.env.Effects }
func (r madeRunner) Usage(context.Context) (strategy.Usage, error) { return strategy.Usage{}, nil }
func (r madeRunner) Flushes(context.Context) (int64, error)        { return 0, nil }
func (r madeRunner) Wire() int64                                   { return 0 }
func (r madeRunner) Close() error                                  { return nil }

// The naive ones must be seen to fail, and those that promise must not.
func TestStorm(t *testing.T) {
	rows, _ := run(t, Config{Strategies: named(t, "none", "bolt-check", "lru-window", "memory-lease", "bolt-lease", "bolt-tx"), Experiments: []string{faultStorm}})
	for name, want := range map[string]string{"none": HarmShown, "bolt-check": HarmShown, "lru-window": Kept, "memory-lease": Kept, "bolt-lease": Kept, "bolt-tx": Kept} {
		e := rows[[2]string{name, faultStorm}]
		if e.Verdict != want || e.Rounds != 3 || e.Fired == 0 {
			t.Errorf("%s: %+v; want %s", name, e, want)
		}
		if want == HarmShown && (e.DuplicateEffects == 0 || e.Upper95 <= 0.05) || want == Kept && e.DuplicateEffects > 0 {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// What a strategy promises and does not keep is called broken, and a strategy that
// promises nothing and does no harm makes an experiment that did not bite.
func TestVerdictsOfRuns(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]bool)
	careful := made{strategy.Info{Name: "careful", Family: strategy.Naive, Survives: "everything"},
		func(ctx context.Context, env strategy.Env, op strategy.Op) (strategy.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			if seen[op.Key] {
				return strategy.Replayed, nil
			}
			seen[op.Key] = true
			return strategy.Executed, env.Effects.Apply(ctx, op.Key, op.Caller)
		}}
	boastful := made{strategy.Info{Name: "boastful", Family: strategy.Transactional, Survives: "everything"},
		func(ctx context.Context, env strategy.Env, op strategy.Op) (strategy.Outcome, error) {
			return strategy.Executed, env.Effects.Apply(ctx, op.Key, op.Caller)
		}}
	forgetful := made{strategy.Info{Name: "forgetful", Family: strategy.Transactional, Survives: "everything"},
		func(context.Context, strategy.Env, strategy.Op) (strategy.Outcome, error) {
			return strategy.Replayed, nil
		}}
	rows, _ := run(t, Config{Strategies: []strategy.Strategy{careful, boastful, forgetful}, Experiments: []string{faultStorm}})
	if e := rows[[2]string{"careful", faultStorm}]; e.Verdict != DidNotBite {
		t.Errorf("careful: %+v", e)
	}
	if e := rows[[2]string{"boastful", faultStorm}]; e.Verdict != Broken || e.DuplicateEffects == 0 {
		t.Errorf("boastful: %+v", e)
	}
	if e := rows[[2]string{"forgetful", faultStorm}]; e.Verdict != Broken || e.LostEffects != e.Keys {
		t.Errorf("forgetful: %+v", e)
	}
}

// Workers die at their point, really, and what they leave is counted.
func TestKilledWorkers(t *testing.T) {
	t.Parallel() // it mostly waits for leases
	faults := []string{faultAfterReserve, faultAfterEffect, faultAfterComplete}
	rows, _ := run(t, Config{rounds: 2, Strategies: named(t, "bolt-check", "lru-window", "bolt-lease", "bolt-tx"), Experiments: faults, Seed: 1})
	want := map[string][3]string{
		"bolt-check": {Kept, HarmShown, Kept},
		"lru-window": {HarmShown, HarmShown, HarmShown},
		"bolt-lease": {Kept, Kept, Kept},
		"bolt-tx":    {Kept, Kept, Kept},
	}
	for name, verdicts := range want {
		for i, fault := range faults {
			e := rows[[2]string{name, fault}]
			if e.Verdict != verdicts[i] || e.Fired != 2 || e.Rounds != 2 || e.Keys != 12 {
				t.Errorf("%s, %s: %+v; want %s", name, fault, e, verdicts[i])
			}
		}
	}
	// Between the effect and its record only a common commit leaves no gap.
	if e := rows[[2]string{"bolt-lease", faultAfterEffect}]; e.DuplicateEffects == 0 || e.Promise != AtLeastOnce {
		t.Errorf("bolt-lease: %+v; the experiment did not hit the gap that lease mode has", e)
	}
	if e := rows[[2]string{"bolt-tx", faultAfterEffect}]; e.DuplicateEffects != 0 {
		t.Errorf("bolt-tx: %+v", e)
	}
}

func TestClockAndExpiry(t *testing.T) {
	t.Parallel()
	rows, skipped := run(t, Config{Strategies: named(t, "none", "bolt-lease", "bolt-tx"), Experiments: []string{faultClock, faultExpired}})
	for key, want := range map[[2]string]string{
		{"bolt-lease", faultClock}: Kept, {"bolt-tx", faultClock}: Kept,
		{"none", faultExpired}: HarmShown, {"bolt-lease", faultExpired}: HarmShown, {"bolt-tx", faultExpired}: HarmShown,
	} {
		if rows[key].Verdict != want {
			t.Errorf("%v: %+v; want %s", key, rows[key], want)
		}
	}
	if len(skipped) != 1 || skipped[0].Strategy != "none" || skipped[0].What != faultClock {
		t.Errorf("skipped: %+v; want none, which has no clock", skipped)
	}
}

// A strategy that does not look at the clock after it was stepped has not met the fault.
func TestClockThatNobodyReadsHasNotFired(t *testing.T) {
	looks := func(always bool) made {
		var mu sync.Mutex
		seen := make(map[string]bool)
		return made{strategy.Info{Name: "looks", Family: strategy.Lease, Survives: "everything"},
			func(ctx context.Context, env strategy.Env, op strategy.Op) (strategy.Outcome, error) {
				mu.Lock()
				known := seen[op.Key]
				seen[op.Key] = true
				mu.Unlock()
				if always || !known {
					env.Now()
				}
				if known {
					return strategy.Replayed, nil
				}
				if op.Pause != nil {
					if err := op.Pause(ctx, strategy.AfterReserve); err != nil {
						return "", err
					}
				}
				return strategy.Executed, env.Effects.Apply(ctx, op.Key, op.Caller)
			}}
	}
	for always, fired := range map[bool]int{true: 2, false: 0} {
		rows, _ := run(t, Config{Strategies: []strategy.Strategy{looks(always)}, Experiments: []string{faultClock}})
		if e := rows[[2]string{"looks", faultClock}]; e.Fired != fired || e.Rounds != 2 {
			t.Errorf("looks after each step: %v: %+v; want %d fired", always, e, fired)
		}
	}
}

// Why a server's clock stands: what is said is true of that server.
func TestServerClocksAreNotStepped(t *testing.T) {
	c := Config{Experiments: []string{faultClock}, URLs: make(map[strategy.Server]string)}
	for _, server := range []strategy.Server{strategy.Postgres, strategy.Redis, strategy.Cockroach} {
		c.URLs[server] = "nowhere"
		c.Strategies = append(c.Strategies, made{info: strategy.Info{Name: string(server), Needs: []strategy.Server{server}}})
	}
	_, skipped := run(t, c)
	if len(skipped) != 3 {
		t.Fatalf("%+v", skipped)
	}
	for _, s := range skipped {
		redis := s.Strategy == string(strategy.Redis)
		if strings.Contains(s.Reason, "TestFaultServerClockMoves") != redis || strings.Contains(s.Reason, "libfaketime") == redis {
			t.Errorf("%s: %s", s.Strategy, s.Reason)
		}
	}
}

// What leaves the process at once, at its end, is not met by a kill before that: no tick.
func TestPointsThatAreNotReachedAreLeftOut(t *testing.T) {
	queued := made{info: strategy.Info{Name: "queued", Family: strategy.Transactional, Survives: "everything", AtOnce: true}}
	rows, skipped := run(t, Config{Strategies: []strategy.Strategy{queued}, Experiments: []string{faultAfterReserve, faultAfterEffect}})
	if len(rows) != 0 || len(skipped) != 2 || !skipped[0].NotReached || !skipped[1].NotReached {
		t.Errorf("%+v, skipped: %+v; want both left out as not reached", rows, skipped)
	}
	for _, s := range strategy.All() {
		if info := s.Info(); info.AtOnce != (info.Name == "pg-tx-queued") || !info.Reaches(strategy.AfterComplete) ||
			info.Reaches(strategy.AfterReserve) == info.AtOnce || info.Reaches(strategy.AfterEffect) == info.AtOnce {
			t.Errorf("%s: at once: %v, and it reaches other points than that", info.Name, info.AtOnce)
		}
	}
}

func TestWhatCannotRunIsSkipped(t *testing.T) {
	rows, skipped := run(t, Config{Strategies: named(t, "pg-tx", "bolt-batch", "none"), Experiments: []string{faultStorm}})
	if len(rows) != 1 || len(skipped) != 1 || skipped[0].Strategy != "pg-tx" || !strings.Contains(skipped[0].Reason, "postgres") {
		t.Errorf("%v, %+v; want pg-tx skipped for want of a server, and floors left out", rows, skipped)
	}
}

func TestInterruptedRunKeepsWhatIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, _, err := Run(ctx, Config{Dir: t.TempDir(), Strategies: named(t, "none"), Experiments: []string{faultStorm, faultExpired}}, func(_ float64, what string) {
		if strings.HasPrefix(what, faultExpired) {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(done) != 1 {
		t.Errorf("%d rows, %v; want that of the storm, and context.Canceled", len(done), err)
	}
}

func TestWorkersRefuseBadOrders(t *testing.T) {
	for _, text := range []string{"{", `{"Strategy":"unheard-of"}`} {
		if err := obey(text, strategy.All()); err == nil {
			t.Errorf("orders %q were obeyed", text)
		}
	}
}
