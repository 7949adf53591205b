package pgstore

import (
	"context"
	"database/sql"
)

// SQLDB is a [DB] on database/sql.
type SQLDB struct{ DB *sql.DB }

// Conns implements [DB].
func (d SQLDB) Conns() int { return d.DB.Stats().MaxOpenConnections }

// Do implements [DB].
func (d SQLDB) Do(ctx context.Context, s *Stmt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// The connection is taken apart from the statement, so that an error tells on
	// which side of the sending it happened.
	conn, err := d.DB.Conn(ctx)
	if err != nil {
		return newFailure(ctx, err, false)
	}
	defer conn.Close() // gives it back; database/sql drops it where it is broken
	return sqlDo(ctx, conn, s)
}

// sqlQuerier is a connection or a transaction.
type sqlQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// sqlDo runs s. An error of s.Row is returned as it is, after the statement has
// come to its end.
func sqlDo(ctx context.Context, q sqlQuerier, s *Stmt) error {
	s.Count = 0
	if s.Row == nil {
		done, err := q.ExecContext(ctx, s.SQL, s.Args...)
		if err != nil {
			return newFailure(ctx, err, true)
		}
		s.Count, err = done.RowsAffected()
		return newFailure(ctx, err, true)
	}
	rows, err := q.QueryContext(ctx, s.SQL, s.Args...)
	if err != nil {
		return newFailure(ctx, err, true)
	}
	defer rows.Close()
	var bad error
	for rows.Next() {
		s.Count++
		if bad == nil {
			bad = s.Row(rows)
		}
	}
	if over := ctx.Err(); bad != nil && over != nil {
		// database/sql closes the rows under a scan when the context ends: that is no
		// broken record.
		return newFailure(ctx, over, true)
	}
	if err := rows.Err(); err != nil && bad == nil {
		return newFailure(ctx, err, true)
	}
	return bad
}
