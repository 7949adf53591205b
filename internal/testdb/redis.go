package testdb

import (
	"context"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

// RedisServer is a Redis server.
type RedisServer struct {
	srv *throwaway.Redis
}

// Redis returns the Redis server that the tests of this binary share. The first call starts it. It
// writes nothing to disk, and nobody flushes it: a test uses keys with a prefix of its own. The test is
// skipped when Redis is not installed, or fails when IDEM_TEST_REQUIRE asks for it.
func Redis(tb testing.TB) *RedisServer {
	tb.Helper()
	r, err := session.redis.get(func() (*RedisServer, error) { return startRedis(starting(tb), throwaway.RedisOptions{}) })
	need(tb, "redis", err)
	return r
}

// StartRedis starts a Redis server of the test's own, which goes when the test ends. The arguments are
// those of redis-server, as in "--appendonly", "yes"; without any, it writes nothing to disk. It skips
// and fails as [Redis] does.
func StartRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	r, err := startRedis(starting(tb), throwaway.RedisOptions{Args: args})
	need(tb, "redis", err)
	tb.Cleanup(r.srv.Close)
	return r
}

func startRedis(ctx context.Context, o throwaway.RedisOptions) (*RedisServer, error) {
	host, err := open()
	if err != nil {
		return nil, err
	}
	srv, err := host.Redis(ctx, o)
	return &RedisServer{srv}, err
}

// Addr returns the server's address, host and port.
func (r *RedisServer) Addr() string { return r.srv.Addr() }

// URL returns the URL of the server's database 0, with the password if it has one.
func (r *RedisServer) URL() string { return r.srv.URL() }

// Dir returns the folder of the server's files.
func (r *RedisServer) Dir() string { return r.srv.Dir() }

// Do sends one command and returns its answer, an array's elements one per line.
func (r *RedisServer) Do(tb testing.TB, command ...string) string {
	tb.Helper()
	answer, err := r.srv.Do(command...)
	if err != nil {
		tb.Fatalf("testdb: redis %s: %v", command[0], err)
	}
	return answer
}

// Kill ends the server at once. What it has handed to the kernel survives.
func (r *RedisServer) Kill(tb testing.TB) {
	tb.Helper()
	if err := r.srv.Kill(); err != nil {
		tb.Fatal(err)
	}
}

// Restart starts the server again, after Kill, after Stop or while it runs, on the same port and
// files. It returns when the server answers, which is after it has read them.
func (r *RedisServer) Restart(tb testing.TB) {
	tb.Helper()
	if err := r.srv.Restart(starting(tb)); err != nil {
		tb.Fatal(err)
	}
}

// Stop shuts the server down in order: what its settings tell it to persist, it persists.
func (r *RedisServer) Stop() { r.srv.Stop() }
