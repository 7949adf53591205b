package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// backlogCap bounds how many index entries one look at the backlog reads.
const backlogCap = 100_000

// Backlog implements backend.Backlogger: the head of the sweeper's index, up to a
// bound. Rows whose time is only coarsely known are counted too.
func (s *Store[Tx]) Backlog(ctx context.Context) (l backend.Backlog, err error) {
	st := &Stmt{
		SQL: fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %s AS t), due AS (`+
			`SELECT sweep_after FROM %s WHERE sweep_after <= (SELECT t FROM clock) ORDER BY sweep_after LIMIT $1::int8) `+
			`SELECT count(*), coalesce((extract(epoch FROM (SELECT t FROM clock) - min(sweep_after)) * 1000000)::int8, 0) FROM due`, s.sql.now, s.c.Names.Records),
		Args: []any{int64(backlogCap)},
		Row: func(sc Scanner) error {
			var micros int64
			err := sc.Scan(&l.Due, &micros)
			l.Oldest = time.Duration(micros) * time.Microsecond
			return err
		},
	}
	if err := s.try(ctx, func() error { return asRead(s.db.Do(ctx, st)) }); err != nil {
		return backend.Backlog{}, err
	}
	l.Capped = l.Due == backlogCap
	return l, nil
}
