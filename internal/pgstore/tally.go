package pgstore

import (
	"context"
	"fmt"

	"github.com/goidem/idem/backend"
)

var (
	_ backend.Tallier    = (*Store[any])(nil)
	_ backend.Backlogger = (*Store[any])(nil)
)

// Tally implements backend.Tallier: one statement, of which only the groups come
// back. The length of a body is known without reading the body.
func (s *Store[Tx]) Tally(ctx context.Context) (tallies []backend.Tally, err error) {
	st := &Stmt{SQL: fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %s AS t) `+
		`SELECT r.operation, r.state, r.state = 1 AND r.lease_until IS NOT NULL AND r.lease_until <= t, count(*), `+
		`coalesce(sum(CASE WHEN r.replay_until IS NULL OR r.replay_until > t THEN octet_length(r.body) END), 0)::int8, min(r.reserved_at) `+
		`FROM %s AS r, clock WHERE NOT %s GROUP BY 1, 2, 3`, s.sql.now, s.c.Names.Records, expired)}
	err = s.try(ctx, func() error {
		tallies = nil
		st.Row = func(sc Scanner) error {
			var (
				t     backend.Tally
				state int16
			)
			if err := sc.Scan(&t.Operation, &state, &t.Abandoned, &t.Records, &t.Bytes, &t.Oldest); err != nil {
				return err
			}
			t.State, t.Oldest = backend.State(state), t.Oldest.UTC()
			tallies = append(tallies, t)
			return nil
		}
		return asRead(s.db.Do(ctx, st))
	})
	return tallies, err
}
