package redis

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

// quiet keeps the connections that tests break out of their output.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(quiet{})
	// The suite mostly waits, because nobody can move the server's clock: more of it
	// runs at once than there are processors.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	testdb.Main(m, func() error { return goleak.Find() })
}

// prefixes gives every test keys of its own on the shared server.
//
// lint:const a counter for names
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("t%d:", prefixes.Add(1)) }

// newClient returns a client of one server, closed when the test ends.
func newClient(tb testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// newStore returns a store on client.
func newStore(tb testing.TB, client redis.UniversalClient, prefix string) *Store {
	tb.Helper()
	s, err := New(tb.Context(), client, &Options{Prefix: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// harness runs the suite against client, whose server's clock nobody can move.
func harness(client redis.UniversalClient, after func(tb testing.TB, s *Store)) func(tb testing.TB) *backendtest.Harness {
	return func(tb testing.TB) *backendtest.Harness {
		prefix := newPrefix()
		store := newStore(tb, client, prefix)
		return &backendtest.Harness{
			Open: func(tb testing.TB) backend.Backend {
				s := *store // a handle holds nothing but the client
				if after != nil {
					after(tb, &s)
				}
				return &s
			},
			Advance:             time.Sleep,
			Tick:                5 * time.Millisecond,
			Unit:                300 * time.Millisecond,
			MaxAdvance:          5 * time.Second,
			Parallel:            true,
			FenceOutlivesRecord: true,
			Put:                 func(tb testing.TB, r backend.Record) { plant(tb, store, &r) },
			Damage: func(tb testing.TB, id backend.ID) {
				rewrite(tb, store, id, func(v []byte) []byte { return v[:headerSize+3] })
			},
			Future: func(tb testing.TB, id backend.ID) {
				rewrite(tb, store, id, func(v []byte) []byte { v[0] = 99; return v })
			},
		}
	}
}

// plant stores a record as it is.
func plant(tb testing.TB, s *Store, rec *backend.Record) {
	tb.Helper()
	value, _ := encode(rec)
	if err := s.client.Set(tb.Context(), s.key(&rec.ID), value, 0).Err(); err != nil {
		tb.Fatal(err)
	}
}

// rewrite changes the stored bytes of a record and keeps its expiry.
func rewrite(tb testing.TB, s *Store, id backend.ID, change func([]byte) []byte) {
	tb.Helper()
	key := s.key(&id)
	v, err := s.client.Get(tb.Context(), key).Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.client.Set(tb.Context(), key, change(append([]byte(nil), v...)), redis.KeepTTL).Err(); err != nil {
		tb.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, harness(newClient(t, testdb.Redis(t).Addr()), nil))
}

// flushScripts makes the server forget every script, as a restart or a failover
// does.
func flushScripts(tb testing.TB, s *Store) {
	err := s.client.ScriptFlush(context.WithoutCancel(tb.Context())).Err()
	if err != nil {
		tb.Fatal(err)
	}
}
