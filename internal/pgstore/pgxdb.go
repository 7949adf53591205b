package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PgxDB is a [DB] on a pool of pgx.
type PgxDB struct{ Pool *pgxpool.Pool }

// Do implements [DB].
func (d PgxDB) Do(ctx context.Context, s *Stmt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return newFailure(ctx, err, false)
	}
	// A connection that broke is closed by now; the pool drops it instead of handing
	// it out again.
	defer conn.Release()
	return pgxDo(ctx, conn, s)
}

// pgxQuerier is a connection or a transaction.
type pgxQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// pgxDo runs s. An error of s.Row is returned as it is, after the statement has
// come to its end.
func pgxDo(ctx context.Context, q pgxQuerier, s *Stmt) error {
	s.Count = 0
	rows, err := q.Query(ctx, s.SQL, s.Args...)
	if err != nil {
		return newFailure(ctx, err, true)
	}
	defer rows.Close()
	var bad error
	for rows.Next() {
		if s.Row != nil && bad == nil {
			bad = s.Row(rows)
		}
	}
	if err := rows.Err(); err != nil && bad == nil {
		return newFailure(ctx, err, true)
	}
	s.Count = rows.CommandTag().RowsAffected()
	return bad
}
