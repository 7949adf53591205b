package crashtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/redis"
)

const (
	lossOps     = 10_000 // per setting, in the long form
	lossPerCut  = 500    // operations around each fault
	lossCallers = 8
	lossPace    = 30 * time.Millisecond // between two operations of one caller: some 250 a second in all
	lossBehind  = 20 * time.Millisecond // how long a replica has been cut off when it is promoted
)

// lossSetting is a way to run Redis and what happens to it. start returns the URL before
// the fault, and a function that makes it happen and returns the URL from then on.
type lossSetting struct {
	name  string
	zero  bool // it is promised to lose nothing
	o     redis.Options
	start func(t *testing.T) (url string, fault func() string)
}

// TestFaultsRedisLoss counts, for each durability setting, what Redis forgets of what it has
// acknowledged, and how often an operation runs once more than it should. A fault strikes
// while eight callers are under way; each call is made again until it is acknowledged, and
// everything that was acknowledged is asked for once more in the end.
func TestFaultsRedisLoss(t *testing.T) {
	goredis.SetLogger(quietLog{}) // it would report each connection that a killed server refuses
	rounds, perCut, long := 1, 100, false
	if n, _ := strconv.Atoi(os.Getenv("IDEM_FAULT_ROUNDS")); n > 0 {
		rounds, perCut, long = lossOps/lossPerCut, lossPerCut, true
	}
	settings := []lossSetting{
		{"appendfsync always, killed", true, redis.Options{}, lossKilled("--appendonly", "yes", "--appendfsync", "always")},
		{"appendfsync always, power cut", true, redis.Options{}, lossPower("always")},
		{"appendfsync everysec, killed", false, redis.Options{}, lossKilled("--appendonly", "yes", "--appendfsync", "everysec")},
		{"appendfsync everysec, power cut", false, redis.Options{}, lossPower("everysec")},
		{"no file, killed", false, redis.Options{}, lossKilled("--appendonly", "no")},
		{fmt.Sprintf("replica, %v behind, promoted", lossBehind), false, redis.Options{}, lossPromoted},
		{"the same, with AckReplicas 1", false, redis.Options{AckReplicas: 1}, lossPromoted},
		{"FLUSHALL", false, redis.Options{}, lossFlushed},
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "setting\toperations\tfaults\tacknowledged lost per 10,000\textra executions per 10,000")
	var mu sync.Mutex
	t.Run("settings", func(t *testing.T) {
		for _, s := range settings {
			if !long && !s.zero {
				continue // nothing can fail there: they are counted
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				var lost, extra, ops int
				for n := range rounds {
					t.Run(fmt.Sprint(n), func(t *testing.T) { // its servers go with it
						l, x := s.round(t, n, perCut)
						lost, extra, ops = lost+l, extra+x, ops+perCut
					})
				}
				if s.zero && lost+extra > 0 {
					t.Errorf("%d acknowledged results lost and %d extra executions; none are promised", lost, extra)
				}
				per := func(n int) float64 { return float64(n) * 10_000 / float64(ops) }
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(w, "%s\t%d\t%d\t%.4g\t%.4g\n", s.name, ops, rounds, per(lost), per(extra))
			})
		}
	})
	w.Flush()
	t.Logf("%s, one fault in %d operations, %.0f operations a second:\n%s",
		time.Now().UTC().Format(time.DateOnly), perCut, lossCallers/lossPace.Seconds(), table.String())
}

// round plays one fault and returns how many acknowledged results are gone, and how many
// executions there were beyond one for each key.
func (s *lossSetting) round(t *testing.T, n, keys int) (lost, extra int) {
	t.Helper()
	url, fault := s.start(t)
	var mu sync.Mutex
	ran, acked := make(map[string]int), make(map[string]string)
	done := make(chan struct{}, keys)
	c := newLossCaller(t, url, &s.o)
	call := func(c *idem.Store, key string) (idem.Result[string], error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return idem.Execute(ctx, c, idem.Scope{Operation: "loss"}, idem.Key(key), idem.FingerprintBytes(nil), func(context.Context) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			ran[key]++
			return fmt.Sprint(key, " run ", ran[key]), nil
		})
	}
	settle := func(get func() *idem.Store, key string) (string, error) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			res, err := call(get(), key)
			if err == nil {
				return res.Value, nil
			}
			if !errors.Is(err, idem.ErrUnavailable) && !errors.Is(err, idem.ErrInFlight) && !errors.Is(err, idem.ErrOutcomeUnknown) && !errors.Is(err, idem.ErrLeaseLost) || time.Now().After(end) {
				return "", err
			}
		}
	}
	get := func() *idem.Store { mu.Lock(); defer mu.Unlock(); return c }
	var wg sync.WaitGroup
	for i := range lossCallers {
		wg.Go(func() {
			for k := i; k < keys; k += lossCallers {
				key := fmt.Sprintf("%d/%d", n, k)
				v, err := settle(get, key)
				if err != nil {
					t.Errorf("%s: %v", key, err)
				}
				mu.Lock()
				acked[key] = v
				mu.Unlock()
				done <- struct{}{}
				time.Sleep(lossPace)
			}
		})
	}
	for range keys / 2 {
		<-done
	}
	if next := fault(); next != url {
		fresh := newLossCaller(t, next, nil) // the one that is left has no replica to wait for
		mu.Lock()
		c = fresh
		mu.Unlock()
	}
	wg.Wait()
	before := make(map[string]int)
	for key := range acked {
		before[key] = ran[key]
		extra += ran[key] - 1
	}
	for key, v := range acked {
		now, err := settle(get, key)
		if err != nil {
			t.Errorf("%s, in the end: %v", key, err)
		}
		if now != v {
			lost++
			extra += ran[key] - before[key]
		}
	}
	return lost, extra
}

func newLossCaller(t *testing.T, url string, o *redis.Options) *idem.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	// The lease outlasts a restart: what is under way is completed after it.
	store, err := idem.New(s, &idem.Options{LeaseTTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func lossKilled(args ...string) func(t *testing.T) (string, func() string) {
	return func(t *testing.T) (string, func() string) {
		server := testdb.StartRedis(t, args...)
		return server.URL(), func() string {
			server.Kill(t)
			server.Restart(t)
			return server.URL()
		}
	}
}

func lossPower(fsync string) func(t *testing.T) (string, func() string) {
	return func(t *testing.T) (string, func() string) {
		server, cut := testdb.StartRedisWithPower(t, "--appendonly", "yes", "--appendfsync", fsync)
		return server.URL(), func() string {
			cut()
			server.Restart(t)
			return server.URL()
		}
	}
}

// lossPromoted stops the replica's link a moment before the master dies, as a network that
// fails with it does.
func lossPromoted(t *testing.T) (string, func() string) {
	master := testdb.StartRedis(t)
	replica := testdb.StartReplica(t, master)
	return master.URL(), func() string {
		replica.Do(t, "REPLICAOF", "127.0.0.1", "1")
		time.Sleep(lossBehind)
		master.Kill(t)
		replica.Do(t, "REPLICAOF", "NO", "ONE")
		return replica.URL()
	}
}

func lossFlushed(t *testing.T) (string, func() string) {
	server := testdb.StartRedis(t)
	return server.URL(), func() string {
		server.Do(t, "FLUSHALL")
		return server.URL()
	}
}
