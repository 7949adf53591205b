package redis

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// pageSize is about how many keys one round of List looks at.
const pageSize = 250

// List implements backend.Backend. It scans every master of a Cluster, a page at a
// time, and keeps the names of the keys it has seen, 16 bytes each: a scan may
// show a key twice.
func (s *Store) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(backend.Record{}, err)
			return
		}
		nodes, err := masters(ctx, s.client)
		if err != nil {
			yield(backend.Record{}, readFault(ctx, err))
			return
		}
		seen := make(map[string]struct{})
		for _, node := range nodes {
			for cursor := uint64(0); ; {
				keys, next, err := s.scan(ctx, node, cursor)
				if err != nil {
					yield(backend.Record{}, err)
					return
				}
				fresh := keys[:0]
				for _, key := range keys {
					name := key[len(s.prefix):]
					if _, twice := seen[name]; !twice {
						seen[strings.Clone(name)] = struct{}{}
						fresh = append(fresh, key)
					}
				}
				for len(fresh) > 0 {
					n := min(len(fresh), pageSize)
					if !s.page(ctx, fresh[:n], &f, yield) {
						return
					}
					fresh = fresh[n:]
				}
				if cursor = next; cursor == 0 {
					break
				}
			}
		}
	}
}

// scan returns the names of some keys of one server.
func (s *Store) scan(ctx context.Context, node redis.UniversalClient, cursor uint64) ([]string, uint64, error) {
	cmd := redis.NewScanCmd(ctx, nil, "scan", cursor, "match", s.pattern(), "count", pageSize)
	if err := (direct{client: node}).do(ctx, cmd); err != nil {
		return nil, 0, readFault(ctx, err)
	}
	keys, next, err := cmd.Result()
	if err != nil {
		return nil, 0, readFault(ctx, err)
	}
	return keys, next, nil
}

// pattern matches the names of records and of nothing else: a body's key is longer.
func (s *Store) pattern() string {
	var b strings.Builder
	for _, c := range []byte(s.prefix) {
		if strings.IndexByte(`*?[]\^-`, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteString(strings.Repeat("?", sumLength))
	return b.String()
}

// page reads the records of some keys and yields those that match. It reports
// whether to go on.
func (s *Store) page(ctx context.Context, keys []string, f *backend.Filter, yield func(backend.Record, error) bool) bool {
	stop := func(err error) bool {
		yield(backend.Record{}, err)
		return false
	}
	cmds := make([]redis.Cmder, 0, 3*len(keys))
	for _, key := range keys {
		// A time for each key: their servers may differ after all.
		cmds = append(cmds, redis.NewStringCmd(ctx, "get", key), redis.NewIntCmd(ctx, "pexpiretime", key), redis.NewIntCmd(ctx, "pttl", key))
	}
	// Not through the store's runner: a page is no part of anybody's batch.
	if err := (direct{client: s.client}).do(ctx, cmds...); err != nil {
		return stop(readFault(ctx, err))
	}
	for i, key := range keys {
		v := view{key: key}
		get, expire, left := cmds[3*i].(*redis.StringCmd), cmds[3*i+1].(*redis.IntCmd), cmds[3*i+2].(*redis.IntCmd)
		if err := left.Err(); err != nil {
			return stop(readFault(ctx, err))
		}
		var now time.Time
		if expire.Val() >= 0 && left.Val() >= 0 {
			now = time.UnixMilli(expire.Val() - left.Val()).UTC()
		}
		if err := v.seen(ctx, nil, get, expire, now); err != nil {
			return stop(err)
		}
		if v.rec.State == 0 {
			continue
		}
		if v.now.IsZero() && f.OlderThan > 0 { // no expiry to tell the time by
			now, err := s.clock(ctx, key)
			if err != nil {
				return stop(err)
			}
			v.now = now
		}
		rec := v.rec.At(v.now)
		if rec.State == 0 || !f.Match(&rec, v.now) {
			continue
		}
		if v.bodyKey {
			id := v.rec.ID
			full, err := s.withBody(ctx, &id, v)
			if err != nil {
				return stop(err)
			}
			if rec = full.rec.At(full.now); rec.State == 0 || !f.Match(&rec, full.now) {
				continue
			}
		}
		if !yield(rec, nil) {
			return false
		}
		if err := ctx.Err(); err != nil {
			return stop(err)
		}
	}
	return true
}

// clock asks the server that holds a key for its time.
func (s *Store) clock(ctx context.Context, key string) (time.Time, error) {
	reply, err := s.eval(ctx, &s.lua.look, []string{key})
	if err != nil {
		return time.Time{}, readFault(ctx, err)
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) != 4 {
		return time.Time{}, errUnexpected
	}
	now, ok := parts[2].(int64)
	if !ok {
		return time.Time{}, errUnexpected
	}
	return time.UnixMicro(now).UTC(), nil
}
