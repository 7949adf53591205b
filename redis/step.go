package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// graveFor is how long the grave of a forgotten record stays: its fence, so that an
// attempt of the same millisecond, or of a server whose clock is a little behind,
// still gets a higher one.
const graveFor = time.Second

// move says by how much the times that a decision counted from its own moment
// moved along to the moment of the swap.
type move struct {
	by   time.Duration
	mask int // bit 0 reserved, 1 lease or completed, 2 replay, 3 known
}

// times returns the times that a value holds, in its order.
func times(rec *backend.Record) [4]*time.Time {
	at := &rec.LeaseUntil
	if settled(rec.State) {
		at = &rec.CompletedAt
	}
	return [4]*time.Time{&rec.ReservedAt, at, &rec.ReplayUntil, &rec.KnownUntil}
}

// shift moves the times of a decided record along.
func (m move) shift(rec *backend.Record) {
	for i, t := range times(rec) {
		if m.mask&(1<<i) != 0 && !t.IsZero() {
			*t = t.Add(m.by)
		}
	}
}

// step reads a record, lets Go decide and swaps the record for the next one,
// again until nobody has changed it in between.
//
// Between the decision and the swap time passes. What is free stays free, since an
// unchanged record's lease only comes nearer to its end; what the decision counts
// from now counts from the swap.
func (s *Store) step(ctx context.Context, id *backend.ID, decide func(v *view) (backend.Step, error)) (move, error) {
	for range maxTries {
		v, err := s.look(ctx, id)
		if err == nil {
			v, err = s.withBody(ctx, id, v)
		}
		if err != nil {
			return move{}, err
		}
		next, err := decide(&v)
		if err != nil || !next.Changed {
			return move{}, err
		}
		m, done, err := s.swap(ctx, &v, &next.Next)
		if done || err != nil {
			return m, err
		}
		if err := ctx.Err(); err != nil {
			return move{}, err
		}
	}
	return move{}, errContended
}

// swap puts next in the place of what v shows. It reports false if that is not
// there any more.
func (s *Store) swap(ctx context.Context, v *view, next *backend.Record) (move, bool, error) {
	var m move
	var value, body []byte
	if next.State == 0 {
		value = grave(&v.rec, v.now)
		m.mask = 1 << 3
	} else {
		value, body = encode(next)
		was := times(&v.rec)
		for i, t := range times(next) {
			if !t.Equal(*was[i]) || settled(next.State) != settled(v.rec.State) && i == 1 {
				m.mask |= 1 << i
			}
			if t.IsZero() {
				m.mask &^= 1 << i
			}
		}
	}
	reply, short, err := s.evalWrite(ctx, &s.lua.swap, []string{v.key, s.bodyKey(v.key)},
		v.rec.ID.AppendTo(nil), head(v.value), len(v.value), v.expire, value, v.now.UnixMicro(), m.mask, body)
	if err != nil {
		return m, false, writeFault(ctx, err)
	}
	moved, ok := reply.(int64)
	if !ok {
		return m, false, errUnexpected
	}
	if moved < 0 {
		return m, false, nil
	}
	m.by = time.Duration(moved) * time.Microsecond
	return m, true, short
}

// grave returns the value that stands for a forgotten record for a while.
func grave(rec *backend.Record, now time.Time) []byte {
	value, _ := encode(&backend.Record{Ref: backend.Ref{ID: rec.ID}, Fence: rec.Fence, KnownUntil: now.Add(graveFor)})
	return value
}

// Resolve implements backend.Backend.
func (s *Store) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	if err := r.Validate(); err != nil {
		return rec, err
	}
	if err := ctx.Err(); err != nil {
		return rec, err
	}
	r.ReplayFor, r.KnownFor = min(r.ReplayFor, longestSpan), min(r.KnownFor, longestSpan)
	moved, err := s.step(ctx, &r.ID, func(v *view) (step backend.Step, err error) {
		step, rec, err = r.Apply(v.rec, v.now)
		return step, err
	})
	if err != nil {
		return backend.Record{}, err
	}
	moved.shift(&rec)
	return rec, nil
}

// Forget implements backend.Backend.
func (s *Store) Forget(ctx context.Context, r backend.ForgetRequest) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	tried := false
	_, err := s.step(ctx, &r.ID, func(v *view) (backend.Step, error) {
		if tried && v.grave == r.Fence {
			// The client sent the deletion twice, because its first reply got lost.
			return backend.Step{}, nil
		}
		tried = true
		return r.Apply(v.rec, v.now)
	})
	return err
}

// Expire implements backend.Backend. Redis removes what is due by itself: a
// record's key expires with its dedup window, a large body's key with its replay
// window. So there is never anything left to do.
func (s *Store) Expire(ctx context.Context, _ backend.ExpireRequest) (backend.ExpireResult, error) {
	if err := ctx.Err(); err != nil {
		return backend.ExpireResult{}, fmt.Errorf("idem: nothing was removed: %w", err)
	}
	return backend.ExpireResult{}, nil
}
