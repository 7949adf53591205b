package pgstore

import (
	"context"
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
	wait := s.c.LockWait
	if r.Wait > 0 {
		wait = r.Wait
	}
	l := s.db.Adopt(tx)
	for range joinTries {
		res, err = s.joinOnce(ctx, l, &r, wait, work)
		switch {
		case isLockTimeout(err) && (isRowLocked(err) || !s.c.Dialect.SettingInStatement):
			return backend.Reservation{Outcome: backend.Busy}, nil
		case isLockTimeout(err): // of a lock that has nothing to do with the key
		case err != error(errAgain{}):
			return res, err
		}
	}
	if isLockTimeout(err) {
		return backend.Reservation{Outcome: backend.Busy}, nil
	}
	return backend.Reservation{}, retryTransaction()
}

// retryTransaction says that the caller's snapshot is too old.
func retryTransaction() error {
	return fmt.Errorf("%w: the key was settled by another transaction that this one's snapshot does not show; nothing of this call is left in it", backend.ErrRetryTransaction)
}

func (s *Store[Tx]) joinOnce(ctx context.Context, l Link[Tx], r *backend.ReserveRequest, wait time.Duration, work backend.Work[Tx]) (res backend.Reservation, err error) {
	var o opening
	first := append([]*Stmt{plain(setJoin)}, s.open(r, wait, false, &o)...)
	if r.TakeOver == 0 {
		first = append(first, plain(setWork))
	}
	keep := false
	defer func() {
		// Also when work panics or leaves by Goexit: the caller's transaction goes on
		// without it.
		if !keep {
			s.undoJoin(ctx, l)
		}
	}()
	if err = l.Do(ctx, first...); err != nil {
		return joinError(err)
	}
	h, res, wrote, err := s.take(ctx, l, r, wait, &o)
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
	case code(err) == codeNoSavepoint, code(err) == codeNoTransaction:
		return backend.Reservation{}, errEnded
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

// undoJoin brings the caller's transaction to where it was. Where that fails, the
// transaction is over, and with it what was done in it.
func (s *Store[Tx]) undoJoin(ctx context.Context, l Link[Tx]) {
	ctx, cancel := detached(ctx, endLimit)
	defer cancel()
	last := []*Stmt{plain(undoJoin), plain(releaseJoin)}
	if l.State() == LinkAborted { // the server prepares nothing else in there
		if err := l.Do(ctx, last[0]); err != nil {
			return
		}
		last = last[1:]
	}
	_ = l.Do(ctx, last...)
}
