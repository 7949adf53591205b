package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// endLimit bounds commit and roll-back, which run on a context detached from the
// caller's (R9): a caller that goes away must not leave a commit in doubt.
const endLimit = 5 * time.Second

// detached is ctx without its end, with a limit of its own.
func detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// lingering ends limit after ctx has ended.
func lingering(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel() }
}

// Begin implements [DB]: BEGIN and the first statements share a round trip.
func (d PgxDB) Begin(ctx context.Context, first ...*Stmt) (Link[pgx.Tx], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return nil, newFailure(ctx, err, false)
	}
	b := new(pgx.Batch)
	b.BeginTx(pgx.TxOptions{})
	br := conn.SendBatch(ctx, queue(b, first))
	tx := br.Tx() // before Close, so that a transaction that did begin can be ended
	l := &pgxLink{conn: conn, batches: conn.Conn(), tx: newPgxTx(tx)}
	if err := closeBatch(ctx, br); err != nil {
		l.Rollback(ctx)
		return nil, err
	}
	return l, nil
}

// Adopt implements [DB].
func (PgxDB) Adopt(tx pgx.Tx) Link[pgx.Tx] {
	return &pgxLink{batches: tx, tx: newPgxTx(tx)}
}

// pgxLink is a transaction on pgx.
type pgxLink struct {
	conn    *pgxpool.Conn // nil: the caller's own transaction
	batches interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	}
	tx *pgxTx
}

// Tx implements [Link].
func (l *pgxLink) Tx() pgx.Tx { return l.tx }

// Do implements [Link].
func (l *pgxLink) Do(ctx context.Context, ss ...*Stmt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return closeBatch(ctx, l.batches.SendBatch(ctx, queue(new(pgx.Batch), ss)))
}

// State implements [Link].
func (l *pgxLink) State() LinkState {
	if l.tx.ended.Load() {
		return LinkUnclear // by us, and the connection has no more to tell
	}
	c := l.tx.tx.Conn()
	if c == nil || c.IsClosed() {
		return LinkBroken
	}
	switch c.PgConn().TxStatus() {
	case 'T':
		return LinkOpen
	case 'E':
		return LinkAborted
	case 'I':
		return LinkEnded
	}
	return LinkUnclear
}

// Commit implements [Link].
func (l *pgxLink) Commit(ctx context.Context, last ...*Stmt) error {
	ctx, cancel := detached(ctx, endLimit)
	defer cancel()
	if l.conn.Conn().IsClosed() {
		// The connection broke before a commit was sent. That is a roll-back.
		l.free(ctx)
		return &Failure{cause: "the connection to the server failed before the commit"}
	}
	if l.conn.Conn().PgConn().IsBusy() {
		// Nothing can be sent behind an answer that is not read. That is the function's
		// mistake, and no commit in doubt: it is not run again.
		l.free(ctx)
		return &Failure{cause: "the function left the rows of a query open; close them before it returns; nothing was committed"}
	}
	var tag string
	b := queue(new(pgx.Batch), last)
	b.Queue("commit").Exec(func(t pgconn.CommandTag) error {
		tag = t.String()
		return nil
	})
	err := closeBatch(ctx, l.conn.SendBatch(ctx, b))
	defer l.free(ctx)
	return commitError(ctx, err, tag == "ROLLBACK")
}

// commitError classifies how a commit ended. The driver's word that a statement
// was not sent counts for nothing here: once a connection is closed, it says so of
// everything, sent or not.
func commitError(ctx context.Context, err error, undone bool) error {
	var f *Failure
	switch {
	case err == nil && undone:
		// COMMIT of an aborted transaction is a roll-back that looks like a success.
		return &Failure{Sent: true, Code: codeAborted}
	case err == nil:
		return nil
	case errors.As(err, &f) && f.Code != "":
		return asMove(f)
	case errors.As(err, &f):
		g := *f
		g.Sent, g.stale, g.wrote = true, false, true
		return &g
	case ctx.Err() != nil:
		return &Failure{Sent: true, wrote: true, ctx: ctx.Err()}
	}
	return err // of a Row: it came with an answer, and nothing was committed
}

// Rollback implements [Link].
func (l *pgxLink) Rollback(ctx context.Context) {
	ctx, cancel := detached(ctx, endLimit)
	defer cancel()
	if l.conn == nil {
		l.abandon(ctx)
		return
	}
	l.free(ctx)
}

// abandon ends a transaction of the caller, which may itself be a savepoint in
// another one. An aborted one commits nothing any more; of every other state the
// connection is closed, or the caller's commit would go through.
func (l *pgxLink) abandon(ctx context.Context) {
	if state := l.State(); state == LinkAborted || state == LinkBroken {
		return
	}
	c := l.tx.tx.Conn()
	if !c.PgConn().IsBusy() && l.tx.tx.Rollback(ctx) == nil && c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel() // see close
	_ = c.Close(ctx)
}

// free gives the connection back, out of any transaction, or closes it where it
// cannot be brought there: it must not be handed out again.
func (l *pgxLink) free(ctx context.Context) {
	l.tx.ended.Store(true)
	defer l.conn.Release() // closes what is still in a transaction
	c := l.conn.Conn()
	if c.IsClosed() || c.PgConn().TxStatus() == 'I' && !c.PgConn().IsBusy() {
		return
	}
	if c.PgConn().IsBusy() { // work left rows open
		l.close(ctx)
		return
	}
	if _, err := c.Exec(ctx, "rollback"); err != nil {
		l.close(ctx)
	}
}

func (l *pgxLink) close(ctx context.Context) {
	// The server may not answer: waiting for it is pointless, so the time for the
	// goodbye is over before it begins.
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = l.conn.Conn().Close(ctx)
}

// queue adds statements to a batch.
func queue(b *pgx.Batch, ss []*Stmt) *pgx.Batch {
	for _, s := range ss {
		s.Count = 0
		b.Queue(s.SQL, s.Args...).Fn = func(br pgx.BatchResults) error {
			rows, err := br.Query()
			if err != nil {
				return err
			}
			defer rows.Close()
			var bad error
			for rows.Next() {
				if s.Row != nil && bad == nil {
					if err := s.Row(rows); err != nil {
						bad = rowError{err}
					}
				}
			}
			if err := rows.Err(); err != nil && bad == nil {
				return err
			}
			s.Count = rows.CommandTag().RowsAffected()
			return bad
		}
	}
	return b
}

// rowError is an error of a Row on its way through the driver.
type rowError struct{ error }

func closeBatch(ctx context.Context, br pgx.BatchResults) error {
	err := br.Close()
	if own, ok := err.(rowError); ok {
		return own.error
	}
	return newFailure(ctx, err, true)
}
