package pgstore

import (
	"context"
	"fmt"

	"github.com/goidem/idem/backend"
)

const (
	// defaultExpire is how many records a round of Expire removes, unless it is told.
	defaultExpire = 1000
	// expireBatch is how many rows one statement takes: with fewer, each statement
	// walks over the dead index entries of the ones before.
	expireBatch = 5000
)

// head selects the rows that a sweeper has to look at, the oldest first, one more
// than $1 so that it shows whether something is left, and locks them. Rows that
// another sweeper or an owner has locked are passed over. The array that is made
// of it lets the server find the rows by primary key or place, however many it
// expects.
const head = `clock AS MATERIALIZED (SELECT %s AS t), due AS MATERIALIZED (` +
	`SELECT id, %s, body IS NOT NULL AS had FROM %s WHERE sweep_after <= (SELECT t FROM clock) ORDER BY sweep_after LIMIT $1::int8 + 1 FOR UPDATE SKIP LOCKED)`

// expireText removes rows of the head that have expired. State, expiry and format
// are judged on the locked row, in this very statement: a record that came back to
// life keeps its place (R24). Columns: removed, looked at.
//
// On PostgreSQL the rows are found by place, which spares a descent of the primary
// key for each. The lock of this statement keeps a row where it is. A row that moved
// before it was locked has a place that the statement's snapshot does not see: it is
// not removed, and the next look at the head finds it.
func expireText(n Names, d Dialect, now string) string {
	place := "id"
	if d.Places {
		place = "ctid"
	}
	return fmt.Sprintf(`WITH `+head+`, gone AS (`+
		`DELETE FROM %[3]s AS r USING clock WHERE r.%[6]s = ANY(ARRAY(SELECT place FROM due LIMIT $1::int8)) AND %[4]s AND %[5]s RETURNING 1) `+
		`SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM due)`,
		now, place+" AS place", n.Records, readable, expired, place)
}

// lookText moves sweep_after of what is left at the head, and drops bodies past
// their replay window. What has no window, and what cannot be read, is looked at
// again after $2 microseconds; nothing stays at the head. Columns: bodies dropped,
// looked at.
func lookText(n Names, now string) string {
	const drop = `(%s AND NOT %s AND r.body IS NOT NULL AND r.replay_until <= t)`
	dropped := fmt.Sprintf(drop, readable, expired)
	return fmt.Sprintf(`WITH `+head+`, looked AS (`+
		`UPDATE %[3]s AS r SET body = CASE WHEN %[4]s THEN NULL ELSE r.body END, `+
		`rev = CASE WHEN %[4]s THEN r.rev + 1 ELSE r.rev END, `+
		`sweep_after = CASE WHEN NOT %[5]s OR r.known_until IS NULL OR r.known_until <= t THEN %[6]s `+
		`WHEN r.body IS NOT NULL AND r.replay_until > t THEN least(r.replay_until, r.known_until) ELSE r.known_until END `+
		`FROM clock WHERE r.id = ANY(ARRAY(SELECT id FROM due LIMIT $1::int8)) AND NOT (%[5]s AND %[7]s) `+
		`RETURNING r.id, r.body IS NULL AS bare) `+
		`SELECT (SELECT count(*) FROM looked JOIN due ON due.id = looked.id WHERE due.had AND looked.bare), (SELECT count(*) FROM due)`,
		now, "id AS place", n.Records, dropped, readable, after(2), expired)
}

// Expire implements backend.Backend, in batches that are a transaction each.
func (s *Store[Tx]) Expire(ctx context.Context, r backend.ExpireRequest) (done backend.ExpireResult, err error) {
	left := int64(r.Limit)
	if left <= 0 {
		left = defaultExpire
	}
	for {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n := min(left, expireBatch)
		removed, looked, err := s.sweep(ctx, s.sql.expire, n)
		if err != nil {
			return done, err
		}
		done.Removed += int(removed)
		done.More = looked > n
		if removed < min(looked, n) {
			// Something at the head is not due. It is moved, or the next round would find
			// it there again.
			bodies, looked, err := s.sweep(ctx, s.sql.look, n, micros(unsettledSweep))
			if err != nil {
				return done, err
			}
			done.Bodies += int(bodies)
			done.More = looked > n
		}
		if left -= n; left <= 0 || !done.More {
			return done, nil
		}
	}
}

// sweep runs one of the two statements on the head.
func (s *Store[Tx]) sweep(ctx context.Context, text string, args ...any) (hit, looked int64, err error) {
	err = s.try(ctx, func() error {
		err := s.db.Do(ctx, &Stmt{SQL: text, Args: args, Row: func(sc Scanner) error { return sc.Scan(&hit, &looked) }})
		// A batch whose outcome is unknown has removed nothing that was not due: the
		// next round sees what is left.
		return asRead(err)
	})
	return hit, looked, err
}
