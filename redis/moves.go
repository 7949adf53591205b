package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// Complete implements backend.Backend.
func (s *Store) Complete(ctx context.Context, r backend.CompleteRequest) (backend.Record, error) {
	if err := r.Validate(); err != nil {
		return backend.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return backend.Record{}, err
	}
	if v, ok := s.kept.take(&r.Ref); ok && inline(&r) {
		if rec, done, err := s.finish(ctx, &r, &v); done || err != nil {
			return rec, err
		}
	}
	return s.complete(ctx, &r)
}

// inline reports whether a completion leaves one key with one window.
func inline(r *backend.CompleteRequest) bool {
	return r.State != backend.Uncertain && (len(r.Body) <= inlineBody || r.ReplayFor >= r.KnownFor)
}

// finish completes an attempt that this handle has reserved. It reports false if the
// record is not as it was then: renewed, lost, or completed by an earlier copy.
func (s *Store) finish(ctx context.Context, r *backend.CompleteRequest, v *kept) (backend.Record, bool, error) {
	known := millis(r.KnownFor)
	replay := min(millis(r.ReplayFor), known)
	value, rec := v.settle(r, replay, known)
	reply, short, err := s.evalWrite(ctx, &s.lua.finish, []string{s.key(&r.ID)}, v.value, value, known)
	if err != nil {
		return backend.Record{}, false, writeFault(ctx, err)
	}
	end, ok := reply.(int64)
	switch {
	case !ok:
		return backend.Record{}, false, errUnexpected
	case end < 0:
		return backend.Record{}, false, nil
	case short != nil:
		return backend.Record{}, false, short
	}
	rec.KnownUntil = time.UnixMilli(end).UTC()
	rec.CompletedAt = time.UnixMilli(end - known).UTC()
	rec.ReplayUntil = time.UnixMilli(end - known + replay).UTC()
	return rec, true, nil
}

// complete is a completion that the server takes apart and puts together.
func (s *Store) complete(ctx context.Context, r *backend.CompleteRequest) (backend.Record, error) {
	var buf [3 + backend.MaxTenant + backend.MaxOperation + backend.MaxKey]byte
	name := r.ID.AppendTo(buf[:0])
	replay, known := micros(r.ReplayFor), micros(r.KnownFor)
	// The caller's bytes are copied: a command may be under way when its caller has
	// left and uses them again.
	inline, apart := append([]byte(nil), r.Body...), []byte(nil)
	sum := binary.LittleEndian.AppendUint32(nil, checksum(r.Body))
	key := s.key(&r.ID)
	keys := []string{key}
	if r.State == backend.Uncertain {
		replay, known = 0, 0
	} else if len(r.Body) > inlineBody && replay < known {
		// Its fence is not known here: the script puts it in front.
		inline, apart = nil, inline
		keys = append(keys, s.bodyKey(key))
	}
	reply, short, err := s.evalWrite(ctx, &s.lua.complete, keys, name, r.Owner[:], int(r.State), replay, known, inline, sum, apart)
	if err != nil {
		return backend.Record{}, writeFault(ctx, err)
	}
	switch reply := reply.(type) {
	case int64:
		return backend.Record{}, backend.ErrLeaseLost
	case string:
		if len(reply) < headerSize {
			return backend.Record{}, errUnexpected
		}
		if short != nil {
			return backend.Record{}, short
		}
		// The reply has no body, so its checksum is not that of a body: it is taken
		// for one that is in its own key.
		header := []byte(reply[:headerSize])
		header[2] |= flagBodyKey
		st, err := decodeRest(string(header), string(name), reply[headerSize:], -1, r.ID)
		if err != nil {
			return backend.Record{}, err
		}
		if len(r.Body) > 0 {
			st.rec.Body = append([]byte(nil), r.Body...)
		}
		return st.rec, nil
	}
	if err := unreadable(reply, &r.ID); err != nil {
		return backend.Record{}, err
	}
	v, err := viewOf(key, reply, &r.ID)
	if err == nil {
		v, err = s.withBody(ctx, &r.ID, v)
	}
	if err != nil {
		return backend.Record{}, err
	}
	rec := v.rec.At(v.now)
	if rec.State == 0 {
		return backend.Record{}, backend.ErrLeaseLost
	}
	// This token's completion stands from an earlier copy, whose acknowledgement may
	// be what was missing.
	if err := s.acks.again(ctx, s.run, s.prefix, key); err != nil {
		return backend.Record{}, err
	}
	return rec, nil
}

// Release implements backend.Backend.
func (s *Store) Release(ctx context.Context, ref backend.Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.kept.take(&ref)
	name := ref.ID.AppendTo(nil)
	sum := binary.LittleEndian.AppendUint32(nil, checksum(name))
	return s.plain(ctx, &s.lua.release, &ref, name, ref.Owner[:], sum, micros(backend.OpenFor))
}

// Renew implements backend.Backend.
func (s *Store) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	if err := ref.ValidateRenew(ttl); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.kept.take(&ref) // the record will not be as it was sent
	return s.plain(ctx, &s.lua.renew, &ref, ref.ID.AppendTo(nil), ref.Owner[:], micros(ttl))
}

// plain runs a script that answers done or lost.
func (s *Store) plain(ctx context.Context, sc *script, ref *backend.Ref, args ...any) error {
	reply, short, err := s.evalWrite(ctx, sc, []string{s.key(&ref.ID)}, args...)
	if err != nil {
		return writeFault(ctx, err)
	}
	switch reply {
	case int64(answerDone):
		if sc == &s.lua.release {
			// A release that is lost in a failover costs time, no second execution.
			return nil
		}
		return short
	case int64(answerLost):
		return backend.ErrLeaseLost
	}
	if err := unreadable(reply, &ref.ID); err != nil {
		return err
	}
	return errUnexpected
}

// unreadable names the fault of a value that a script would not trust; nil if the
// reply is no such answer.
func unreadable(reply any, id *backend.ID) error {
	parts, ok := reply.([]any)
	if !ok || len(parts) != 2 || parts[0] != int64(answerUnreadable) {
		return nil
	}
	value, _ := parts[1].(string)
	if _, err := decode(value, -1, id); err != nil {
		return err
	}
	return fmt.Errorf("%w: its parts do not add up", backend.ErrCorruptRecord)
}
