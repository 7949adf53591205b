package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// completeText is CompleteRequest.Apply for completed and failed, where the token
// owns the key in flight or uncertain. $1 id, $2 owner, $3 state, $4 body, $5
// replay window, $6 dedup window.
//
// sweep_after is left alone, and the update HOT, unless the sweeper would come later
// than twice the window: an outcome that is kept for much less time than was thought
// at the reserve.
func completeText(n Names, now string) string {
	return fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %s AS t) `+
		`UPDATE %s AS r SET rev = r.rev + 1, state = $3::int2, body = $4::bytea, holder_host = '', holder_pid = 0, holder_started = NULL, `+
		`lease_until = NULL, completed_at = t, replay_until = %s, known_until = %s, `+
		`sweep_after = CASE WHEN r.sweep_after > greatest(r.lease_until, t) + 2 * $6::int8 * interval '1 microsecond' THEN %[4]s ELSE r.sweep_after END `+
		`FROM clock WHERE r.id = $1::uuid AND r.owner = $2::uuid AND r.state IN (1, 4) AND %s AND NOT %s RETURNING %s, t`,
		now, n.Records, after(5), after(6), readable, expired, columnsBut())
}

// releaseText is ApplyRelease in flight. $1 id, $2 owner, $3 how long it stays open.
func releaseText(n Names, now string) string {
	return fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %s AS t) `+
		`UPDATE %s AS r SET rev = r.rev + 1, state = 5, fingerprint = NULL, body = NULL, `+
		`lease_until = NULL, completed_at = NULL, replay_until = NULL, known_until = %s, sweep_after = least(r.sweep_after, %[3]s) `+
		`FROM clock WHERE r.id = $1::uuid AND r.owner = $2::uuid AND r.state = 1 AND %s AND NOT %s`,
		now, n.Records, after(3), readable, expired)
}

// renewText is ApplyRenew where it moves the lease. $1 id, $2 owner, $3 lease. What
// lies between the end of the lease and that of the record stays, counted in
// seconds: the difference of two times has days in it.
func renewText(n Names, now string) string {
	return fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %s AS t) `+
		`UPDATE %s AS r SET rev = r.rev + 1, lease_until = %s, `+
		`known_until = r.known_until + extract(epoch from (%[3]s - r.lease_until))::float8 * interval '1 second' `+
		`FROM clock WHERE r.id = $1::uuid AND r.owner = $2::uuid AND r.state = 1 AND r.lease_until < %[3]s AND %[4]s AND NOT %[5]s`,
		now, n.Records, after(3), readable, expired)
}

// Complete implements backend.Backend.
func (s *Store[Tx]) Complete(ctx context.Context, r backend.CompleteRequest) (backend.Record, error) {
	if err := r.Validate(); err != nil {
		return backend.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return backend.Record{}, err
	}
	r.ReplayFor, r.KnownFor = roundUp(r.ReplayFor), roundUp(r.KnownFor)
	if r.State != backend.Uncertain {
		rec, done, err := s.completeMerged(ctx, &r)
		if err != nil || done {
			return rec, err
		}
	}
	return s.completeAny(ctx, &r)
}

// completeOne is one completion of a record that the token owns. done is false where
// it does not: completeAny knows what that means.
func (s *Store[Tx]) completeOne(ctx context.Context, r *backend.CompleteRequest) (rec backend.Record, done bool, err error) {
	err = s.try(ctx, func() error {
		st := s.completeStmt(r)
		st.Row = func(sc Scanner) error {
			cur, err := scanRow(sc, r.ID)
			rec = cur.rec
			return err
		}
		err := s.doWaiting(ctx, st, waitText(moveWait))
		done = st.Count > 0
		return asMove(err)
	})
	if err != nil || !done {
		return backend.Record{}, false, err
	}
	if len(r.Body) > 0 {
		rec.Body = append([]byte{}, r.Body...)
	}
	return rec, true, nil
}

func (s *Store[Tx]) completeStmt(r *backend.CompleteRequest) *Stmt {
	return &Stmt{SQL: s.sql.complete, Args: []any{
		token(r.ID.Sum()), token(r.Owner), int16(r.State), bytesOrNull(r.Body), micros(r.ReplayFor), micros(r.KnownFor),
	}}
}

// completeAny is every completion, the general way.
func (s *Store[Tx]) completeAny(ctx context.Context, r *backend.CompleteRequest) (rec backend.Record, err error) {
	err = s.step(ctx, r.ID, moveWait, func(cur row) (step backend.Step, err error) {
		step, rec, err = r.Apply(cur.rec, cur.now)
		return step, err
	})
	if err != nil {
		return backend.Record{}, err
	}
	return rec, nil
}

// Release implements backend.Backend.
func (s *Store[Tx]) Release(ctx context.Context, ref backend.Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	done, err := s.releaseOne(ctx, ref)
	if err != nil || done {
		return err
	}
	return s.step(ctx, ref.ID, moveWait, func(cur row) (backend.Step, error) { return ref.ApplyRelease(cur.rec, cur.now) })
}

// releaseOne is one release of a key in flight that the token owns.
func (s *Store[Tx]) releaseOne(ctx context.Context, ref backend.Ref) (done bool, err error) {
	if s.merge != nil {
		return moveMerged(ctx, s.merge.release, ref, backend.OpenFor)
	}
	return s.moveOne(ctx, moveWait, &Stmt{SQL: s.sql.release, Args: []any{token(ref.ID.Sum()), token(ref.Owner), micros(backend.OpenFor)}})
}

// Renew implements backend.Backend.
func (s *Store[Tx]) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	if err := ref.ValidateRenew(ttl); err != nil {
		return err
	}
	ttl = roundUp(ttl)
	done, err := s.renewOne(ctx, ref, ttl)
	if err != nil || done {
		return err
	}
	return s.renewAny(ctx, ref, ttl)
}

// renewOne is one renewal of a lease that the token holds and that it moves. done is
// false where not: renewAny knows what that means.
func (s *Store[Tx]) renewOne(ctx context.Context, ref backend.Ref, ttl time.Duration) (done bool, err error) {
	if s.merge != nil {
		return moveMerged(ctx, s.merge.renew, ref, ttl)
	}
	return s.moveOne(ctx, s.c.LockWait, &Stmt{SQL: s.sql.renew, Args: []any{token(ref.ID.Sum()), token(ref.Owner), micros(ttl)}})
}

// renewAny is every renewal, the general way. It does not wait for a lock: behind a
// Finish of the same attempt, which holds the record until it commits, it would hold a
// second connection for as long (R20). Its caller asks again within the lease.
func (s *Store[Tx]) renewAny(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	return s.step(ctx, ref.ID, s.c.LockWait, func(cur row) (backend.Step, error) { return ref.ApplyRenew(cur.rec, cur.now, ttl) })
}

// moveOne runs a statement that changes one row or none.
func (s *Store[Tx]) moveOne(ctx context.Context, wait time.Duration, st *Stmt) (done bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	err = s.try(ctx, func() error { return asMove(s.doWaiting(ctx, st, waitText(wait))) })
	return st.Count > 0, err
}

// Get implements backend.Backend.
func (s *Store[Tx]) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	if err := id.Validate(); err != nil {
		return backend.Record{}, err
	}
	var cur row
	err := s.try(ctx, func() (err error) {
		cur, err = s.read(ctx, id)
		return err
	})
	if err != nil {
		return backend.Record{}, err
	}
	rec := cur.rec.At(cur.now)
	if rec.State == 0 {
		return backend.Record{}, backend.ErrNotFound
	}
	return rec, nil
}

// Resolve implements backend.Backend.
func (s *Store[Tx]) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	if err := r.Validate(); err != nil {
		return rec, err
	}
	r.ReplayFor, r.KnownFor = roundUp(r.ReplayFor), roundUp(r.KnownFor)
	err = s.step(ctx, r.ID, moveWait, func(cur row) (step backend.Step, err error) {
		step, rec, err = r.Apply(cur.rec, cur.now)
		return step, err
	})
	if err != nil {
		return backend.Record{}, err
	}
	return rec, nil
}

// Forget implements backend.Backend.
func (s *Store[Tx]) Forget(ctx context.Context, r backend.ForgetRequest) error {
	if err := r.Validate(); err != nil {
		return err
	}
	err := s.step(ctx, r.ID, moveWait, func(cur row) (backend.Step, error) { return r.Apply(cur.rec, cur.now) })
	if err == nil {
		s.tx.known.drop(token(r.ID.Sum())) // its next reserve need not look first
	}
	return err
}
