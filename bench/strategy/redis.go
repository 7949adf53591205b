package strategy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/redis"
)

// redisPlace is a strategy's part of a Redis server.
type redisPlace struct {
	client *goredis.Client
	admin  *goredis.Client // not counted
	prefix string
	wire   *meter
}

// redisStrategy is a strategy on Redis: do handles the requests.
func redisStrategy(info Info, do func(context.Context, Env, *redisPlace) (func(context.Context, Op) (Outcome, error), error)) Strategy {
	info.Needs = []Server{Redis}
	return strategy{info, func(ctx context.Context, env Env) (Runner, error) {
		p, err := openRedis(env)
		if err != nil {
			return nil, err
		}
		handle, err := do(ctx, env, p)
		if err != nil {
			return nil, closing(err, p.close)
		}
		return &runner{do: handle, effects: env.Effects, usage: p.usage, flushes: p.flushes, wire: p.wire, close: p.close}, nil
	}}
}

func openRedis(env Env) (*redisPlace, error) {
	o, err := goredis.ParseURL(env.URLs[Redis])
	if err != nil {
		return nil, errors.New("bench: the URL of Redis cannot be read; it is like redis://:password@host:6379/0")
	}
	o.PoolSize, o.ContextTimeoutEnabled = env.Conns, true
	p := &redisPlace{prefix: redisPrefix(env.Place), wire: new(meter)}
	admin := *o
	admin.PoolSize = 1
	p.admin = goredis.NewClient(&admin)
	o.Dialer = p.wire.around(goredis.NewDialer(o))
	p.client = goredis.NewClient(o)
	return p, nil
}

func redisPrefix(place string) string { return "bench:" + place + ":" }

func (p *redisPlace) close() error { return errors.Join(p.client.Close(), p.admin.Close()) }

// usage counts the keys of the place. Their size is that of a sample, taken to all.
func (p *redisPlace) usage(ctx context.Context) (Usage, error) {
	const sample = 256
	var u Usage
	var sampled int64
	err := p.each(ctx, func(keys []string) error {
		u.Records += int64(len(keys))
		keys = keys[:min(len(keys), int(sample-sampled))]
		if len(keys) == 0 {
			return nil
		}
		sizes := make([]*goredis.IntCmd, len(keys))
		_, err := p.admin.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
			for i, key := range keys {
				sizes[i] = pipe.MemoryUsage(ctx, key)
			}
			return nil
		})
		if err != nil && !errors.Is(err, goredis.Nil) { // Nil: it expired since
			return err
		}
		for _, size := range sizes {
			if size.Err() == nil {
				u.StoredBytes += size.Val()
				sampled++
			}
		}
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("bench: look at the keys in Redis: %w", err)
	}
	if sampled > 0 {
		u.StoredBytes = u.StoredBytes * u.Records / sampled
	}
	return u, nil
}

// flushes are unknown to Redis itself, unless it does none. As with the other servers, all
// connections are open afterwards.
func (p *redisPlace) flushes(ctx context.Context) (int64, error) {
	var conns []*goredis.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // it goes back to the pool
		}
	}()
	for range p.client.Options().PoolSize {
		c := p.client.Conn()
		conns = append(conns, c)
		if err := c.Ping(ctx).Err(); err != nil {
			return -1, fmt.Errorf("bench: connect to Redis: %w", err)
		}
	}
	info, err := p.admin.Info(ctx, "persistence").Result()
	if err != nil {
		return -1, fmt.Errorf("bench: look at the settings of Redis: %w", err)
	}
	if strings.Contains(info, "aof_enabled:0") {
		return 0, nil
	}
	return -1, nil
}

// each calls fn with the keys of the place, some at a time.
func (p *redisPlace) each(ctx context.Context, fn func(keys []string) error) error {
	for cursor := uint64(0); ; {
		keys, next, err := p.admin.Scan(ctx, cursor, p.prefix+"*", 1000).Result()
		if err != nil {
			return err
		}
		if err := fn(keys); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// redisLock claims a key with SET NX and lets the claim run out: a lock that is held
// against duplicates. After its lifetime, a retry runs the operation again; a process
// that dies with it has dropped the operation until then.
func redisLock() Strategy {
	return redisStrategy(Info{
		Name: "redis-lock", Title: "SET NX with a lifetime on Redis", Family: Naive,
		Survives: "what the server's settings say, for the lifetime of the lock",
		Cost:     "new and duplicate: 1 round trip",
		Floor:    "redis-raw",
	}, func(_ context.Context, env Env, p *redisPlace) (func(context.Context, Op) (Outcome, error), error) {
		return func(ctx context.Context, op Op) (Outcome, error) {
			first, err := p.client.SetNX(ctx, p.prefix+op.Key, "1", env.LeaseTTL).Result()
			switch {
			case err != nil:
				return "", err
			case !first:
				return Dropped, nil
			}
			if _, err := env.performOutside(ctx, op); err != nil {
				return "", err
			}
			return op.executed(ctx)
		}, nil
	})
}

// redisRaw is a reserve and a completion as people write them on Redis.
func redisRaw() Strategy {
	return redisStrategy(Info{
		Name: "redis-raw", Title: "floor: SET NX and SET on Redis", Family: Floor,
		Survives: "what the server's settings say",
		Cost:     "each call: 2 round trips",
	}, func(_ context.Context, env Env, p *redisPlace) (func(context.Context, Op) (Outcome, error), error) {
		return func(ctx context.Context, op Op) (Outcome, error) {
			if err := p.client.SetNX(ctx, p.prefix+op.Key, "1", env.LeaseTTL).Err(); err != nil {
				return "", err
			}
			result, err := env.performOutside(ctx, op)
			if err != nil {
				return "", err
			}
			if err := p.client.Set(ctx, p.prefix+op.Key, result, env.Known).Err(); err != nil {
				return "", err
			}
			return op.executed(ctx)
		}, nil
	})
}

// redisWindow is idem's window on Redis: a claim, and nothing else.
func redisWindow() Strategy {
	return redisStrategy(Info{
		Name: "redis-window", Title: "idem's window on Redis", Family: Window,
		Survives: "what the server's settings say, as a claim only: a process that dies takes the operation with it",
		Cost:     "new: 1 round trip; duplicate: 1, or none where this process has seen it",
		Floor:    "redis-raw",
	}, func(ctx context.Context, env Env, p *redisPlace) (func(context.Context, Op) (Outcome, error), error) {
		w, err := redis.NewWindow(ctx, p.client, &redis.WindowOptions{Prefix: p.prefix, TTL: env.Known, AcceptEviction: env.AcceptEviction})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, op Op) (Outcome, error) {
			first, err := w.Claim(ctx, backend.ID{Operation: scope.Operation, Key: op.Key})
			switch {
			case errors.Is(err, backend.ErrOutcomeUnknown):
				return Unknown, nil
			case err != nil:
				return "", err
			case !first:
				return Dropped, nil
			}
			if _, err := env.performOutside(ctx, op); err != nil {
				return "", err // a claim is final: every retry is dropped
			}
			return op.executed(ctx)
		}, nil
	})
}

// redisLease is idem's lease mode on Redis.
func redisLease() Strategy {
	return redisStrategy(Info{
		Name: "redis-lease", Title: "idem on Redis", Family: Lease,
		Survives: "what the server's settings say: a failover or an eviction may forget it",
		Cost:     "new: 2 round trips; duplicate: 1",
		Floor:    "redis-raw",
	}, func(ctx context.Context, env Env, p *redisPlace) (func(context.Context, Op) (Outcome, error), error) {
		b, err := redis.New(ctx, p.client, &redis.Options{Prefix: p.prefix, AcceptEviction: env.AcceptEviction})
		if err != nil {
			return nil, err
		}
		return doLease(env, b)
	})
}
