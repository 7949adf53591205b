package testdb

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
)

// MasterName is the name under which sentinels know their master.
const MasterName = "idem"

// StartReplica starts a replica of a server and waits until it follows. The arguments are those of
// [StartRedis].
func StartReplica(tb testing.TB, of *RedisServer, args ...string) *RedisServer {
	tb.Helper()
	line := fmt.Sprintf("replicaof 127.0.0.1 %d\n", of.port)
	if of.password != "" {
		line += fmt.Sprintf("masterauth %q\n", of.password)
	}
	r, err := startRedisWith(args, func(int) (string, error) { return line, nil })
	need(tb, "redis", err)
	tb.Cleanup(func() { release(r) })
	await(tb, "the replica does not follow its master", r, func() error {
		return r.infoIs("master_link_status", "up")
	})
	return r
}

// StartSentinels starts n sentinels that watch a master and its replicas, a majority of which fails
// over when the master has not answered for a second. It returns their addresses when they know the
// master under [MasterName], its replicas and each other.
func StartSentinels(tb testing.TB, master *RedisServer, n int) []string {
	tb.Helper()
	info := master.Do(tb, "INFO", "replication")
	replicas := redisField(info, "connected_slaves")
	lines := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d %[3]d\n"+
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, master.port, n/2+1)
	if master.password != "" {
		lines += fmt.Sprintf("sentinel auth-pass %s %s\n", MasterName, master.password)
	}
	var sentinels []*RedisServer
	var addrs []string
	for range n {
		s, err := startSentinel(lines)
		need(tb, "redis", err)
		tb.Cleanup(func() { release(s) })
		sentinels = append(sentinels, s)
		addrs = append(addrs, s.Addr())
	}
	for _, s := range sentinels {
		await(tb, "the sentinel does not know its group", s, func() error {
			answer, err := s.do("INFO", "sentinel")
			want := fmt.Sprintf("name=%s,status=ok,address=%s,slaves=%s,sentinels=%d", MasterName, master.Addr(), replicas, n)
			if got := redisField(answer, "master0"); err == nil && got != want {
				err = fmt.Errorf("it knows %q, want %q", got, want)
			}
			return err
		})
	}
	return addrs
}

func startSentinel(lines string) (*RedisServer, error) {
	bin, err := redisBin()
	if err != nil {
		return nil, err
	}
	dir, err := serverDir("", "sentinel")
	if err != nil {
		return nil, err
	}
	s := &RedisServer{bin: bin, dir: dir, args: []string{"--sentinel"}}
	err = retry(func() error {
		if s.port, err = freePort(); err != nil {
			return err
		}
		text := fmt.Sprintf("bind 127.0.0.1\nprotected-mode no\nport %d\ndir %q\n", s.port, dir) + lines
		if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
			return err
		}
		return s.start()
	})
	if err != nil {
		s.discard()
		return nil, err
	}
	manage(s)
	return s, nil
}

// StartCluster starts a Redis Cluster of masters without replicas and returns their addresses when
// all nodes say that it is ready.
func StartCluster(tb testing.TB, masters int) []string {
	tb.Helper()
	var addrs []string
	for _, node := range StartClusterNodes(tb, masters) {
		addrs = append(addrs, node.Addr())
	}
	return addrs
}

// StartClusterNodes is [StartCluster] for a test that kills nodes.
func StartClusterNodes(tb testing.TB, masters int) []*RedisServer {
	tb.Helper()
	var nodes []*RedisServer
	var bus []int
	for range masters {
		var port int
		node, err := startRedisWith(nil, func(int) (text string, err error) {
			port, err = freePort()
			return fmt.Sprintf("cluster-enabled yes\ncluster-node-timeout 2000\ncluster-port %d\n", port), err
		})
		need(tb, "redis", err)
		tb.Cleanup(func() { release(node) })
		nodes, bus = append(nodes, node), append(bus, port)
	}
	const slots = 16384
	for i, node := range nodes {
		// Without epochs of their own the nodes would first have to settle who has which.
		node.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		node.Do(tb, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/masters), strconv.Itoa((i+1)*slots/masters-1))
	}
	for i, node := range nodes[1:] {
		host, port, err := net.SplitHostPort(node.Addr())
		if err != nil {
			tb.Fatal(err)
		}
		nodes[0].Do(tb, "CLUSTER", "MEET", host, port, strconv.Itoa(bus[i+1]))
	}
	for _, node := range nodes {
		await(tb, "the cluster is not ready", node, func() error {
			answer, err := node.do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			state, size := redisField(answer, "cluster_state"), redisField(answer, "cluster_size")
			if state != "ok" || size != strconv.Itoa(masters) {
				return fmt.Errorf("its state is %s with %s masters, want ok with %d", state, size, masters)
			}
			return nil
		})
	}
	return nodes
}

// await waits until check returns nil.
func await(tb testing.TB, complaint string, r *RedisServer, check func() error) {
	tb.Helper()
	var err error
	if !poll(func() bool { err = check(); return err == nil }) {
		tb.Fatalf("testdb: %s: %v; %s", complaint, err, tail(r.log()))
	}
}
