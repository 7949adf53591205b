package pgstore

import (
	"context"
	"time"

	"github.com/goidem/idem/backend"
)

// Finish implements backend.Transactional.
//
// Its first statement locks the record, so that nobody can take it over before the
// commit, and turns it uncertain (R19). Renewals wait for that lock too: the work
// should be no longer than what is left of the lease.
func (s *Store[Tx]) Finish(ctx context.Context, ref backend.Ref, work backend.Work[Tx]) (rec backend.Record, err error) {
	if err := ref.Validate(); err != nil {
		return rec, err
	}
	var doubt error
	asking := ctx
	for tries := 0; ; tries++ {
		rec, end, err := s.finishOnce(asking, ctx, ref, work, &doubt)
		switch {
		case end == endAnswered:
			return rec, nil
		case end == endFailed:
			return backend.Record{}, err
		case end == endDoubtful && tries < txTries:
			limited, cancel := detached(ctx, settleLimit)
			defer cancel()
			asking, doubt = limited, err
		case doubt != nil:
			// Still asking: only the limit ends that.
		case end == endAgain && tries < txTries, end == endClosed && isStale(err) && tries < 3:
			asking = ctx
		default:
			return backend.Record{}, err
		}
		if over := standOff(asking, tries+1); over != nil {
			if doubt != nil {
				over = doubt
			}
			return backend.Record{}, over
		}
	}
}

// finishOnce runs one transaction. doubt is cleared when the row shows that an
// earlier one was rolled back.
func (s *Store[Tx]) finishOnce(asking, ctx context.Context, ref backend.Ref, work backend.Work[Tx], doubt *error) (rec backend.Record, end ending, err error) {
	id, owner := token(ref.ID.Sum()), token(ref.Owner)
	var cur row
	// The look waits for the lock, and with it for an earlier transaction of this very
	// call whose end is not known.
	look := &Stmt{SQL: s.tx.sql.lock, Args: []any{id}, Row: func(sc Scanner) (err error) {
		cur, err = scanRow(sc, ref.ID)
		return err
	}}
	claim := &Stmt{SQL: s.tx.sql.claim, Args: []any{id, owner}}
	l, err := s.db.Begin(asking, look, claim, plain(setWork))
	if err != nil {
		return rec, openError(err), asRead(err)
	}
	over := false
	defer func() {
		if !over {
			l.Rollback(ctx)
		}
	}()
	// Asked before work is started, with an outcome that is always valid: may this
	// token settle the record at all?
	ask := backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: time.Second, KnownFor: time.Second}
	step, stands, err := ask.Apply(cur.rec, cur.now)
	switch {
	case err != nil:
		return rec, endFailed, err
	case !step.Changed && *doubt == nil:
		return stands, endAnswered, nil
	case !step.Changed:
		over = true
		if err := l.Commit(asking, &Stmt{SQL: s.tx.sql.touch, Args: []any{id, owner}}); err != nil {
			return rec, endDoubtful, err
		}
		return stands, endAnswered, nil
	case claim.Count != 1:
		return rec, endAgain, errAgain{}
	}
	*doubt = nil
	if err := ctx.Err(); err != nil {
		return rec, endFailed, err
	}
	done, err := work(ctx, l.Tx(), backend.Reservation{Outcome: backend.Acquired, Record: cur.rec.Clone(), Now: cur.now})
	if err != nil {
		if wantsRetry(err) {
			return rec, endAgain, err
		}
		return rec, endFailed, err
	}
	over = true
	return s.finish(ctx, l, &holding{rec: cur.rec, rev: cur.rev + 1, now: cur.now}, done)
}
