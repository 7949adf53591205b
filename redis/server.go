package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// oldestServer is the first version with SET NX GET in one command and with
// PEXPIRETIME.
const oldestServer = 7

// inspect asks every master for its version and refuses old ones.
func inspect(ctx context.Context, client redis.UniversalClient) (backend.Guarantees, error) {
	nodes, err := masters(ctx, client)
	if err != nil {
		return backend.Guarantees{}, readFault(ctx, err)
	}
	g := backend.Guarantees{ServerClock: true, Shared: true}
	for i, node := range nodes {
		f, err := version(ctx, node)
		if err != nil {
			return backend.Guarantees{}, err
		}
		if i == 0 {
			g.Findings = append(g.Findings, f)
		}
	}
	return g, nil
}

// version checks the version of one server.
func version(ctx context.Context, node redis.UniversalClient) (backend.Finding, error) {
	f := backend.Finding{Setting: "redis_version"}
	info := redis.NewStringCmd(ctx, "info", "server")
	if err := (direct{node}).do(ctx, info); err != nil {
		return f, readFault(ctx, err)
	}
	if err := info.Err(); err != nil {
		if !redis.HasErrorPrefix(err, "NOPERM") {
			return f, readFault(ctx, err)
		}
		// A user without the right to ask: whether the server has what is needed shows
		// in what it understands.
		probe := redis.NewCmd(ctx, "pexpiretime", DefaultPrefix+"probe")
		if err := (direct{node}).do(ctx, probe); err != nil {
			return f, readFault(ctx, err)
		}
		var reply redis.Error
		if err := probe.Err(); errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "ERR unknown command") {
			return f, &ServerVersionError{Need: "7.0"}
		}
		f.Value, f.Text = "could not check", "the user may not ask INFO; the server knows a command of Redis 7.0"
		return f, nil
	}
	fields := infoFields(info.Val())
	if v := fields["valkey_version"]; v != "" {
		f.Value, f.Text = "Valkey "+v, "new enough"
		return f, nil
	}
	v := fields["redis_version"]
	major, _, _ := strings.Cut(v, ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestServer {
		return f, &ServerVersionError{Found: v, Need: "7.0"}
	}
	f.Value, f.Text = v, "new enough"
	return f, nil
}

// masters returns a client for each server that takes writes.
func masters(ctx context.Context, client redis.UniversalClient) ([]redis.UniversalClient, error) {
	c, ok := client.(*redis.ClusterClient)
	if !ok {
		return []redis.UniversalClient{client}, nil
	}
	var mu sync.Mutex
	var all []redis.UniversalClient
	err := c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node)
		return nil
	})
	return all, err
}

// clustered reports whether a server says that it is part of a Cluster.
func clustered(ctx context.Context, client redis.UniversalClient) bool {
	info := redis.NewStringCmd(ctx, "info", "cluster")
	if err := (direct{client}).do(ctx, info); err != nil || info.Err() != nil {
		return false // New finds out what is wrong
	}
	return infoFields(info.Val())["cluster_enabled"] == "1"
}

// infoFields parses the answer to INFO.
func infoFields(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}
