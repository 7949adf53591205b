package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// The statements of CockroachDB's restart protocol. The name of the savepoint is what
// makes the server take part in it: RELEASE of it is the commit.
const (
	savepointRestart = "SAVEPOINT cockroach_restart"
	releaseRestart   = "RELEASE SAVEPOINT cockroach_restart"
)

// CrdbDB is a [DB] on a pool of pgx whose server is CockroachDB. A transaction of its
// own speaks the restart protocol, in no more round trips than without it: the
// savepoint travels with BEGIN, the release with the last statements and COMMIT. On
// PostgreSQL that release would commit nothing and the COMMIT behind it everything,
// with errors read wrongly: the probe refuses such a server.
type CrdbDB struct{ PgxDB }

// Begin implements [DB].
func (d CrdbDB) Begin(ctx context.Context, first ...*Stmt) (Link[pgx.Tx], error) {
	l, err := d.PgxDB.Begin(ctx, append([]*Stmt{{SQL: savepointRestart}}, first...)...)
	if err != nil {
		return nil, err
	}
	return crdbLink{l}, nil
}

// DoLimited implements limiter. The statement is a transaction without a savepoint: a
// restart that the server wants is the whole of it again.
func (d CrdbDB) DoLimited(ctx context.Context, wait string, s *Stmt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return newFailure(ctx, err, false)
	}
	b := new(pgx.Batch)
	b.Queue("begin")
	b = queue(b, []*Stmt{setLocal(wait), s})
	b.Queue("commit")
	err = closeBatch(ctx, conn.SendBatch(ctx, b))
	end, cancel := detached(ctx, endLimit)
	defer cancel()
	(&pgxLink{conn: conn, tx: newPgxTx(nil)}).free(end)
	return err
}

// crdbLink is a transaction under the restart protocol.
type crdbLink struct{ Link[pgx.Tx] }

// Commit implements [Link].
func (l crdbLink) Commit(ctx context.Context, last ...*Stmt) error {
	// An error of the last statements means that there is no commit; an error of the
	// release, if it is no restart, means that nobody knows. The row of a statement
	// between them, in the same trip, tells the two apart.
	released := false
	mark := &Stmt{SQL: "SELECT 1", Row: func(Scanner) error {
		released = true
		return nil
	}}
	all := append(append([]*Stmt(nil), last...), mark, &Stmt{SQL: releaseRestart})
	err := l.Link.Commit(ctx, all...)
	var f *Failure
	if !released || !errors.As(err, &f) || isRetry(err) || f.wrote {
		return err
	}
	g := *f
	g.Sent, g.wrote, g.fatal = true, true, true
	return &g
}
