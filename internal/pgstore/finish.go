package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// errTurned is errEnded without the proof.
var errTurned = fmt.Errorf("%w: %w: the key has become uncertain since the first try of this call: its function committed, or another caller put the key on hold; it needs Resolve", backend.ErrOutcomeUnknown, backend.ErrTransactionEnded) // lint:const sentinel

// Finish implements backend.Transactional.
//
// Its first statement locks the record, so that nobody can take it over before the
// commit, and turns it uncertain (R19). Renewals of that lease find it locked: the work
// should be no longer than what is left of the lease.
func (s *Store[Tx]) Finish(ctx context.Context, ref backend.Ref, work backend.Work[Tx]) (rec backend.Record, err error) {
	if err := ref.Validate(); err != nil {
		return rec, err
	}
	f := finishing[Tx]{s: s, ref: ref, work: work}
	asking := ctx
	for tries := 0; ; tries++ {
		rec, end, err := f.once(asking, ctx)
		switch {
		case end == endAnswered:
			return rec, nil
		case end == endFailed:
			return backend.Record{}, err
		case end == endDoubtful && tries < txTries:
			limited, cancel := detached(ctx, settleLimit)
			defer cancel()
			asking, f.doubt = limited, err
		case f.doubt != nil:
			// Still asking: only the limit ends that.
		case end == endAgain && tries < txTries, end == endClosed && isStale(err) && tries < 3:
			asking = ctx
		default:
			return backend.Record{}, err
		}
		if over := standOff(asking, tries+1); over != nil {
			if f.doubt != nil {
				over = f.doubt
			}
			return backend.Record{}, over
		}
	}
}

// finishing is one call of Finish, in as many transactions as it takes.
type finishing[Tx any] struct {
	s    *Store[Tx]
	ref  backend.Ref
	work backend.Work[Tx]

	ran   bool          // the work was started
	rev   int32         // of the record, when it was
	last  backend.State // what the latest commit was to store
	doubt error         // that commit's outcome is unknown
}

// once runs one transaction: asking governs the look, ctx the work.
func (f *finishing[Tx]) once(asking, ctx context.Context) (rec backend.Record, end ending, err error) {
	s, id, owner := f.s, token(f.ref.ID.Sum()), token(f.ref.Owner)
	var cur row
	var o opening
	// The look waits for the lock, and with it for an earlier transaction of this very
	// call whose end is not known.
	first := s.lockStmts(&f.ref, &cur, &o)
	claim := &Stmt{SQL: s.tx.sql.claim, Args: []any{id, owner}}
	l, err := s.db.Begin(asking, append(first, claim, plain(setWork))...)
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
	ask := backend.CompleteRequest{Ref: f.ref, State: backend.Completed, ReplayFor: time.Second, KnownFor: time.Second}
	step, stands, err := ask.Apply(cur.rec, cur.now)
	if err == nil && f.ran && cur.rec.State == backend.Uncertain && cur.rev != f.rev {
		// Written since the work was started, and not rolled back. If the commit in doubt
		// was to store this, it took effect. Otherwise the work may have: by a COMMIT of
		// its own, after which it failed in a way that asks for another try. It is not run
		// again (R18, R19).
		if f.doubt == nil || f.last != backend.Uncertain {
			return rec, endFailed, errTurned
		}
		step.Changed, stands = false, cur.rec
	}
	switch {
	case err != nil:
		return rec, endFailed, err
	case !step.Changed && f.doubt == nil:
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
	f.doubt = nil // an earlier transaction is rolled back
	if err := s.putBack(ctx, l, &o); err != nil {
		return rec, openError(err), asRead(err)
	}
	if err := ctx.Err(); err != nil {
		return rec, endFailed, err
	}
	f.ran, f.rev = true, cur.rev
	done, err := f.work(ctx, l.Tx(), backend.Reservation{Outcome: backend.Acquired, Record: cur.rec.Clone(), Now: cur.now})
	if err != nil {
		if wantsRetry(err) {
			return rec, endAgain, err
		}
		return rec, endFailed, err
	}
	over, f.last = true, done.State
	return s.finish(ctx, l, &holding{rec: cur.rec, rev: cur.rev + 1, now: cur.now}, done)
}

// lockStmts locks the record of ref and reads it into cur. Behind another's open
// transaction they wait for moveWait.
func (s *Store[Tx]) lockStmts(ref *backend.Ref, cur *row, o *opening) []*Stmt {
	look := &Stmt{SQL: s.tx.sql.lock, Args: []any{token(ref.ID.Sum())}}
	if !s.c.Dialect.SettingInStatement {
		look.Row = func(sc Scanner) (err error) {
			*cur, err = scanRow(sc, ref.ID)
			return err
		}
		return []*Stmt{showLock(&o.lock), setLocal(waitText(moveWait)), look, setLocal(""), showLock(&o.reset)}
	}
	look.Args = append(look.Args, waitText(moveWait))
	look.Row = func(sc Scanner) (err error) {
		*cur, err = scanRow(trailing{sc, []any{&o.lock}}, ref.ID)
		return err
	}
	return []*Stmt{look}
}
