//go:build unix

package redis

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// TestClusterChangesUnderWay: one master that hangs holds up its own keys and nobody
// else's, nothing is sent twice to the others, and calls follow a slot that is moving and
// one that has moved.
func TestClusterChangesUnderWay(t *testing.T) {
	t.Parallel()
	nodes := testdb.StartClusterNodes(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}, ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, "")
	slotOf := func(r *backend.ReserveRequest) int {
		n, err := strconv.Atoi(nodes[0].Do(t, "CLUSTER", "KEYSLOT", s.key(&r.ID)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var of [3][]backend.ReserveRequest // by master
	for i := 0; len(of[0]) < 20 || len(of[1]) < 20 || len(of[2]) < 20; i++ {
		r := request(fmt.Sprint("k", i))
		master := slotOf(&r) * 3 / 16384
		of[master] = append(of[master], r)
	}
	reserve := func(r backend.ReserveRequest) {
		if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
			t.Errorf("%s: %v, %v; want acquired", r.ID.Key, res.Outcome, err)
		}
	}

	goOn := freeze(t, nodes[1])
	var frozen, others sync.WaitGroup
	for i := range 20 {
		frozen.Go(func() { reserve(of[1][i]) })
		for _, m := range []int{0, 2} {
			others.Go(func() { reserve(of[m][i]) })
		}
	}
	others.Wait() // while the second master hangs
	goOn()
	frozen.Wait()
	for _, m := range []int{0, 2} {
		if stats := nodes[m].Do(t, "INFO", "commandstats"); !strings.Contains(stats, "cmdstat_set:calls=20,") {
			t.Errorf("master %d was sent more or less than its 20 keys:\n%s", m, stats)
		}
	}

	// A slot on its way from the second to the third: what is not there is asked for here.
	r, old := of[1][0], of[1][1]
	slot := strconv.Itoa(slotOf(&r))
	ids := [2]string{nodes[1].Do(t, "CLUSTER", "MYID"), nodes[2].Do(t, "CLUSTER", "MYID")}
	nodes[1].Do(t, "DEL", s.key(&r.ID))
	nodes[2].Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
	nodes[1].Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
	r = request(r.ID.Key)
	reserve(r)
	if got := nodes[2].Do(t, "CLUSTER", "COUNTKEYSINSLOT", slot); got != "1" {
		t.Errorf("the new owner of the slot has %s keys in it; want 1", got)
	}
	if _, err := s.Complete(t.Context(), completion(r.Ref, "x")); err != nil {
		t.Errorf("Complete in a slot under way: %v", err)
	}
	for i := 2; i >= 0; i-- {
		nodes[i].Do(t, "CLUSTER", "SETSLOT", slot, "NODE", ids[1])
	}
	// It has arrived, and the client does not know: a crowd finds out, each for itself.
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if rec, err := s.Get(t.Context(), r.ID); err != nil || string(rec.Body) != "x" {
				t.Errorf("Get after the move: %q, %v", rec.Body, err)
			}
			if i == 0 {
				if _, err := s.Complete(t.Context(), completion(old.Ref, "y")); err != nil {
					t.Errorf("Complete beside it: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
