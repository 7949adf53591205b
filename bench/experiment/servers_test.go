package experiment

import (
	"context"
	"sync"
	"testing"

	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/internal/throwaway"
)

func startHost(t *testing.T) *throwaway.Host {
	t.Helper()
	host, err := throwaway.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	return host
}

// A storm over a server has fired where both processes were at a key at the same time; the
// effects are then of both of them, where nothing keeps them apart.
func TestStormOfTwoProcesses(t *testing.T) {
	t.Parallel()
	pg, redis := testdb.Postgres(t), testdb.Redis(t)
	rows, _ := run(t, Config{
		Strategies:  named(t, "pg-check", "pg-lease", "pg-tx-queued", "redis-lease"),
		Experiments: []string{faultStorm},
		URLs:        map[strategy.Server]string{strategy.Postgres: pg.Database(t), strategy.Redis: redis.URL()}, Seed: 1,
	})
	for name, want := range map[string]string{"pg-check": HarmShown, "pg-lease": Kept, "pg-tx-queued": Kept, "redis-lease": Kept} {
		e := rows[[2]string{name, faultStorm}]
		if e.Verdict != want || e.Fired != e.Rounds || e.Trials < e.Keys/2 {
			t.Errorf("%s: %+v; want %s, and most keys met by both processes", name, e, want)
		}
	}
}

// A server is killed at a point that the strategy reaches, or nothing would be at stake.
func TestServerKilledWhereItMatters(t *testing.T) {
	t.Parallel()
	server := &pointServer{url: testdb.Postgres(t).Database(t)}
	s := atOnce{made{info: strategy.Info{Name: "queued", Family: strategy.Transactional, Survives: "everything", Needs: []strategy.Server{strategy.Postgres}, AtOnce: true}}, server}
	rows, _ := run(t, Config{
		Strategies: []strategy.Strategy{s}, Experiments: []string{faultServer}, rounds: 6,
		URLs:    map[strategy.Server]string{strategy.Postgres: server.url},
		Servers: Servers{Postgres: func(context.Context) (Server, error) { return server, nil }},
	})
	if e := rows[[2]string{"queued", faultServer}]; e.Fired != 6 {
		t.Errorf("%+v; want a kill in each round", e)
	}
	for _, at := range server.killed {
		if at != strategy.AfterComplete {
			t.Errorf("killed %s, where nothing was sent yet", at)
		}
	}
}

// pointServer notes at which point of an operation it is killed, and goes on.
type pointServer struct {
	url    string
	mu     sync.Mutex
	at     strategy.Point
	killed []strategy.Point
}

func (s *pointServer) URL() string    { return s.url }
func (s *pointServer) Kill() error    { s.killed = append(s.killed, s.at); return nil }
func (s *pointServer) Restart() error { return nil }
func (s *pointServer) Stop() error    { return nil }

// atOnce passes all points of an operation, one operation at a time.
type atOnce struct {
	made
	server *pointServer
}

func (a atOnce) Open(_ context.Context, env strategy.Env) (strategy.Runner, error) {
	m := a.made
	m.do = func(ctx context.Context, env strategy.Env, op strategy.Op) (strategy.Outcome, error) {
		a.server.mu.Lock()
		defer a.server.mu.Unlock()
		for _, at := range []strategy.Point{strategy.AfterReserve, strategy.AfterEffect, strategy.AfterComplete} {
			if a.server.at = at; op.Pause != nil {
				if err := op.Pause(ctx, at); err != nil {
					return "", err
				}
			}
		}
		return strategy.Executed, env.Effects.Apply(ctx, op.Key, op.Caller)
	}
	return madeRunner{m, env}, nil
}

// A commit that is cut before the server sees it, or after it was done, leaves one
// effect in a transaction and two with check-then-act.
func TestCutAtCommit(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	rows, _ := run(t, Config{
		Strategies:  named(t, "pg-check", "pg-tx", "pg-tx-queued"),
		Experiments: []string{faultCut}, rounds: 2, URLs: map[strategy.Server]string{strategy.Postgres: pg.Database(t)}, Seed: 1,
	})
	for name, want := range map[string]string{"pg-check": HarmShown, "pg-tx": Kept, "pg-tx-queued": Kept} {
		if e := rows[[2]string{name, faultCut}]; e.Verdict != want || e.Fired != e.Rounds {
			t.Errorf("%s: %+v; want %s, and a cut in each round", name, e, want)
		}
	}
}

// A Redis that forgets makes every strategy on it run again.
func TestForgettingRedis(t *testing.T) {
	t.Parallel()
	shared := testdb.Redis(t)
	faults := []string{faultVolatile, faultFlushed, faultFailover, faultEvicting}
	rows, _ := run(t, Config{
		Strategies: named(t, "redis-lock", "redis-window", "redis-lease"), Experiments: faults, rounds: 1,
		URLs: map[strategy.Server]string{strategy.Redis: shared.URL()}, Servers: On(startHost(t)),
	})
	for _, name := range []string{"redis-lock", "redis-window", "redis-lease"} {
		for _, fault := range faults {
			if e := rows[[2]string{name, fault}]; e.Verdict != HarmShown || e.Fired == 0 {
				t.Errorf("%s, %s: %+v; want harm shown", name, fault, e)
			}
		}
	}
}
