package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/redis"
)

func measureRedis(r *report) error {
	return r.all([]part{
		{"execute", func(r *report) error {
			return redisExecute(r, "redis", map[int]float64{1: 0.8, 8: 0.8, 64: 1.6, 256: 2})
		}},
		{"always", func(r *report) error {
			return redisExecute(r, "redis, appendfsync always", map[int]float64{1: 0, 8: 0, 64: 2, 256: 3}, "--appendonly", "yes", "--appendfsync", "always")
		}},
		{"replay", redisReplay}, {"memory", redisMemory}, {"window", redisWindow},
	})
}

// redisBench is an empty server with a client for idem and one for what is written
// by hand, both with go-redis' own pool.
type redisBench struct {
	*host
	raw   *goredis.Client
	ours  *goredis.Client
	store *idem.Store
}

func withRedis(fn func(*redisBench) error, args ...string) (err error) {
	b := &redisBench{host: new(host)}
	defer func() {
		for i := len(b.clean) - 1; i >= 0; i-- {
			b.clean[i]()
		}
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	addr := testdb.StartRedis(b, args...).Addr()
	b.raw = goredis.NewClient(&goredis.Options{Addr: addr})
	b.Cleanup(func() { _ = b.raw.Close() })
	b.ours = goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
	b.Cleanup(func() { _ = b.ours.Close() })
	s, err := redis.New(context.Background(), b.ours, nil)
	if err != nil {
		return err
	}
	if b.store, err = idem.New(s, nil); err != nil {
		return err
	}
	return fn(b)
}

// asServed calls op as a service does: each call has a context with a deadline.
func asServed(op func(ctx context.Context) error) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return op(ctx)
	}
}

// executeNew runs an empty operation for a new key.
func (b *redisBench) executeNew() func() error {
	body, hash := make([]byte, 200), idem.FingerprintBytes([]byte("request"))
	return asServed(func(ctx context.Context) error {
		_, err := idem.Execute(ctx, b.store, scope, idem.Key(uuid.NewString()), hash, func(context.Context) ([]byte, error) { return body, nil })
		return err
	})
}

// handWritten is what people write: it claims a key and then stores the result. It is
// not safe, since a late owner overwrites.
func (b *redisBench) handWritten() func() error {
	body := make([]byte, 200)
	return asServed(func(ctx context.Context) error {
		key := "raw:" + uuid.NewString()
		ok, err := b.raw.SetNX(ctx, key, "pending", time.Minute).Result()
		if err != nil || !ok {
			return fmt.Errorf("a new key was taken: %w", err)
		}
		return b.raw.Set(ctx, key, body, 24*time.Hour).Err()
	})
}

// redisExecute: new keys with an empty fn against a bare SET NX and SET.
func redisExecute(r *report, name string, bars map[int]float64, args ...string) error {
	return withRedis(func(b *redisBench) error {
		for _, n := range []int{1, 8, 64, 256} {
			rates, ratios, err := r.compare(n, []variant{{name: "idem", op: b.executeNew()}, {name: "SET NX + SET", op: b.handWritten()}})
			if err != nil {
				return err
			}
			callers := fmt.Sprint(n)
			r.info(name+": SET NX + SET by hand", callers, rates[1], "/s")
			r.info(name+": Execute of new keys", callers, rates[0], "/s")
			if bars[n] > 0 {
				r.atLeast(name+": Execute / SET NX + SET", callers, ratios[1], bars[n], "x")
			}
		}
		return nil
	}, args...)
}

// redisReplay: a replay against a bare GET.
func redisReplay(r *report) error {
	return withRedis(func(b *redisBench) error {
		const keys = 1000
		ctx, hash := context.Background(), idem.FingerprintBytes([]byte("request"))
		name := func(i int64) idem.Key { return idem.Key(fmt.Sprintf("key-%d", i%keys)) }
		body := make([]byte, 200)
		for i := range int64(keys) {
			if err := b.raw.Set(ctx, "raw:"+string(name(i)), body, time.Hour).Err(); err != nil {
				return err
			}
			if _, err := idem.Execute(ctx, b.store, scope, name(i), hash, func(context.Context) ([]byte, error) { return body, nil }); err != nil {
				return err
			}
		}
		for _, at := range []struct {
			callers int
			bar     float64
		}{{1, 0.95}, {8, 0}, {64, 2}, {256, 3}} {
			var i, j atomic.Int64
			rates, ratios, err := r.compare(at.callers, []variant{
				{name: "replay", op: asServed(func(ctx context.Context) error {
					res, err := idem.Execute(ctx, b.store, scope, name(j.Add(1)), hash, func(context.Context) ([]byte, error) { return nil, errors.New("ran again") })
					if err == nil && (!res.Replayed || len(res.Value) != len(body)) {
						return errors.New("not a replay")
					}
					return err
				})},
				{name: "GET", op: asServed(func(ctx context.Context) error { return b.raw.Get(ctx, "raw:"+string(name(i.Add(1)))).Err() })},
			})
			if err != nil {
				return err
			}
			callers := fmt.Sprint(at.callers)
			r.info("redis: one GET each", callers, rates[1], "/s")
			r.info("redis: replay", callers, rates[0], "/s")
			if at.bar > 0 {
				r.atLeast("redis: replay / GET", callers, ratios[1], at.bar, "x")
			}
		}
		return nil
	})
}

// redisMemory: what a record with a result of 200 bytes takes on the server.
func redisMemory(r *report) error {
	return withRedis(func(b *redisBench) error {
		ctx := context.Background()
		if _, err := idem.Execute(ctx, b.store, scope, idem.Key(uuid.NewString()), idem.FingerprintBytes([]byte("request")),
			func(context.Context) ([]byte, error) { return make([]byte, 200), nil }); err != nil {
			return err
		}
		keys, err := b.raw.Keys(ctx, "*").Result()
		if err != nil {
			return err
		}
		var total int64
		for _, key := range keys {
			n, err := b.raw.MemoryUsage(ctx, key).Result()
			if err != nil {
				return err
			}
			total += n
		}
		r.atMost("redis: MEMORY USAGE of a record, 200-byte result", "-", float64(total), 460, " B")
		return nil
	})
}

// redisWindow: a repeat that the window's front answers, against a bare SET NX.
func redisWindow(r *report) error {
	return withRedis(func(b *redisBench) error {
		ctx := context.Background()
		w, err := redis.NewWindow(ctx, b.ours, nil)
		if err != nil {
			return err
		}
		const keys = 1000
		ids := make([]backend.ID, keys)
		for i := range ids {
			ids[i] = backend.ID{Operation: "count", Key: fmt.Sprint(i)}
			if first, err := w.Claim(ctx, ids[i]); err != nil || !first {
				return fmt.Errorf("claim: %v, %w", first, err)
			}
		}
		for _, n := range []int{1, 64} {
			var i, j atomic.Int64
			rates, ratios, err := r.compare(n, []variant{
				{name: "repeat", op: asServed(func(ctx context.Context) error {
					first, err := w.Claim(ctx, ids[j.Add(1)%keys])
					if first {
						return errors.New("a repeat was the first")
					}
					return err
				})},
				{name: "SET NX", op: asServed(func(ctx context.Context) error {
					return b.raw.SetNX(ctx, fmt.Sprintf("raw:%d", i.Add(1)%keys), "", time.Hour).Err()
				})},
			})
			if err != nil {
				return err
			}
			r.info("redis: repeats through Window", fmt.Sprint(n), rates[0], "/s")
			r.atLeast("redis: repeat through Window / SET NX", fmt.Sprint(n), ratios[1], 20, "x")
		}
		return nil
	})
}
