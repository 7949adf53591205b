package pgstore

import "context"

// A Stmt is one statement with its arguments and what to do with its rows.
//
// Arguments are limited to what every driver takes: string, []byte, int64, int32,
// int16, bool, float64, time.Time, nil and token.
type Stmt struct {
	SQL  string
	Args []any
	// Row is called for each row; nil drops them. Its error ends the statement and
	// is returned as it is.
	Row func(Scanner) error
	// Count is set by the link: rows affected, or returned where the statement
	// returns rows.
	Count int64
}

// A Scanner is the current row.
type Scanner interface{ Scan(dest ...any) error }

// A DB hands out connections of the caller's pool. All errors are [*Failure], or the
// context's own error where nothing had been sent.
type DB[Tx any] interface {
	// Conns is how many connections the pool may open; zero or less: as many as asked for.
	Conns() int
	// Do runs s in a transaction of its own: one round trip. After an error whose
	// Failure.Sent is true and that has no Code, it may or may not have taken effect.
	Do(ctx context.Context, s *Stmt) error
	// Begin opens a transaction and runs first in it: one round trip where the driver
	// can pipeline. After an error no transaction is open and no connection is held.
	Begin(ctx context.Context, first ...*Stmt) (Link[Tx], error)
	// Adopt wraps a transaction of the caller for Join. Commit of the returned link is
	// not to be called, and Rollback only where the transaction cannot go on.
	Adopt(tx Tx) Link[Tx]
}

// A Link is an open transaction on one connection. It is used by one goroutine.
type Link[Tx any] interface {
	// Tx is what the caller's Work gets. Committing or rolling it back is refused
	// where the type allows that.
	Tx() Tx
	// State tells, without a round trip, what the caller's Work left behind.
	State() LinkState
	// Do runs statements in order, in one round trip where the driver can. The first
	// error stops it and leaves the transaction aborted.
	Do(ctx context.Context, ss ...*Stmt) error
	// Commit runs last and commits, in one round trip where the driver can: a
	// statement of last errors where the commit must not happen, which aborts. A
	// commit whose outcome nobody knows gives an error that matches
	// backend.ErrOutcomeUnknown; every other error means that nothing was committed.
	// The connection is given back, or closed where it is broken.
	Commit(ctx context.Context, last ...*Stmt) error
	// Rollback ends the transaction and gives the connection back. It works on a
	// context detached from ctx with a limit of its own, and has no error: a server
	// that cannot be reached rolls back by itself.
	Rollback(ctx context.Context)
}

// LinkState is what became of a transaction.
type LinkState int

// The states of a transaction.
const (
	LinkUnclear LinkState = iota // the driver does not tell
	LinkOpen
	LinkAborted // a statement failed: only a roll-back, whole or to a savepoint, is left
	LinkEnded   // committed or rolled back behind our back
	LinkBroken  // its connection is gone
)
