package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// DoAll runs statements as one implicit transaction: they are sent together, and the
// server commits at the end of the message or rolls everything back.
func (d PgxDB) DoAll(ctx context.Context, ss ...*Stmt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := d.acquire(ctx)
	if err != nil {
		return newFailure(ctx, err, false)
	}
	defer conn.Release()
	return closeBatch(ctx, conn.SendBatch(ctx, queue(new(pgx.Batch), ss)))
}
