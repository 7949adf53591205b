package redis

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

// fullVariable asks for the whole suite where a part of it is run otherwise: on a
// Cluster, with AOF, and with scripts that are forgotten all the time.
const fullVariable = "IDEM_TEST_FULL"

// short narrows a harness to the checks whose answer could depend on how the
// server is run.
func short(fresh func(tb testing.TB) *backendtest.Harness) func(tb testing.TB) *backendtest.Harness {
	if os.Getenv(fullVariable) != "" {
		return fresh
	}
	names := []string{
		"/R01/OneWinnerAmongManyReserves", "/R01/OneTakeOverOfTheSameFence", "/R04/FenceGrowsAfterCleanUp", "/R05/ListComparesScopesAsTheyAre",
		"/R05/ListShowsEveryRecordOnce", "/R06/TakeOverOfFreeRecords", "/R12/CompleteIsAccepted", "/R12/CompleteByAStrangerChangesNothing",
		"/R15/BytesComeBackAsTheyWere", "/R22/AfterTheReplayWindowOnlyTheBodyIsGone",
		"/Model/",
	}
	return func(tb testing.TB) *backendtest.Harness {
		for _, name := range names {
			if strings.Contains(tb.Name(), name) {
				return fresh(tb)
			}
		}
		tb.Skipf("a part of the suite is enough here; set %s for all of it", fullVariable)
		return nil
	}
}

func newCluster(t *testing.T) *redis.ClusterClient {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testdb.StartCluster(t, 3), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestClusterConformance(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	t.Run("suite", func(t *testing.T) { backendtest.Run(t, short(harness(c, nil))) })
}

// TestSentinelConformance: through Sentinel, with a replica that acknowledges.
func TestSentinelConformance(t *testing.T) {
	t.Parallel()
	primary := testdb.StartRedis(t)
	testdb.StartReplica(t, primary)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: testdb.MasterName, SentinelAddrs: testdb.StartSentinels(t, primary, 3), ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	t.Run("suite", func(t *testing.T) { backendtest.Run(t, short(harness(client, nil))) })
}

func TestConformanceWithoutScripts(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t)
	client := newClient(t, srv.Addr())
	t.Run("suite", func(t *testing.T) { backendtest.Run(t, short(harness(client, flushScripts))) })
}

func TestConformanceAOF(t *testing.T) {
	t.Parallel()
	client := newClient(t, testdb.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always").Addr())
	t.Run("suite", func(t *testing.T) { backendtest.Run(t, short(harness(client, nil))) })
}

// TestCaseC32_BracesDoNotSteer: the caller's key decides no slot, and a record and its
// body share one.
func TestCaseC32_BracesDoNotSteer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := newStore(t, c, newPrefix())
	keys := []string{"order:{1}:{2}", "{}", "}{", "user{a", "{a}{b}", strings.Repeat("{", backend.MaxKey)}
	for _, key := range keys {
		r := request(key)
		res, err := s.Reserve(t.Context(), r)
		if err != nil || res.Outcome != backend.Acquired {
			t.Fatalf("Reserve of %q: %v, %v", key, res.Outcome, err)
		}
		if err := s.Renew(t.Context(), r.Ref, 2*r.TTL); err != nil {
			t.Errorf("Renew of %q: %v", key, err)
		}
		if err := s.Release(t.Context(), r.Ref); err != nil {
			t.Errorf("Release of %q: %v", key, err)
		}
		r.Owner, r.TakeOver, r.OnAbandoned = token(), res.Record.Fence, backend.Hold
		if res, err = s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
			t.Fatalf("takeover of %q: %v, %v", key, res.Outcome, err)
		}
		if _, err := s.Complete(t.Context(), completion(r.Ref, string(large('x')))); err != nil {
			t.Errorf("Complete of %q: %v", key, err)
		}
		if rec, err := s.Get(t.Context(), r.ID); err != nil || len(rec.Body) != inlineBody+1 {
			t.Errorf("Get of %q: %d bytes, %v", key, len(rec.Body), err)
		}
	}
	seen := 0
	for rec, err := range s.List(t.Context(), backend.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		seen++
		if err := s.Forget(t.Context(), backend.ForgetRequest{ID: rec.ID, Fence: rec.Fence}); err != nil {
			t.Errorf("Forget of %q: %v", rec.ID.Key, err)
		}
	}
	if seen != len(keys) {
		t.Errorf("List shows %d records; want %d", seen, len(keys))
	}
	slots := make(map[int64]int)
	pipe := c.Pipeline()
	const n = 10_000
	cmds := make([]*redis.IntCmd, 0, 2*n)
	for i := range n {
		key := s.key(&backend.ID{Operation: "pay", Key: fmt.Sprintf("{constant}-%d", i)})
		cmds = append(cmds, pipe.ClusterKeySlot(t.Context(), key), pipe.ClusterKeySlot(t.Context(), s.bodyKey(key)))
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(cmds); i += 2 {
		if cmds[i].Val() != cmds[i+1].Val() {
			t.Fatalf("a record is in slot %d and its body in %d", cmds[i].Val(), cmds[i+1].Val())
		}
		slots[cmds[i].Val()]++
	}
	for slot, k := range slots {
		if k > n/100 {
			t.Errorf("slot %d holds %d of %d keys", slot, k, n)
		}
	}
}
