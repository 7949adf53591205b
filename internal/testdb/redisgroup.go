package testdb

import (
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

// MasterName is the name under which sentinels know their master.
const MasterName = throwaway.MasterName

// StartReplica starts a replica of a server and waits until it follows. The arguments are those of
// [StartRedis].
func StartReplica(tb testing.TB, of *RedisServer, args ...string) *RedisServer {
	tb.Helper()
	host, err := open()
	need(tb, "redis", err)
	srv, err := host.Replica(starting(tb), of.srv, args...)
	return group(tb, err, srv)[0]
}

// StartSentinels starts n sentinels that watch a master and its replicas, a majority of which fails
// over when the master has not answered for a second. It returns their addresses when they know the
// master under [MasterName], its replicas and each other.
func StartSentinels(tb testing.TB, master *RedisServer, n int) []string {
	tb.Helper()
	host, err := open()
	need(tb, "redis", err)
	sentinels, err := host.Sentinels(starting(tb), master.srv, n)
	return addresses(group(tb, err, sentinels...))
}

// StartCluster starts a Redis Cluster of masters without replicas and returns their addresses when
// all nodes say that it is ready.
func StartCluster(tb testing.TB, masters int) []string {
	tb.Helper()
	return addresses(StartClusterNodes(tb, masters))
}

// StartClusterNodes is [StartCluster] for a test that kills nodes.
func StartClusterNodes(tb testing.TB, masters int) []*RedisServer {
	tb.Helper()
	host, err := open()
	need(tb, "redis", err)
	nodes, err := host.Cluster(starting(tb), masters)
	return group(tb, err, nodes...)
}

// group makes servers go with the test, those of a start that failed half-way too.
func group(tb testing.TB, err error, servers ...*throwaway.Redis) (all []*RedisServer) {
	tb.Helper()
	for _, srv := range servers {
		if srv != nil {
			tb.Cleanup(srv.Close)
			all = append(all, &RedisServer{srv})
		}
	}
	need(tb, "redis", err)
	return all
}

func addresses(servers []*RedisServer) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}
