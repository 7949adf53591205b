package experiment

import (
	"context"

	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/internal/throwaway"
)

// Server is a server that was started for the run and may be hurt.
type Server interface {
	URL() string
	// Kill ends it at once, with all its processes, as SIGKILL does.
	Kill() error
	// Restart starts it again, on the same address and data, and returns when it answers.
	Restart() error
	// Stop ends it for good and throws its data away.
	Stop() error
}

// Servers starts servers for experiments. A nil function: there are none, and the
// experiments that need one are skipped.
type Servers struct {
	Postgres func(ctx context.Context) (Server, error)
	// Redis starts redis-server with these arguments, as in ("--appendonly", "no").
	Redis func(ctx context.Context, args ...string) (Server, error)
}

// On returns the servers that a host starts.
func On(host *throwaway.Host) Servers {
	return Servers{
		Postgres: func(ctx context.Context) (Server, error) {
			pg, err := host.Postgres(ctx, throwaway.PGOptions{})
			if err != nil {
				return nil, err
			}
			return postgresServer{pg}, nil
		},
		Redis: func(ctx context.Context, args ...string) (Server, error) {
			r, err := host.Redis(ctx, throwaway.RedisOptions{Args: args})
			if err != nil {
				return nil, err
			}
			return redisServer{r}, nil
		},
	}
}

type postgresServer struct{ *throwaway.PG }

func (s postgresServer) URL() string    { return s.AdminURL() }
func (s postgresServer) Restart() error { return s.PG.Restart(context.Background()) }
func (s postgresServer) Stop() error    { s.PG.Close(); return nil }

type redisServer struct{ *throwaway.Redis }

func (s redisServer) Restart() error { return s.Redis.Restart(context.Background()) }
func (s redisServer) Stop() error    { s.Redis.Close(); return nil }

// Config is what to run.
type Config struct {
	Strategies []strategy.Strategy
	// Experiments are names out of All; empty means all of them.
	Experiments []string
	// Dir is an empty folder on a disk, for stores and ledgers.
	Dir string
	// URLs are servers that must not be hurt; they serve the experiments that hurt none.
	URLs    map[strategy.Server]string
	Servers Servers
	// Full takes many rounds instead of a few.
	Full bool
	Seed uint64

	rounds int // of each experiment, in tests; 0: as Full says
}
