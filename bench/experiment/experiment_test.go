package experiment

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/internal/throwaway"
)

func TestMain(m *testing.M) {
	ChildMain(strategy.All())
	testdb.Main(m, func() error {
		// go-redis tries a killed server again each second, and sees only then that its pool is closed.
		return goleak.Find(goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
	})
}

// run runs experiments and returns their rows by strategy and fault.
func run(t *testing.T, c Config) (map[[2]string]result.Experiment, []result.Skip) {
	t.Helper()
	c.Dir = t.TempDir()
	begun := time.Now()
	done, skipped, err := Run(t.Context(), c, func(share float64, what string) {
		if testing.Verbose() {
			fmt.Fprintf(os.Stderr, "%3.0f%% %6.1fs %s\n", share*100, time.Since(begun).Seconds(), what)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[[2]string]result.Experiment)
	for _, e := range done {
		t.Logf("%-14s %-34s owes %-13s %s: %d rounds, %d fired, %d keys, %d twice, %d lost, %d stuck, <= %.2f, %v (%v) %s", e.Strategy, e.Fault, e.Promise, e.Verdict,
			e.Rounds, e.Fired, e.Keys, e.DuplicateEffects, e.LostEffects, e.StuckKeys, e.Upper95, e.Recovery, e.Longest, e.Note)
		rows[[2]string{e.Strategy, e.Fault}] = e
	}
	for _, s := range skipped {
		t.Logf("skipped %s, %s: %s", s.Strategy, s.What, s.Reason)
	}
	return rows, skipped
}

// TestEverything is for people: all experiments on all strategies and servers that there
// are, with IDEM_BENCH_EXPERIMENTS=quick or full.
func TestEverything(t *testing.T) {
	size := os.Getenv("IDEM_BENCH_EXPERIMENTS")
	if size == "" {
		t.Skip("IDEM_BENCH_EXPERIMENTS is not set")
	}
	host, err := throwaway.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	c := Config{Strategies: strategy.All(), Servers: On(host), Full: size == "full", Seed: 1, URLs: make(map[strategy.Server]string)}
	if s, err := c.Servers.Postgres(context.Background()); err == nil {
		c.URLs[strategy.Postgres] = s.URL()
	}
	if s, err := c.Servers.Redis(context.Background(), "--appendonly", "yes", "--appendfsync", "always"); err == nil {
		c.URLs[strategy.Redis] = s.URL()
	}
	if size == "local" {
		c.Servers, c.URLs = Servers{}, nil
	}
	rows, _ := run(t, c)
	for _, e := range rows {
		if e.Verdict == Broken {
			t.Errorf("%s broke its promise under %q: %+v", e.Strategy, e.Fault, e)
		}
	}
}
