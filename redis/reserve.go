package redis

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// Reserve implements backend.Backend.
func (s *Store) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	if err := r.Validate(); err != nil {
		return backend.Reservation{}, err
	}
	if err := ctx.Err(); err != nil {
		return backend.Reservation{}, err
	}
	switch {
	case r.TakeOver != 0:
		return s.takeOver(ctx, &r)
	case r.OnAbandoned == backend.Rerun:
		return s.reserveNative(ctx, &r)
	}
	return s.reserveByScript(ctx, &r)
}

// reserveNative reserves with one SET NX GET. It creates the record or answers the
// one that is there, a repeated copy's own included.
//
// The times of the record follow from the expiry that the server gave the key, and
// so does its fence: the server's millisecond at the reserve, in microseconds. A
// key's expiry is changed only by scripts that store fence and times in the value.
func (s *Store) reserveNative(ctx context.Context, r *backend.ReserveRequest) (backend.Reservation, error) {
	key, ttl, known := s.key(&r.ID), millis(r.TTL), millis(r.KnownFor)
	// Times and fence are filled in below; nothing else depends on them.
	_, fresh, err := r.Apply(backend.Record{}, time.UnixMicro(1), 0)
	if err != nil {
		return backend.Reservation{}, err
	}
	rec := &fresh.Record
	value, _ := encode(rec)
	makeRelative(value, ttl, known)
	set := redis.NewStringCmd(ctx, "set", key, value, "nx", "get", "px", ttl+known)
	expire := redis.NewIntCmd(ctx, "pexpiretime", key)
	c := &call{key: key, cmds: []redis.Cmder{set, expire}, timed: true, acked: true}
	if err := s.run.do(ctx, c); err != nil {
		return backend.Reservation{}, writeFault(ctx, err)
	}
	if set.Err() == redis.Nil && expire.Err() == nil && expire.Val() >= 0 {
		if c.short != nil {
			return backend.Reservation{}, c.short
		}
		began := expire.Val() - ttl - known
		rec.Fence = uint64(began) * 1000
		rec.ReservedAt = time.UnixMilli(began).UTC()
		rec.LeaseUntil = time.UnixMilli(began + ttl).UTC()
		rec.KnownUntil = time.UnixMilli(began + ttl + known).UTC()
		fresh.Now = rec.ReservedAt
		s.kept.put(r.Owner, kept{value, rec.Fence, began})
		return fresh, nil
	}
	if err := set.Err(); err != nil && err != redis.Nil {
		return backend.Reservation{}, writeFault(ctx, err)
	}
	if err := expire.Err(); err != nil {
		return backend.Reservation{}, writeFault(ctx, err)
	}
	v := view{key: key}
	if err := v.seen(ctx, &r.ID, set, expire, c.now); err != nil {
		return backend.Reservation{}, err
	}
	if v.value == "" || v.grave != 0 || v.now.IsZero() {
		// A grave, whose fence the new one must exceed; a record that changed between
		// the commands; or a server that does not tell the time.
		return s.reserveByScript(ctx, r)
	}
	return s.answer(ctx, r, v)
}

// answer decides a plain reserve over a record that is there: it changes nothing.
func (s *Store) answer(ctx context.Context, r *backend.ReserveRequest, v view) (backend.Reservation, error) {
	v, err := s.withBody(ctx, &r.ID, v)
	if err != nil {
		return backend.Reservation{}, err
	}
	if v.rec.State == 0 { // gone while its body was read
		return s.reserveByScript(ctx, r)
	}
	_, res, err := r.Apply(v.rec, v.now, 0)
	if err == nil {
		err = s.granted(ctx, v.key, &res)
	}
	if err != nil {
		return backend.Reservation{}, err
	}
	return res, nil
}

// granted asks again for the acknowledgement of a grant that an earlier copy of the
// reserve got.
func (s *Store) granted(ctx context.Context, key string, res *backend.Reservation) error {
	if res.Outcome != backend.Acquired {
		return nil
	}
	return s.acks.again(ctx, s.run, s.prefix, key)
}

// reserveByScript reserves where a native SET would not do.
func (s *Store) reserveByScript(ctx context.Context, r *backend.ReserveRequest) (backend.Reservation, error) {
	_, fresh, err := r.Apply(backend.Record{}, time.UnixMicro(1), 0)
	if err != nil {
		return backend.Reservation{}, err
	}
	value, _ := encode(&fresh.Record)
	known := int64(0)
	if r.OnAbandoned == backend.Rerun {
		known = micros(r.KnownFor)
	}
	key := s.key(&r.ID)
	reply, short, err := s.evalWrite(ctx, &s.lua.reserve, []string{key}, r.ID.AppendTo(nil), value, micros(r.TTL), known)
	if err != nil {
		return backend.Reservation{}, writeFault(ctx, err)
	}
	v, err := viewOf(key, reply, &r.ID)
	if err != nil {
		return backend.Reservation{}, err
	}
	if code, _ := reply.([]any)[0].(int64); code == answerDone {
		if short != nil {
			return backend.Reservation{}, short
		}
		return backend.Reservation{Outcome: backend.Acquired, Record: v.rec, Now: v.now}, nil
	}
	return s.answer(ctx, r, v)
}

// takeOver reserves over an existing record. It is rare, so it reads, decides in
// Go, and swaps the very record that it has seen for the next one.
func (s *Store) takeOver(ctx context.Context, r *backend.ReserveRequest) (res backend.Reservation, err error) {
	moved, err := s.step(ctx, &r.ID, func(v *view) (step backend.Step, err error) {
		step, res, err = r.Apply(v.rec, v.now, uint64(v.now.UnixMicro()))
		return step, err
	})
	if err == nil && moved.mask == 0 {
		err = s.granted(ctx, s.key(&r.ID), &res)
	}
	if err != nil {
		return backend.Reservation{}, err
	}
	moved.shift(&res.Record)
	res.Now = res.Now.Add(moved.by)
	return res, nil
}
