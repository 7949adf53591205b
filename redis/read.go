package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// maxTries is how often a step decides again because the record changed under it.
// Every failure means that another caller's step succeeded.
const maxTries = 64

// errContended ends a step that lost that often.
var errContended = errors.New("idem: the record is changed by others faster than this call can decide; nothing was changed, try again")

// view is a record as it stood at one moment.
type view struct {
	key    string
	value  string // "" for no key
	expire int64  // the key's expiry in Unix milliseconds, negative for none
	now    time.Time
	stored
}

// parse fills in what the value says.
func (v *view) parse(id *backend.ID) (err error) {
	if v.value == "" {
		return nil
	}
	v.stored, err = decode(v.value, v.expire, id)
	return err
}

// peek reads a record with plain commands.
//
// The pipeline is no transaction. A record that changes between its commands is
// seen with another's expiry: a native reservation then shows odd times and an odd
// fence, which whoever acts on them is told by the step that compares them.
func (s *Store) peek(ctx context.Context, id *backend.ID) (view, error) {
	v := view{key: s.key(id)}
	get, expire := redis.NewStringCmd(ctx, "get", v.key), redis.NewIntCmd(ctx, "pexpiretime", v.key)
	c := &call{key: v.key, cmds: []redis.Cmder{get, expire}, timed: true}
	if err := s.run.do(ctx, c); err != nil {
		return v, readFault(ctx, err)
	}
	return v, v.seen(ctx, id, get, expire, c.now)
}

// seen fills a view from the replies to GET (or SET GET) and PEXPIRETIME.
func (v *view) seen(ctx context.Context, id *backend.ID, get *redis.StringCmd, expire *redis.IntCmd, now time.Time) error {
	for _, err := range [...]error{get.Err(), expire.Err()} {
		if err != nil && err != redis.Nil {
			return readFault(ctx, err)
		}
	}
	v.value, v.expire, v.now = get.Val(), expire.Val(), now
	if v.value != "" && v.expire == -2 {
		// It was there for the first command and not for the last.
		*v = view{key: v.key, now: now}
	}
	return v.parse(id)
}

// look reads a record with the server's time, in one atomic step.
func (s *Store) look(ctx context.Context, id *backend.ID) (view, error) {
	key := s.key(id)
	reply, err := s.eval(ctx, &s.lua.look, []string{key})
	if err != nil {
		return view{key: key}, readFault(ctx, err)
	}
	return viewOf(key, reply, id)
}

// viewOf reads a script's answer: code, value, time, expiry.
func viewOf(key string, reply any, id *backend.ID) (view, error) {
	v := view{key: key, expire: -1}
	parts, ok := reply.([]any)
	if !ok || len(parts) != 4 {
		return v, errUnexpected
	}
	v.value, _ = parts[1].(string)
	now, ok1 := parts[2].(int64)
	expire, ok2 := parts[3].(int64)
	if !ok1 || !ok2 {
		return v, errUnexpected
	}
	v.now, v.expire = time.UnixMicro(now).UTC(), expire
	return v, v.parse(id)
}

// errUnexpected: a script answered in a form that it does not have. A proxy that
// rewrites replies would do that.
var errUnexpected = fmt.Errorf("%w: redis gave an answer of an unexpected form", backend.ErrOutcomeUnknown)

// withBody completes a view whose body is in its own key.
func (s *Store) withBody(ctx context.Context, id *backend.ID, v view) (view, error) {
	for range maxTries {
		if !v.bodyKey {
			return v, nil
		}
		if at := v.rec.At(v.now); at.State == 0 || at.BodyExpired {
			v.bodyKey = false
			return v, nil
		}
		get := redis.NewStringCmd(ctx, "get", s.bodyKey(v.key))
		if err := s.run.do(ctx, &call{key: v.key, cmds: []redis.Cmder{get}}); err != nil {
			return v, readFault(ctx, err)
		}
		switch err := get.Err(); {
		case err == nil:
			return v, v.attach(get.Val())
		case err != redis.Nil:
			return v, readFault(ctx, err)
		}
		// It has gone by itself if the replay window has ended since, or with its
		// record if that has changed. Otherwise it was evicted or deleted: the
		// operation took effect and its result is lost, which is no reason to run it
		// again.
		fresh, err := s.look(ctx, id)
		if err != nil {
			return v, err
		}
		if fresh.value == v.value && fresh.expire == v.expire && fresh.now.Before(fresh.rec.ReplayUntil) {
			return v, fmt.Errorf("%w: the stored result is gone from the server before its time", backend.ErrCorruptRecord)
		}
		v = fresh
	}
	return v, errContended
}

// attach takes over the value of the body's own key.
func (v *view) attach(value string) error {
	if len(value) < 8 || binary.LittleEndian.Uint64([]byte(value[:8])) != v.rec.Fence {
		return fmt.Errorf("%w: the stored result belongs to another attempt", backend.ErrCorruptRecord)
	}
	v.rec.Body, v.bodyKey = []byte(value[8:]), false
	if checksum(v.rec.Body) != v.bodySum {
		return fmt.Errorf("%w: checksum of the result differs", backend.ErrCorruptRecord)
	}
	return nil
}

// Get implements backend.Backend.
func (s *Store) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	if err := id.Validate(); err != nil {
		return backend.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return backend.Record{}, err
	}
	v, err := s.peek(ctx, &id)
	if err == nil {
		v, err = s.withBody(ctx, &id, v)
	}
	if err != nil {
		return backend.Record{}, err
	}
	// A record without expiry tells no time, and needs none: it has no window.
	rec := v.rec.At(v.now)
	if rec.State == 0 {
		return backend.Record{}, backend.ErrNotFound
	}
	return rec, nil
}
