package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PgxDB is a [DB] on a pool of pgx.
type PgxDB struct{ Pool *pgxpool.Pool }

// Conns implements [DB].
func (d PgxDB) Conns() int { return int(d.Pool.Config().MaxConns) }

// Do implements [DB].
func (d PgxDB) Do(ctx context.Context, s *Stmt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := d.acquire(ctx)
	if err != nil {
		return newFailure(ctx, err, false)
	}
	// A connection that broke is closed by now; the pool drops it instead of handing
	// it out again.
	defer conn.Release()
	return pgxDo(ctx, conn, s)
}

// dialPatience is how long a statement waits for a connection that is being opened for
// it while others are in use; it doubles with each.
const dialPatience = 20 * time.Millisecond

// acquire takes a connection for one statement.
//
// Where none is idle and the pool may grow, it opens one for the caller, who waits for
// that very one, whatever comes back meanwhile. A server under load, or far away, takes
// hundreds of milliseconds for that, and behind the statement there may be a batch of
// completions whose leases run out. So in a pool with connections in use the caller waits
// for its own only for a while and asks again: the pool goes on opening it, for whoever
// comes, and the caller gets what is free first.
func (d PgxDB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	for patience := dialPatience; ; patience *= 2 {
		st := d.Pool.Stat()
		if st.IdleConns() > 0 || st.AcquiredConns() == 0 || st.TotalConns() >= st.MaxConns() {
			return d.Pool.Acquire(ctx)
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		conn, err := d.Pool.Acquire(limited)
		over := limited.Err() != nil
		cancel()
		if err == nil || !over || ctx.Err() != nil {
			return conn, err
		}
	}
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
