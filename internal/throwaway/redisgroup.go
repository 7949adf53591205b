package throwaway

import (
	"context"
	"fmt"
	"net"
	"strconv"
)

// MasterName is the name under which sentinels know their master.
const MasterName = "idem"

// Replica starts a replica of a server and waits until it follows. The arguments are
// those of redis-server.
func (h *Host) Replica(ctx context.Context, of *Redis, args ...string) (*Redis, error) {
	line := fmt.Sprintf("replicaof 127.0.0.1 %d\n", of.port)
	if of.password != "" {
		line += fmt.Sprintf("masterauth %q\n", of.password)
	}
	r, err := h.Redis(ctx, RedisOptions{Args: args, Lines: func(int) (string, error) { return line, nil }})
	if err != nil {
		return nil, err
	}
	return r, r.await(ctx, "the replica does not follow its master", func() error {
		return r.InfoIs("master_link_status", "up")
	})
}

// Sentinels starts n sentinels that watch a master and its replicas, a majority of which fails
// over when the master has not answered for a second. It returns when they know the master under
// [MasterName], its replicas and each other.
func (h *Host) Sentinels(ctx context.Context, master *Redis, n int) ([]*Redis, error) {
	replicas, err := master.info("connected_slaves")
	if err != nil {
		return nil, err
	}
	lines := "protected-mode no\n" + fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d %[3]d\n"+
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, master.port, n/2+1)
	if master.password != "" {
		lines += fmt.Sprintf("sentinel auth-pass %s %s\n", MasterName, master.password)
	}
	var sentinels []*Redis
	for range n {
		s, err := h.startRedis(ctx, "sentinel", []string{"--sentinel"}, nil, "", func(int, string) (string, error) { return lines, nil })
		if err != nil {
			return sentinels, err
		}
		sentinels = append(sentinels, s)
	}
	for _, s := range sentinels {
		err := s.await(ctx, "the sentinel does not know its group", func() error {
			answer, err := s.Do("INFO", "sentinel")
			want := fmt.Sprintf("name=%s,status=ok,address=%s,slaves=%s,sentinels=%d", MasterName, master.Addr(), replicas, n)
			if got := redisField(answer, "master0"); err == nil && got != want {
				err = fmt.Errorf("it knows %q, want %q", got, want)
			}
			return err
		})
		if err != nil {
			return sentinels, err
		}
	}
	return sentinels, nil
}

// Cluster starts a Redis Cluster of masters without replicas and returns when all nodes
// say that it is ready.
func (h *Host) Cluster(ctx context.Context, masters int) ([]*Redis, error) {
	var nodes []*Redis
	var bus []int
	for range masters {
		var port int
		node, err := h.Redis(ctx, RedisOptions{Lines: func(int) (text string, err error) {
			port, err = freePort()
			return fmt.Sprintf("cluster-enabled yes\ncluster-node-timeout 2000\ncluster-port %d\n", port), err
		}})
		if err != nil {
			return nodes, err
		}
		nodes, bus = append(nodes, node), append(bus, port)
	}
	if err := introduce(nodes, bus); err != nil {
		return nodes, fmt.Errorf("throwaway: make a cluster: %w", err)
	}
	for _, node := range nodes {
		err := node.await(ctx, "the cluster is not ready", func() error {
			answer, err := node.Do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			state, size := redisField(answer, "cluster_state"), redisField(answer, "cluster_size")
			if state != "ok" || size != strconv.Itoa(masters) {
				return fmt.Errorf("its state is %s with %s masters, want ok with %d", state, size, masters)
			}
			return nil
		})
		if err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// introduce gives the nodes their slots and tells the first of the others.
func introduce(nodes []*Redis, bus []int) error {
	const slots = 16384
	n := len(nodes)
	for i, node := range nodes {
		// Without epochs of their own the nodes would first have to settle who has which.
		if _, err := node.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if _, err := node.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/n), strconv.Itoa((i+1)*slots/n-1)); err != nil {
			return err
		}
	}
	for i, node := range nodes[1:] {
		host, port, err := net.SplitHostPort(node.Addr())
		if err != nil {
			return err
		}
		if _, err := nodes[0].Do("CLUSTER", "MEET", host, port, strconv.Itoa(bus[i+1])); err != nil {
			return err
		}
	}
	return nil
}

// await waits until check returns nil.
func (r *Redis) await(ctx context.Context, complaint string, check func() error) error {
	var err error
	if !Poll(ctx, func() bool { err = check(); return err == nil }) {
		return fmt.Errorf("throwaway: %s: %w; %s", complaint, err, tail(r.log()))
	}
	return nil
}
