package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goidem/idem/backend"
)

// Config is what a [Store] is told when it is opened.
type Config struct {
	Names   Names
	Dialect Dialect
	// Now is the SQL expression of the server's clock; empty means clock_timestamp(),
	// which moves within a statement and a transaction. Tests shift it.
	Now string
	// LockWait bounds the wait behind another's open transaction where the caller
	// fails fast; zero means 20 ms. It is never no limit at all.
	LockWait time.Duration
	// Guarantees are what the probe found.
	Guarantees backend.Guarantees
}

// unsettledSweep is when a sweeper looks again at a record without a window.
const unsettledSweep = time.Hour

// Store is the backend on top of a pool: its methods are those of
// backend.Transactional. It keeps nothing in memory that decides; any number of them,
// in any number of processes, share one table.
type Store[Tx any] struct {
	db  DB[Tx]
	c   Config
	sql texts
	tx  txMode

	turns turns
	merge *merging // nil: every move goes alone
}

// defaultLockWait is how long failing fast waits: long enough for a transaction
// that is just committing.
const defaultLockWait = 20 * time.Millisecond

// maxTries bounds how often a move begins again. A try fails only when another
// caller's move on the same record succeeded, or when the server says so.
const maxTries = 50

// New returns a store on db.
func New[Tx any](db DB[Tx], c Config) *Store[Tx] {
	if c.Now == "" {
		c.Now = "clock_timestamp()"
	}
	if c.LockWait <= 0 {
		c.LockWait = defaultLockWait
	}
	s := &Store[Tx]{db: db, c: c, sql: newTexts(c.Names, c.Dialect, c.Now)}
	s.tx.sql = newTxTexts(c.Names, c.Dialect, c.Now, s.sql.seed)
	s.merge = newMerging(s, mergeOptions{})
	s.turns = newTurns(db.Conns(), s.merge != nil)
	return s
}

// Guarantees implements backend.Backend.
func (s *Store[Tx]) Guarantees() backend.Guarantees {
	g := s.c.Guarantees
	g.Findings = append([]backend.Finding(nil), g.Findings...)
	return g
}

// errAgain makes try begin again: another caller's move came in between.
type errAgain struct{}

func (errAgain) Error() string { return "idem: another move came in between" }

// try calls f until it is through: again at once where another move came in
// between, where the server wants a new snapshot (every statement outside a
// transaction has its own), and where the driver found a dead connection before it
// sent anything.
func (s *Store[Tx]) try(ctx context.Context, f func() error) error {
	var err error
	for n := range maxTries {
		if err = f(); err == nil {
			return nil
		}
		if _, again := err.(errAgain); !again && !isRetry(err) && !(isStale(err) && n < 3) {
			return err
		}
		if over := standOff(ctx, n); over != nil {
			return over
		}
	}
	if _, again := err.(errAgain); !again {
		return err
	}
	return fmt.Errorf("idem: the record was changed by others in each of %d tries; nothing was changed here, a retry is safe", maxTries)
}

// standOff spreads callers that keep getting in each other's way. The first tries
// follow at once.
func standOff(ctx context.Context, n int) error {
	if n < 3 {
		return ctx.Err()
	}
	t := time.NewTimer(rand.N(time.Millisecond << min(n-3, 6)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// step is a move the general way: read, decide, compare-and-set on rev. What decide
// found with the time of the read ("the lease is over") still holds at the write:
// time only goes on, and a renewal or a new owner would have changed rev.
//
// decide may be called several times; what it noted in an earlier call is void. Behind
// another's lock on the row the move waits as long as wait says, and fails then with
// nothing changed.
func (s *Store[Tx]) step(ctx context.Context, id backend.ID, wait time.Duration, decide func(cur row) (backend.Step, error)) error {
	return s.try(ctx, func() error {
		cur, err := s.read(ctx, id)
		if err != nil {
			return err
		}
		next, err := decide(cur)
		if err != nil || !next.Changed {
			return err
		}
		return s.write(ctx, &cur, &next.Next, sweepAfter(&next.Next, cur.now), waitText(wait))
	})
}

// read returns the row of id, or one whose record is zero, with the server's time.
func (s *Store[Tx]) read(ctx context.Context, id backend.ID) (cur row, err error) {
	get := Stmt{SQL: s.sql.get, Args: []any{token(id.Sum())}, Row: func(sc Scanner) (err error) {
		cur, err = scanRow(sc, id)
		return err
	}}
	return cur, asRead(s.db.Do(ctx, &get))
}

// write replaces the row that was read as cur by next, or removes it where next is
// zero. The lock timeout wait ends the wait for another's lock.
func (s *Store[Tx]) write(ctx context.Context, cur *row, next *backend.Record, sweep any, wait string) error {
	w, limited := &Stmt{SQL: s.sql.delete, Args: []any{token(cur.rec.ID.Sum()), cur.rev}}, s.sql.deleteWait
	if next.State != 0 {
		w, limited = s.sql.writeStmt(cur, next, sweep), s.sql.writeWait
	}
	if limited != "" {
		w.SQL, w.Args, wait = limited, append(w.Args, wait), ""
	}
	if err := s.doWaiting(ctx, w, wait); err != nil {
		return asMove(err)
	}
	if w.Count == 0 {
		return errAgain{}
	}
	return nil
}

// limiter is a [DB] that runs a statement under a lock timeout, as a transaction of
// its own in one round trip.
type limiter interface {
	DoLimited(ctx context.Context, wait string, s *Stmt) error
}

// doWaiting runs w in a transaction of its own, with a lock timeout where wait is
// not empty: one round trip on a limiter, and else two.
func (s *Store[Tx]) doWaiting(ctx context.Context, w *Stmt, wait string) error {
	if wait == "" {
		return s.db.Do(ctx, w)
	}
	if db, ok := any(s.db).(limiter); ok {
		return db.DoLimited(ctx, wait, w)
	}
	l, err := s.db.Begin(ctx, lockTimeout(wait), w)
	if err != nil {
		return err
	}
	return l.Commit(ctx)
}

// lockTimeout limits every wait for a lock in the transaction that it is part of.
// It is SET LOCAL as an expression, so that it takes an argument; it ends with the
// transaction and leaks nowhere.
func lockTimeout(wait string) *Stmt {
	return &Stmt{SQL: `SELECT set_config('lock_timeout', $1, true)`, Args: []any{wait}}
}

// waitText is d as the server reads it, at least a millisecond: zero would mean no
// limit at all.
func waitText(d time.Duration) string {
	const most = 1<<31 - 1
	return fmt.Sprintf("%dms", min(max(d.Milliseconds(), 1), most))
}

// sweepAfter is when a sweeper has to look at a record that is written in full.
func sweepAfter(rec *backend.Record, now time.Time) any {
	switch {
	case !rec.ReplayUntil.IsZero() && len(rec.Body) > 0 && rec.ReplayUntil.Before(rec.KnownUntil) && now.Before(rec.ReplayUntil):
		return rec.ReplayUntil
	case !rec.KnownUntil.IsZero():
		return rec.KnownUntil
	}
	return now.Add(unsettledSweep)
}
