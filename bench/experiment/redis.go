package experiment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem/bench/strategy"
)

// redisDo sends a command to a server.
func redisDo(ctx context.Context, url string, command ...any) (string, error) {
	o, err := goredis.ParseURL(url)
	if err != nil {
		return "", err
	}
	c := goredis.NewClient(o)
	defer c.Close()
	v, err := c.Do(ctx, command...).Result()
	return fmt.Sprint(v), err
}

// flushed empties a server in the middle of an operation.
func flushed(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	server, urls, err := l.hurt(ctx, s.Info(), "flushed", "--appendonly", "no", "--save", "")
	if err != nil {
		return err
	}
	round := func() error {
		w, err := l.world(s, 6)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		w.env.URLs = urls
		r, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer func() { r.Close() }()
		ops := w.ops("caller")
		w.acked(settleAll(ctx, r, ops[1:], 1))
		var struck time.Time
		var failed error
		ops[0].Pause = func(ctx context.Context, at strategy.Point) error {
			if at == strategy.AfterEffect && struck.IsZero() {
				struck = time.Now()
				_, failed = redisDo(ctx, server.URL(), "FLUSHALL")
			}
			return nil
		}
		w.acked(settleAll(ctx, r, ops[:1], 1))
		if failed != nil {
			return failed
		}
		next, err := w.reopen(ctx, r)
		if err != nil {
			return err
		}
		r = next
		w.acked(settleAll(ctx, r, w.ops("again"), 3))
		return t.count(ctx, w, r, !struck.IsZero(), time.Since(struck), nil)
	}
	return repeat(rounds, round)
}

func repeat(rounds int, round func() error) error {
	for range rounds {
		if err := round(); err != nil {
			return err
		}
	}
	return nil
}

// failedOver makes a replica the master. It had been cut off while the old master
// went on acknowledging, as happens where replication does not wait.
func failedOver(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	if l.Servers.Redis == nil {
		return errSkip{reason: "the run has no Redis to start"}
	}
	return repeat(rounds, func() error {
		master, err := l.Servers.Redis(ctx, "--appendonly", "no", "--save", "", "--repl-diskless-sync-delay", "0")
		if err != nil {
			return errSkip{reason: "no server to hurt could be started: " + err.Error()}
		}
		defer master.Stop()
		replica, err := l.Servers.Redis(ctx, "--appendonly", "no", "--save", "")
		if err != nil {
			return errSkip{reason: "no server to hurt could be started: " + err.Error()}
		}
		defer replica.Stop()
		o, err := goredis.ParseURL(master.URL())
		if err != nil {
			return err
		}
		host, port, _ := strings.Cut(o.Addr, ":")
		if _, err := redisDo(ctx, replica.URL(), "REPLICAOF", host, port); err != nil {
			return err
		}
		w, err := l.world(s, 6)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		w.env.URLs = l.on(strategy.Redis, master.URL())
		old, err := w.open(ctx)
		if err != nil {
			return err
		}
		w.acked(settleAll(ctx, old, w.ops("caller")[:3], 1))
		// These have reached the replica; what comes now does not.
		synced := false
		for end := time.Now().Add(20 * time.Second); !synced && time.Now().Before(end); {
			c := goredis.NewClient(o)
			if err := c.Set(ctx, "bench-replicated", "1", time.Minute).Err(); err == nil {
				n, err := c.Do(ctx, "WAIT", 1, 500).Int()
				synced = err == nil && n == 1
			}
			c.Close()
		}
		if !synced {
			old.Close()
			return errSkip{reason: "the replica did not follow within 20 s"}
		}
		if _, err := redisDo(ctx, replica.URL(), "REPLICAOF", "NO", "ONE"); err != nil {
			old.Close()
			return err
		}
		w.acked(settleAll(ctx, old, w.ops("caller")[3:], 1))
		struck := time.Now()
		killed := master.Kill()
		old.Close()
		if killed != nil {
			return killed
		}
		w.env.URLs = l.on(strategy.Redis, replica.URL())
		r, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		w.acked(settleAll(ctx, r, w.ops("again"), 3))
		return t.count(ctx, w, r, true, time.Since(struck), nil)
	})
}

const evictionPolicy = "allkeys-lru"

// evicting fills a server up until it throws keys out.
func evicting(ctx context.Context, l *lab, s strategy.Strategy, rounds int, _ *rand.Rand, t *tally) error {
	server, urls, err := l.hurt(ctx, s.Info(), "evicting", "--appendonly", "no", "--save", "", "--maxmemory", "4mb", "--maxmemory-policy", evictionPolicy)
	if err != nil {
		return err
	}
	return repeat(rounds, func() error {
		w, err := l.world(s, 6)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		w.env.URLs, w.env.AcceptEviction = urls, evictionPolicy
		r, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer func() { r.Close() }()
		w.acked(settleAll(ctx, r, w.ops("caller"), 3))
		o, err := goredis.ParseURL(server.URL())
		if err != nil {
			return err
		}
		c := goredis.NewClient(o)
		defer c.Close()
		before, err := evicted(ctx, c)
		if err != nil {
			return err
		}
		_, err = c.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for i := range 2000 {
				p.Set(ctx, "bench-filler-"+strconv.Itoa(i), strings.Repeat("x", 10_000), time.Minute)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("filling the server up: %w", err)
		}
		after, err := evicted(ctx, c)
		if err != nil {
			return err
		}
		struck := time.Now()
		next, err := w.reopen(ctx, r)
		if err != nil {
			return err
		}
		r = next
		w.acked(settleAll(ctx, r, w.ops("again"), 3))
		return t.count(ctx, w, r, after > before, time.Since(struck), nil)
	})
}

// evicted is how many keys a server has thrown out.
func evicted(ctx context.Context, c *goredis.Client) (int64, error) {
	info, err := c.Info(ctx, "stats").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "evicted_keys:"); ok {
			return strconv.ParseInt(n, 10, 64)
		}
	}
	return 0, fmt.Errorf("INFO stats names no evicted_keys")
}
