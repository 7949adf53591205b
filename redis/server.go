package redis

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// oldestServer is the first version with SET NX GET in one command and with
// PEXPIRETIME.
const oldestServer = 7

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
	if err := (direct{client: client}).do(ctx, info); err != nil || info.Err() != nil {
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
