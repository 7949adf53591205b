package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// mustAcks returns acks that wait for something.
func mustAcks(tb testing.TB, client redis.UniversalClient, replicas int, fsync bool, timeout time.Duration) *acks {
	tb.Helper()
	a, err := newAcks(client, replicas, fsync, timeout)
	if err != nil || a == nil {
		tb.Fatal(a, err)
	}
	return a
}

// write sends a SET through acks.
func write(ctx context.Context, a *acks, client redis.UniversalClient, key, value string) (short, err error) {
	set := redis.NewStatusCmd(ctx, "set", key, value)
	c := &call{key: key, cmds: []redis.Cmder{set}, acked: true}
	if left := newLanes(client, a).do(ctx, c); left != nil {
		return nil, left
	}
	return c.short, set.Err()
}

func TestAckOptions(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: 2 * time.Second})
	defer client.Close()
	for _, c := range []struct {
		name     string
		replicas int
		fsync    bool
		timeout  time.Duration
		ok       bool
		wait     string // the command; "": nothing to wait for
	}{
		{"nothing", 0, false, 0, true, ""},
		{"a timeout for nothing", 0, false, time.Second, false, ""},
		{"replicas", 2, false, 0, true, "wait 2 1000"},
		{"disk", 0, true, 500 * time.Millisecond, true, "waitaof 1 0 500"},
		{"disk and replicas", 3, true, 1500 * time.Microsecond, true, "waitaof 1 3 2"},
		{"negative", -1, false, 0, false, ""},
		{"for ever, by rounding", 1, false, time.Microsecond, false, ""},
		{"negative timeout", 1, false, -1, false, ""},
		{"longer than the client waits", 1, false, 2 * time.Second, false, ""},
	} {
		a, err := newAcks(client, c.replicas, c.fsync, c.timeout)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, backend.ErrInvalidRequest) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if (a == nil) != (c.wait == "") {
			t.Errorf("%s: %+v", c.name, a)
		} else if a != nil {
			if got := strings.Trim(fmt.Sprint(a.command(t.Context()).Args()), "[]"); got != c.wait {
				t.Errorf("%s: sends %q, want %q", c.name, got, c.wait)
			}
		}
	}
}

func TestNothingToWaitFor(t *testing.T) {
	t.Parallel()
	client := newClient(t, testdb.Redis(t).Addr())
	if err := client.Ping(t.Context()).Err(); err != nil { // not to count what a new connection says
		t.Fatal(err)
	}
	sent := new(counter)
	client.AddHook(sent)
	if short, err := write(t.Context(), nil, client, newPrefix(), "v"); short != nil || err != nil || sent.sent.Load() != 1 {
		t.Errorf("%v, %v after %d commands; want the one write", short, err, sent.sent.Load())
	}
	if err := (*acks)(nil).again(t.Context(), newLanes(client, nil), "p:", "k"); err != nil || sent.sent.Load() != 1 {
		t.Errorf("%v after %d commands; want nothing to happen", err, sent.sent.Load())
	}
}

// TestCaseC40_AcknowledgementsAreCounted: the count that WAIT answers is looked at.
func TestCaseC40_AcknowledgementsAreCounted(t *testing.T) {
	t.Parallel()
	primary := testdb.StartRedis(t)
	replica := testdb.StartReplica(t, primary)
	client := newClient(t, primary.Addr())
	one := mustAcks(t, client, 1, false, 0)
	two := mustAcks(t, client, 2, false, 50*time.Millisecond)

	if short, err := write(t.Context(), one, client, "a", "1"); short != nil || err != nil {
		t.Fatalf("one of one replica: %v, %v", short, err)
	}
	if got := replica.Do(t, "GET", "a"); got != "1" {
		t.Errorf("the write was acknowledged, and the replica has %q", got)
	}
	short, err := write(t.Context(), two, client, "b", "1")
	var few *AckError
	if err != nil || !errors.As(short, &few) || few.Replicas != 1 || few.NeedReplicas != 2 || !errors.Is(short, backend.ErrOutcomeUnknown) {
		t.Errorf("two of one replica: %v, %v; want an AckError that counts 1 of 2", short, err)
	}
	if got := primary.Do(t, "GET", "b"); got != "1" {
		t.Errorf("a write that was not acknowledged left %q; it stands", got)
	}
	// What was written before, over another connection, is asked for with a write.
	if err := one.again(t.Context(), newLanes(client, one), "p:", "a"); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := two.again(t.Context(), newLanes(client, two), "p:", "a"); !errors.As(err, &few) {
		t.Errorf("again, two of one replica: %v", err)
	}
	// A write that fails is not an unknown outcome: its own error counts.
	wrong := redis.NewIntCmd(t.Context(), "lpush", "a", "x")
	if left := newLanes(client, one).do(t.Context(), &call{key: "a", cmds: []redis.Cmder{wrong}, acked: true}); left != nil || !redis.HasErrorPrefix(wrong.Err(), "WRONGTYPE") {
		t.Errorf("a refused write: %v, %v", left, wrong.Err())
	}
	// A user who may write and may not wait.
	primary.Do(t, "ACL", "SETUSER", "nowait", "on", ">pw", "~*", "&*", "+@all", "-wait")
	limited := redis.NewClient(&redis.Options{Addr: primary.Addr(), Username: "nowait", Password: "pw"})
	defer limited.Close()
	short, err = write(t.Context(), mustAcks(t, limited, 1, false, 0), limited, "c", "1")
	if err != nil || !errors.Is(short, backend.ErrOutcomeUnknown) || !errors.Is(short, ErrRefused) {
		t.Errorf("no right to wait: %v, %v; want the outcome unknown, refused", short, err)
	}
	if _, _, err := probe(t.Context(), limited, terms{ackReplicas: 1}); !errors.Is(err, ErrRefused) {
		t.Errorf("opened without the right to wait: %v", err)
	}
	if _, _, err := probe(t.Context(), limited, terms{}); err != nil {
		t.Errorf("opened without the need to wait: %v", err)
	}
}

func TestAcksEndWithContext(t *testing.T) {
	t.Parallel()
	primary := testdb.StartRedis(t) // without replicas: it would wait in full
	client := newClient(t, primary.Addr())
	a := mustAcks(t, client, 1, false, 4*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, left := write(ctx, a, client, "k", "1")
	if !errors.Is(left, context.DeadlineExceeded) {
		t.Errorf("%v; want the end of the context", left)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("returned after %v, long after its context", took)
	}
}

// TestAcksInCluster: the wait goes to the master that got the write, also after its
// slot has moved.
func TestAcksInCluster(t *testing.T) {
	t.Parallel()
	nodes := testdb.StartClusterNodes(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}, ContextTimeoutEnabled: true})
	defer client.Close()
	waits := func(n *testdb.RedisServer) bool {
		return strings.Contains(n.Do(t, "INFO", "commandstats"), "cmdstat_wait:")
	}
	// No replica acknowledges: that none is needed cannot be asked for, and shows the way.
	a := &acks{replicas: 0, timeout: 100 * time.Millisecond}
	slot := func(key string) string { return nodes[0].Do(t, "CLUSTER", "KEYSLOT", key) }
	key := ""
	for i := 0; key == ""; i++ {
		var n int
		if _, err := fmt.Sscan(slot(fmt.Sprint("k", i)), &n); err != nil {
			t.Fatal(err)
		}
		if n >= 16384/3 && n < 16384*2/3-1 {
			key = fmt.Sprint("k", i) // the second master's
		}
	}
	if short, err := write(t.Context(), a, client, key, "1"); short != nil || err != nil {
		t.Fatal(short, err)
	}
	if waits(nodes[0]) || !waits(nodes[1]) || waits(nodes[2]) {
		t.Error("the wait did not go to the key's master alone")
	}
	nodes[1].Do(t, "DEL", key)
	third := nodes[2].Do(t, "CLUSTER", "MYID")
	for _, n := range []*testdb.RedisServer{nodes[2], nodes[1], nodes[0]} {
		n.Do(t, "CLUSTER", "SETSLOT", slot(key), "NODE", third)
	}
	if short, err := write(t.Context(), a, client, key, "2"); short != nil || err != nil {
		t.Errorf("after the slot has moved: %v, %v", short, err)
	}
	if got := nodes[2].Do(t, "GET", key); got != "2" || !waits(nodes[2]) {
		t.Errorf("the new master has %q, and was waited for: %t", got, waits(nodes[2]))
	}
	if err := a.again(t.Context(), newLanes(client, a), "p:", key); err != nil {
		t.Errorf("again: %v", err)
	}
	// With replicas that do not exist, every master says so.
	needs := mustAcks(t, client, 1, false, 50*time.Millisecond)
	var few *AckError
	if short, err := write(t.Context(), needs, client, key, "3"); err != nil || !errors.As(short, &few) || few.Replicas != 0 {
		t.Errorf("a replica that is not there: %v, %v", short, err)
	}
}

// TestWaitForDisk: WAITAOF and its two counts, against a server of version 7.2.
func TestWaitForDisk(t *testing.T) {
	t.Parallel()
	var answer atomic.Value
	answer.Store("*2\r\n:1\r\n:0\r\n")
	server := map[string]func([]string) string{
		"info":    infoAnswer("redis_version:7.2.5", "role:master", "connected_slaves:0", "aof_enabled:1", "maxmemory_policy:noeviction"),
		"set":     fixed("+OK\r\n"),
		"waitaof": func([]string) string { return answer.Load().(string) },
	}
	client := fakeRedis(t, server)
	g, info, err := probe(t.Context(), client, terms{ackFsync: true})
	if err != nil || info.major != 7 || info.minor != 2 || g.MachineCrash != survives {
		t.Fatalf("%+v, %+v, %v", g, info, err)
	}
	for _, c := range []struct {
		local, replicas, need int
		ok                    bool
	}{{1, 0, 0, true}, {0, 0, 0, false}, {1, 1, 1, true}, {1, 0, 1, false}, {0, 1, 1, false}, {1, 3, 2, true}} {
		answer.Store(fmt.Sprintf("*2\r\n:%d\r\n:%d\r\n", c.local, c.replicas))
		a := mustAcks(t, client, c.need, true, 0)
		short, err := write(t.Context(), a, client, "k", "v")
		if err != nil || (short == nil) != c.ok {
			t.Errorf("%d local, %d of %d replicas: %v, %v", c.local, c.replicas, c.need, short, err)
		}
		var few *AckError
		if !c.ok && (!errors.As(short, &few) || few.Local != (c.local > 0) || few.Replicas != c.replicas || strings.Contains(short.Error(), "disk") != (c.local == 0)) {
			t.Errorf("%d local, %d of %d replicas: %v", c.local, c.replicas, c.need, short)
		}
	}
	// Nonsense is no acknowledgement.
	answer.Store("*1\r\n:1\r\n")
	if short, _ := write(t.Context(), mustAcks(t, client, 0, true, 0), client, "k", "v"); short == nil {
		t.Error("an answer with one count passes for two")
	}
	server["waitaof"] = fixed("-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n")
	if _, _, err := probe(t.Context(), fakeRedis(t, server), terms{ackFsync: true}); !errors.Is(err, backend.ErrGuarantee) || !strings.Contains(err.Error(), "appendonly") {
		t.Errorf("without a log: %v", err)
	}
	// The installed server, if it is older.
	real := newClient(t, testdb.Redis(t).Addr())
	_, info, err = probe(t.Context(), real, terms{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = probe(t.Context(), real, terms{ackFsync: true})
	if info.major == 7 && info.minor < 2 {
		var old *ServerVersionError
		if !errors.As(err, &old) || old.Found != info.version || old.Need != "7.2" {
			t.Errorf("version %s: %v; want an error that names it and 7.2", info.version, err)
		}
	} else if !errors.Is(err, backend.ErrGuarantee) { // it has no log
		t.Errorf("version %s: %v", info.version, err)
	}
}
