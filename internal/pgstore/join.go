package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// joinTries bounds the looks that a Join takes: under READ COMMITTED every statement
// has a new snapshot, under the others a second look shows the same.
const joinTries = 3

// Join implements backend.Transactional. It does not use the gate of the key: the
// transaction may hold that key already, and it holds a connection anyway. The lock
// timeout bounds the wait.
func (s *Store[Tx]) Join(ctx context.Context, tx Tx, r backend.ReserveRequest, work backend.Work[Tx]) (res backend.Reservation, err error) {
	if err := r.Validate(); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	r = normal(r)
	l := s.db.Adopt(tx)
	// One deadline for all looks and all waits of this call (R20). Failing fast is a
	// short wait each time.
	end := time.Time{}
	if r.Wait > 0 {
		end = now().Add(r.Wait)
	}
	for range joinTries {
		res, err = s.joinOnce(ctx, l, &r, end, work)
		if isLockTimeout(err) {
			if isRowLocked(err) || !s.c.Dialect.SettingInStatement || !end.IsZero() && !now().Before(end) {
				return backend.Reservation{Outcome: backend.Busy}, nil
			}
			continue // of a lock that may have nothing to do with the key
		}
		if err != error(errAgain{}) {
			return res, err
		}
	}
	if isLockTimeout(err) {
		return backend.Reservation{Outcome: backend.Busy}, nil
	}
	return backend.Reservation{}, retryTransaction()
}

// left is the lock timeout of a wait that is over at end; a zero end is that of a
// caller who fails fast.
func (s *Store[Tx]) left(end time.Time) time.Duration {
	if end.IsZero() {
		return s.c.LockWait
	}
	return max(end.Sub(now()), time.Millisecond)
}

// retryTransaction says that the caller's snapshot is too old.
func retryTransaction() error {
	return fmt.Errorf("%w: the key was settled by another transaction that this one's snapshot does not show; nothing of this call is left in it", backend.ErrRetryTransaction)
}

func (s *Store[Tx]) joinOnce(ctx context.Context, l Link[Tx], r *backend.ReserveRequest, end time.Time, work backend.Work[Tx]) (res backend.Reservation, err error) {
	var o opening
	first := append([]*Stmt{plain(setJoin)}, s.open(r, s.left(end), false, &o)...)
	if r.TakeOver == 0 {
		first = append(first, plain(setWork))
	}
	keep := false
	defer func() {
		// Also when work panics or leaves by Goexit: the caller's transaction goes on
		// without it.
		if !keep {
			if over := s.undoJoin(ctx, l, &o); over != nil && !errors.Is(err, errEnded) {
				res, err = backend.Reservation{}, errors.Join(err, over)
			}
		}
	}()
	if err = l.Do(ctx, first...); err != nil {
		return joinError(err)
	}
	h, res, wrote, err := s.take(ctx, l, r, s.left(end), &o)
	if err != nil {
		return joinError(err)
	}
	if h == nil {
		if wrote {
			keep = true
			err = l.Do(ctx, plain(releaseJoin))
		}
		return res, asRead(err)
	}
	h.in = true
	done, err := work(ctx, l.Tx(), backend.Reservation{Outcome: backend.Acquired, Record: h.rec.Clone(), Now: h.now})
	if err != nil {
		return backend.Reservation{}, err
	}
	last, rec, err := s.outcome(h, done)
	if err == nil {
		last, err = mend(ctx, l, done.Undo, last)
	}
	if err != nil {
		return backend.Reservation{}, err
	}
	if done.Undo && !s.c.Dialect.SettingInStatement && o.lock != "" {
		last = append(last, setLocal(o.lock)) // the savepoint may be older than it
	}
	// The release fails where the savepoint is gone: the function has ended the
	// transaction and begun another.
	limited, cancel := detached(ctx, endLimit)
	defer cancel()
	err = l.Do(limited, append(last, plain(releaseJoin))...)
	switch {
	case err == nil:
		keep = true
		res = backend.Reservation{Outcome: backend.Acquired, Record: *rec, Now: rec.CompletedAt}
		if res.Now.IsZero() {
			res.Now = h.now
		}
		return res, nil
	case isRetry(err):
		return backend.Reservation{}, retryTransaction()
	}
	return backend.Reservation{}, endError(l, err)
}

// joinError turns what went wrong before work into what the caller is to do.
func joinError(err error) (backend.Reservation, error) {
	if isRetry(err) {
		err = retryTransaction()
	}
	return backend.Reservation{}, asRead(err)
}

// errNotUndone is what is left to say when a savepoint could not be gone back to.
var errNotUndone = errors.New("idem: what was done in your transaction could not be undone alone, because its connection is lost or your function left the rows of a query open, so the transaction was rolled back; nothing of it is committed: close the rows before the function returns, and begin a new transaction") // lint:const sentinel

// undoJoin brings the caller's transaction to where it was. Where that fails, the
// whole transaction is rolled back: left open, its caller could commit effects whose
// function has failed, and a key that nobody completed.
func (s *Store[Tx]) undoJoin(ctx context.Context, l Link[Tx], o *opening) error {
	limited, cancel := detached(ctx, endLimit)
	defer cancel()
	last := []*Stmt{plain(undoJoin), plain(releaseJoin)}
	if !s.c.Dialect.SettingInStatement && o.lock != "" {
		last = append(last, setLocal(o.lock))
	}
	var err error
	if l.State() == LinkAborted { // the server prepares nothing else in there
		err = l.Do(limited, last[0])
		last = last[1:]
	}
	if err == nil {
		err = l.Do(limited, last...)
	}
	if err == nil {
		return nil
	}
	l.Rollback(ctx)
	return errNotUndone
}
