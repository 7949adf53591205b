package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/goidem/idem/backend"
)

// txTries bounds how often a transaction begins again: each needs another caller
// that got through, or a server that wants it.
const txTries = 12

// lockGrace is how much longer than its wait policy allows a call asks again after a
// lock that was perhaps not its key's.
const lockGrace = 250 * time.Millisecond

// settleLimit is how long a commit in doubt is asked after, beyond the caller's
// deadline if need be.
const settleLimit = 5 * time.Second

// txMode is what transactional mode keeps in a store.
type txMode struct {
	sql   txTexts
	gates gates
	known known
}

var (
	// lint:const errors
	errSwallowed = errors.New("idem: a statement of your function failed and the function did not return its error, so the server rolled the transaction back; nothing was committed, return the error or use a savepoint (Begin)")
	errEnded     = fmt.Errorf("%w: %w: idem has to commit it; the key is uncertain if your function committed, and needs Resolve", backend.ErrOutcomeUnknown, backend.ErrTransactionEnded)
	errLost      = errors.New("idem: the connection was lost in your function; nothing was committed, a retry is safe")
)

// ending is how one transaction ended.
type ending int

const (
	endAnswered ending = iota + 1
	endFailed          // for good, and nothing was committed
	endClosed          // it could not be opened
	endLocked          // another transaction held the key for too long
	endAgain           // the server, or another's move in between, wants a new snapshot
	endDoubtful        // nobody knows whether the commit took effect
)

// Transact implements backend.Transactional: BEGIN and the reserve are one round
// trip, the completion and COMMIT another.
func (s *Store[Tx]) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[Tx]) (res backend.Reservation, err error) {
	if err := r.Validate(); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	r = normal(r)
	id := token(r.ID.Sum())
	if s.tx.known.has(id) {
		if res, ok, err := s.replay(ctx, &r); ok || err != nil {
			return res, err
		}
		s.tx.known.drop(id)
	}
	began := now()
	p, ok, err := s.tx.gates.enter(ctx, id, r.Wait, s.c.LockWait)
	if err != nil {
		return res, err
	}
	if !ok {
		return backend.Reservation{Outcome: backend.Busy}, nil
	}
	a := &attempt[Tx]{s: s, r: r, id: id, work: work, pass: p}
	defer func() { p.leave(a.seen) }()
	return a.run(ctx, began, r.Wait)
}

// replay answers a duplicate of a key that was seen settled from one look.
func (s *Store[Tx]) replay(ctx context.Context, r *backend.ReserveRequest) (res backend.Reservation, ok bool, err error) {
	var cur row
	err = s.try(ctx, func() error {
		cur, err = s.read(ctx, r.ID)
		return err
	})
	if err != nil || cur.rec.State == 0 {
		return res, false, err
	}
	step, res, err := r.Apply(cur.rec, cur.now, 0)
	return res, !step.Changed && res.Outcome != backend.Acquired, err
}

// attempt is one call of Transact, in as many transactions as it takes.
type attempt[Tx any] struct {
	s    *Store[Tx]
	r    backend.ReserveRequest
	id   token
	work backend.Work[Tx]
	pass *pass

	last   backend.Completion // what the latest commit was to store
	stands bool               // a row was in the way, and its transaction has to go on from it
	doubt  error              // that commit's outcome is unknown
	seen   bool               // a record stands: nobody has to wait for this key
}

// run begins transactions until one has an answer.
func (a *attempt[Tx]) run(ctx context.Context, began time.Time, wait time.Duration) (backend.Reservation, error) {
	// The first look waits for others' locks only as long as one that fails fast:
	// who waits longer says so at the gate first.
	patience, asking := a.s.c.LockWait, ctx
	for tries := 0; ; tries++ {
		res, end, err := a.once(asking, ctx, patience)
		inDoubt := a.doubt != nil
		switch end {
		case endAnswered:
			return res, nil
		case endFailed:
			return backend.Reservation{}, err
		case endDoubtful:
			// From here on the question is what became of that commit, and the caller's
			// deadline does not cut it short (R18).
			if tries >= txTries {
				return backend.Reservation{}, err
			}
			limited, cancel := detached(ctx, settleLimit)
			defer cancel()
			asking, a.doubt = limited, err
			a.pass.works()
		case endLocked:
			if inDoubt {
				break
			}
			left := wait - now().Sub(began)
			if a.s.c.Dialect.SettingInStatement && !isRowLocked(err) && tries < txTries && left > -lockGrace {
				// It may have been another lock, see isRowLocked, or the place in the queue
				// behind the row.
				patience = min(patience, max(left, a.s.c.LockWait))
				break
			}
			if left <= 0 {
				return backend.Reservation{Outcome: backend.Busy}, nil
			}
			patience = left
			a.pass.works()
			tries--
			continue
		case endClosed:
			if !inDoubt && !(isStale(err) && tries < 3) {
				return backend.Reservation{}, err
			}
		case endAgain:
			if !inDoubt && tries >= txTries {
				return backend.Reservation{}, exhausted(err)
			}
		}
		if !inDoubt && end != endDoubtful {
			asking = ctx
		} else {
			patience = settleLimit
		}
		if over := standOff(asking, tries+1); over != nil {
			if a.doubt != nil {
				return backend.Reservation{}, a.doubt
			}
			return backend.Reservation{}, over
		}
	}
}

// exhausted is the error after the last try.
func exhausted(err error) error {
	if _, ok := err.(errAgain); ok {
		return fmt.Errorf("idem: the key was changed by others in each of %d transactions; nothing was committed, a retry is safe", txTries)
	}
	return err
}

// once runs one transaction: asking governs the reserve, ctx the work.
func (a *attempt[Tx]) once(asking, ctx context.Context, wait time.Duration) (res backend.Reservation, end ending, err error) {
	s := a.s
	var o opening
	first := s.open(&a.r, wait, a.doubt == nil && !a.stands, &o)
	if a.r.TakeOver == 0 {
		first = append(first, plain(setWork))
	}
	l, err := s.db.Begin(asking, first...)
	if err != nil {
		return res, openError(err), asRead(err)
	}
	over := false
	defer func() {
		// Whatever happens to the work, a panic and Goexit included, the connection
		// goes back and the transaction does not stay open.
		if !over {
			l.Rollback(ctx)
		}
	}()
	if o.blind && !o.fresh {
		over = true
		return a.meet(asking, l)
	}
	h, res, wrote, err := s.take(asking, l, &a.r, wait, &o)
	switch {
	case err != nil:
		return res, openError(err), asRead(err)
	case h != nil:
		a.doubt = nil // the key was free: an earlier transaction of ours is rolled back
	case wrote:
		over = true
		if err := l.Commit(asking); err != nil {
			// The same again finds out.
			return res, endAgain, err
		}
		fallthrough
	default:
		a.settled(&res)
		if a.doubt == nil || res.Outcome != backend.Existing || res.Record.Owner != a.r.Owner || res.Record.State != a.last.State {
			return res, endAnswered, nil
		}
		// Our commit took effect. That its row is seen does not say that it is safe: a
		// wait for a synchronous standby may have been broken off. A commit of a write
		// behind it waits for both.
		over = true
		if err := l.Commit(asking, &Stmt{SQL: s.tx.sql.touch, Args: []any{a.id, token(a.r.Owner)}}); err != nil {
			return res, endDoubtful, err
		}
		res.Outcome = backend.Acquired
		return res, endAnswered, nil
	}
	if err := ctx.Err(); err != nil {
		return backend.Reservation{}, endFailed, err
	}
	a.pass.works()
	done, err := a.work(ctx, l.Tx(), backend.Reservation{Outcome: backend.Acquired, Record: h.rec.Clone(), Now: h.now})
	if err != nil {
		if wantsRetry(err) {
			return res, endAgain, err
		}
		return res, endFailed, err
	}
	a.last = done
	over = true
	rec, end, err := s.finish(ctx, l, h, done)
	if end != endAnswered {
		return backend.Reservation{}, end, err
	}
	res = backend.Reservation{Outcome: backend.Acquired, Record: rec, Now: rec.CompletedAt}
	if res.Now.IsZero() {
		res.Now = h.now
	}
	a.settled(&res)
	return res, endAnswered, nil
}

// meet answers from the row that was in the insertion's way. It is read in the trip
// that ends the transaction, in which nothing was written.
func (a *attempt[Tx]) meet(asking context.Context, l Link[Tx]) (res backend.Reservation, end ending, err error) {
	var cur row
	get := &Stmt{SQL: a.s.sql.get, Args: []any{a.id}, Row: func(sc Scanner) (err error) {
		cur, err = scanRow(sc, a.r.ID)
		return err
	}}
	if err := l.Commit(asking, get); err != nil {
		var f *Failure
		if errors.As(err, &f) { // whatever became of the commit, it had nothing to store
			g := *f
			g.wrote = false
			err = &g
		}
		return res, openError(err), asRead(err)
	}
	if cur.rec.State == 0 {
		return res, endAgain, errAgain{} // gone, or not in this transaction's snapshot
	}
	step, res, err := a.r.Apply(cur.rec, cur.now, 0)
	switch {
	case err != nil:
		return res, endClosed, err
	case step.Changed, res.Outcome == backend.Acquired:
		a.stands = true // our own attempt's record: the next transaction writes over it
		return res, endAgain, errAgain{}
	}
	a.settled(&res)
	return res, endAnswered, nil
}

// settled remembers that there is a record to be seen.
func (a *attempt[Tx]) settled(res *backend.Reservation) {
	a.seen = true
	if res.Record.State == backend.Completed || res.Record.State == backend.Failed {
		a.s.tx.known.add(a.id)
	}
}

// finish stores the outcome and commits. The link is over afterwards.
func (s *Store[Tx]) finish(ctx context.Context, l Link[Tx], h *holding, done backend.Completion) (backend.Record, ending, error) {
	last, rec, err := s.outcome(h, done)
	if err == nil {
		last, err = mend(ctx, l, done.Undo, last)
	}
	if err != nil {
		l.Rollback(ctx)
		return backend.Record{}, endFailed, err
	}
	err = l.Commit(ctx, last...)
	switch {
	case err == nil:
		return *rec, endAnswered, nil
	case errors.Is(err, backend.ErrOutcomeUnknown):
		return backend.Record{}, endDoubtful, err
	case isRetry(err):
		return backend.Record{}, endAgain, err
	}
	return backend.Record{}, endFailed, endError(l, err)
}

// mend looks at what a function has done to the transaction that it was given, and
// returns what is left of the last statements.
func mend[Tx any](ctx context.Context, l Link[Tx], undo bool, last []*Stmt) ([]*Stmt, error) {
	switch l.State() {
	case LinkEnded:
		return nil, errEnded
	case LinkBroken:
		return nil, errLost
	case LinkAborted:
		if !undo {
			return nil, errSwallowed
		}
		// Alone: in an aborted transaction the server prepares no other statement, so
		// those behind it cannot travel along.
		ctx, cancel := detached(ctx, endLimit)
		defer cancel()
		return last[1:], l.Do(ctx, last[0])
	}
	return last, nil
}

// endError explains why the last statements failed, where that was the function's
// doing.
func endError[Tx any](l Link[Tx], err error) error {
	switch c := code(err); {
	case c == codeAborted:
		return errSwallowed
	case c == codeDivision, c == codeNoSavepoint, c == codeNoTransaction, l.State() == LinkEnded:
		// Our row or savepoint is not there, or no longer ours: the transaction was ended,
		// and perhaps another one begun.
		return errEnded
	}
	return err
}

// openError says how a transaction ended that did not get as far as its work.
func openError(err error) ending {
	if _, ok := err.(errAgain); ok || isRetry(err) {
		return endAgain
	}
	if isLockTimeout(err) {
		return endLocked
	}
	return endClosed
}

// wantsRetry reports whether a function failed because the server wants its
// transaction again.
func wantsRetry(err error) bool {
	var pg *pgconn.PgError
	var other interface{ SQLState() string }
	c := ""
	switch {
	case errors.As(err, &pg):
		c = pg.Code
	case errors.As(err, &other):
		c = other.SQLState()
	}
	return c == codeSerialization || c == codeDeadlock
}
