package pgstore

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// errManaged answers a Commit or Rollback by the caller's function.
var errManaged = errors.New("idem: this transaction is committed by idem, together with the record of the key; return nil to commit it, and an error to roll it back") // lint:const sentinel

// pgxTx is the transaction that a caller's function gets. It cannot be ended through
// it (R19), nor used once it is over, when its connection is somebody else's.
type pgxTx struct {
	tx    pgx.Tx
	ended atomic.Bool
}

func newPgxTx(tx pgx.Tx) *pgxTx { return &pgxTx{tx: tx} }

// Commit is refused.
func (t *pgxTx) Commit(context.Context) error { return t.refuse() }

// Rollback is refused, quietly once the transaction is over, so that a deferred one
// does no harm.
func (t *pgxTx) Rollback(context.Context) error { return t.refuse() }

func (t *pgxTx) refuse() error {
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	return errManaged
}

// Begin opens a nested transaction, which is a savepoint and the function's own.
func (t *pgxTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.tx.Begin(ctx)
}

func (t *pgxTx) CopyFrom(ctx context.Context, table pgx.Identifier, names []string, rows pgx.CopyFromSource) (int64, error) {
	if t.ended.Load() {
		return 0, pgx.ErrTxClosed
	}
	return t.tx.CopyFrom(ctx, table, names, rows)
}

func (t *pgxTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.ended.Load() {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return t.tx.SendBatch(ctx, b)
}

func (t *pgxTx) LargeObjects() pgx.LargeObjects { return t.tx.LargeObjects() }

func (t *pgxTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.tx.Prepare(ctx, name, sql)
}

func (t *pgxTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.ended.Load() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.tx.Exec(ctx, sql, args...)
}

func (t *pgxTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.ended.Load() {
		return endedRows{}, pgx.ErrTxClosed
	}
	return t.tx.Query(ctx, sql, args...)
}

func (t *pgxTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.ended.Load() {
		return endedRows{}
	}
	return t.tx.QueryRow(ctx, sql, args...)
}

func (t *pgxTx) Conn() *pgx.Conn { return t.tx.Conn() }

// endedRows is what a query on an ended transaction gives.
type endedRows struct{}

func (endedRows) Close()                                       {}
func (endedRows) Err() error                                   { return pgx.ErrTxClosed }
func (endedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (endedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (endedRows) Next() bool                                   { return false }
func (endedRows) Scan(...any) error                            { return pgx.ErrTxClosed }
func (endedRows) Values() ([]any, error)                       { return nil, pgx.ErrTxClosed }
func (endedRows) RawValues() [][]byte                          { return nil }
func (endedRows) Conn() *pgx.Conn                              { return nil }
func (endedRows) TypeMap() *pgtype.Map                         { return nil }
