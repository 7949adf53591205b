package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Begin implements [DB].
//
// database/sql rolls a transaction back by itself when the context of BeginTx ends,
// even in the middle of a commit. So that context is detached from the caller's,
// which is heeded until the transaction stands and in every statement.
func (d SQLDB) Begin(ctx context.Context, first ...*Stmt) (Link[*sql.Tx], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := d.DB.Conn(ctx)
	if err != nil {
		return nil, newFailure(ctx, err, false)
	}
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := conn.BeginTx(long, nil)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		_ = conn.Close()
		return nil, newFailure(ctx, err, true)
	}
	l := &sqlLink{conn: conn, tx: tx, cancel: cancel}
	if err := l.Do(ctx, first...); err != nil {
		l.Rollback(ctx)
		return nil, err
	}
	return l, nil
}

// Adopt implements [DB].
func (SQLDB) Adopt(tx *sql.Tx) Link[*sql.Tx] { return &sqlLink{tx: tx} }

// sqlLink is a transaction on database/sql. One statement is one round trip.
type sqlLink struct {
	conn   *sql.Conn // nil: the caller's own transaction
	tx     *sql.Tx
	cancel context.CancelFunc
	ended  bool // seen to be over without us
}

// Tx implements [Link]. Nothing can keep a *sql.Tx from being ended; see State.
func (l *sqlLink) Tx() *sql.Tx { return l.tx }

// Do implements [Link].
func (l *sqlLink) Do(ctx context.Context, ss ...*Stmt) error {
	for _, s := range ss {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := sqlDo(ctx, watched{l}, s); err != nil {
			return err
		}
	}
	return nil
}

// State implements [Link]. That the caller's Work has ended the transaction shows
// only in the next statement.
func (l *sqlLink) State() LinkState {
	if l.ended {
		return LinkEnded
	}
	return LinkUnclear
}

// watched notices that a transaction is over, before that becomes an error of ours.
type watched struct{ l *sqlLink }

func (w watched) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := w.l.tx.QueryContext(ctx, query, args...)
	return rows, w.see(err)
}

func (w watched) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	res, err := w.l.tx.ExecContext(ctx, query, args...)
	return res, w.see(err)
}

func (w watched) see(err error) error {
	w.l.ended = w.l.ended || errors.Is(err, sql.ErrTxDone)
	return err
}

// Commit implements [Link].
func (l *sqlLink) Commit(ctx context.Context, last ...*Stmt) error {
	ctx, cancel := detached(ctx, endLimit)
	defer cancel()
	if err := l.Do(ctx, last...); err != nil {
		// No commit was sent: whatever went wrong, this is a roll-back.
		l.Rollback(ctx)
		var f *Failure
		if errors.As(err, &f) {
			g := *f
			g.Sent, g.wrote = false, false
			return &g
		}
		return err
	}
	done := make(chan error, 1)
	go func() {
		// Tx.Commit takes no context. One that hangs ends with its connection, long
		// after its outcome has been settled on another.
		done <- l.tx.Commit()
		l.end()
	}()
	timer := time.NewTimer(endLimit)
	defer timer.Stop()
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		return commitError(ctx, newFailure(ctx, err, true), false)
	case <-timer.C:
		return &Failure{Sent: true, wrote: true, cause: "the server did not answer in time"}
	}
}

// Rollback implements [Link].
func (l *sqlLink) Rollback(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.tx.Rollback() // drops the connection where it is broken
		l.end()
	}()
	timer := time.NewTimer(endLimit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

func (l *sqlLink) end() {
	if l.conn == nil {
		return // the caller's own
	}
	_ = l.conn.Close()
	l.cancel()
}
