//go:build unix

package redis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/internal/testdb"
)

// freeze stops a server's process, as a long pause of its machine does: connections
// stay open and nothing answers. It returns the function that lets it go on.
func freeze(t *testing.T, srv *testdb.RedisServer) func() {
	t.Helper()
	pid, err := strconv.Atoi(infoFields(srv.Do(t, "INFO", "server"))["process_id"])
	if err != nil || pid <= 1 {
		t.Fatal(pid, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	on := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(on)
	return on
}

// TestCaseC40_FrozenReplica: a replica that is connected and has stopped acknowledges
// nothing, and one wait tells it to all writes of a batch.
func TestCaseC40_FrozenReplica(t *testing.T) {
	t.Parallel()
	primary := testdb.StartRedis(t)
	replica := testdb.StartReplica(t, primary)
	client := newClient(t, primary.Addr())
	const timeout = 200 * time.Millisecond
	a := mustAcks(t, client, 1, false, timeout)
	patient := mustAcks(t, client, 1, false, 4*time.Second)

	batch := func(a *acks, from int) (short error) {
		t.Helper()
		var cmds []redis.Cmder
		for i := range 10 {
			cmds = append(cmds, redis.NewStatusCmd(t.Context(), "set", fmt.Sprint("k", from+i), "v"))
		}
		c := &call{cmds: cmds, acked: true}
		if left := newLanes(client, a).do(t.Context(), c); left != nil {
			t.Fatal(left)
		}
		for _, cmd := range cmds {
			if cmd.Err() != nil {
				t.Error(cmd.Err())
			}
		}
		return c.short
	}
	if short := batch(patient, 0); short != nil {
		t.Fatal(short)
	}
	goOn := freeze(t, replica)
	began := time.Now()
	short := batch(a, 10)
	var few *AckError
	if !errors.As(short, &few) || few.Replicas != 0 || few.NeedReplicas != 1 {
		t.Errorf("a frozen replica: %v; want an AckError that counts 0 of 1", short)
	}
	if took := time.Since(began); took < timeout*9/10 {
		t.Errorf("gave up after %v, want %v to be waited", took, timeout)
	}
	if !strings.Contains(primary.Do(t, "INFO", "replication"), "connected_slaves:1") {
		t.Error("the replica was dropped: the test has not shown what it should")
	}
	if err := a.again(t.Context(), newLanes(client, a), "p:", "k10"); !errors.As(err, &few) {
		t.Errorf("again, while frozen: %v", err)
	}
	goOn()
	// Once it goes on, the first write's acknowledgement is had by asking again.
	if err := patient.again(t.Context(), newLanes(client, patient), "p:", "k10"); err != nil {
		t.Errorf("again, after it went on: %v", err)
	}
	if got := replica.Do(t, "GET", "k10"); got != "v" {
		t.Errorf("the replica has %q", got)
	}
	if short := batch(patient, 20); short != nil {
		t.Error(short)
	}
}
