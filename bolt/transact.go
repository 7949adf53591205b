package bolt

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// graceAfterWork is how long a caller whose context has ended stays to learn
// what became of work that it has already done in a transaction: others' work in
// the same transaction, and one commit.
const graceAfterWork = 5 * time.Second

// lent is work that its caller runs in a transaction lent by the writer.
type lent struct {
	offer chan *bbolt.Tx // writer to caller: your turn, in this transaction
	back  chan error     // caller to writer: nil if write is to follow
	gone  chan struct{}  // closed by a caller that takes no further turn
	// write stores the outcome; it is set while the caller has the transaction.
	write func(*rows) error
}

// run lends tx to the caller and waits until it is given back. On the writer's
// goroutine.
func (l *lent) run(tx *bbolt.Tx) error {
	select {
	case l.offer <- tx:
	case <-l.gone:
		return errGone
	}
	return <-l.back
}

// turn is one caller's part in a round of the writer: its work, as often as the
// writer lends it a transaction, and what is to be stored afterwards.
type turn struct {
	k held
	// work returns the change to store and whether its effects are to be undone.
	work func(tx *bbolt.Tx) (c *change, undo bool, err error)
	// last is the change of the latest run of work.
	last *change
	op   *op
}

// take queues the turn and stays until its fate is known. The busy lock of the
// key is the writer's from then on. The change that was committed is in t.last.
//
// A panic or Goexit in work goes on up through here untouched: the transaction is
// given back on the way, and the writer rolls it back.
func (t *turn) take(ctx context.Context) error {
	l := &lent{
		offer: make(chan *bbolt.Tx),
		back:  make(chan error),
		gone:  make(chan struct{}),
	}
	l.write = func(r *rows) error { return t.last.write(r) }
	t.op = &op{lent: l, done: t.done}
	w := t.k.s.writer
	if err := w.submit(t.op); err != nil {
		t.k.release()
		return err
	}
	done, leave := ctx.Done(), (<-chan time.Time)(nil)
	worked := false
	for {
		select {
		case tx := <-l.offer:
			if worked && ctx.Err() != nil {
				l.back <- errGone // rolled back once, and nobody waits for another try
				continue
			}
			t.give(l, tx)
			worked = true
		case err := <-t.op.result:
			if errors.Is(err, errGone) {
				return ctx.Err()
			}
			return err
		case <-done:
			if w.withdraw(t.op) {
				t.k.release()
				return ctx.Err()
			}
			if !worked {
				// Somebody else's work is running. Ours has no effects yet.
				close(l.gone)
				return ctx.Err()
			}
			done = nil
			timer := time.NewTimer(graceAfterWork)
			defer timer.Stop()
			leave = timer.C
		case <-leave:
			close(l.gone)
			return unknownCommit(ctx.Err())
		}
	}
}

// give runs the work in tx and hands tx back, whatever happens.
func (t *turn) give(l *lent, tx *bbolt.Tx) {
	answer := errAborted
	faults := debug.SetPanicOnFault(true) // a damaged page is not worth the process
	defer func() {
		debug.SetPanicOnFault(faults)
		l.back <- answer
	}()
	c, undo, err := t.work(tx)
	switch {
	case err != nil:
		answer = err
	case undo:
		// The outcome goes into a transaction without the effects: from here on
		// this member is a plain write. The writer waits for l.back, so the op is
		// ours to change.
		t.last, t.op.lent, t.op.write = c, nil, c.write
		answer = errUndo
	default:
		t.last, answer = c, nil
	}
}

// done ends the turn on the writer's goroutine.
func (t *turn) done(committed bool) {
	t.k.sh.mu.Lock()
	if committed {
		t.last.applied()
	}
	t.k.sh.release(t.k.e)
	t.k.sh.mu.Unlock()
}

// outcome turns the end of work into the change to store.
func (k held) outcome(ref backend.Ref, cur current, done backend.Completion) (*change, error) {
	r := backend.CompleteRequest{
		Ref:       ref,
		State:     done.State,
		Body:      done.Body,
		ReplayFor: done.ReplayFor,
		KnownFor:  done.KnownFor,
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	now := k.s.now()
	_, rec, err := r.Apply(cur.rec, now)
	if err != nil {
		return nil, err
	}
	return k.change(rec, cur.at, now), nil
}

// Transact implements the move; the request is valid.
func (s *exclusive) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[*bbolt.Tx]) (res backend.Reservation, err error) {
	if err := s.begin(ctx); err != nil {
		return res, err
	}
	hash := hashOf(r.ID)
	if res, done, err := s.answer(&r, hash); done {
		return res, err
	}
	k, ok, err := s.hold(ctx, r.ID, hash, true, r.Wait)
	if err != nil {
		return res, err
	}
	if !ok {
		return backend.Reservation{Outcome: backend.Busy, Now: s.now()}, nil
	}
	res, next, at, err := s.reserve(k, &r, func(n uint64) error { return s.coverFence(ctx, n) })
	switch {
	case err != nil:
		k.release()
		return backend.Reservation{}, err
	case next.State == 0 && res.Outcome != backend.Acquired:
		k.release()
		return res, nil
	case res.Outcome != backend.Acquired:
		// Found abandoned under Hold: it turns uncertain, and work does not run.
		res.Record = res.Record.Clone()
		if err := k.store(ctx, next, at); err != nil {
			return backend.Reservation{}, err
		}
		return res, nil
	case next.State == 0:
		// A repeated copy of a reserve that was made outside of a transaction.
		next = res.Record
	}
	t := &turn{k: k}
	t.work = func(tx *bbolt.Tx) (*change, bool, error) {
		given := res
		given.Record = next.Clone()
		done, err := work(ctx, tx, given)
		if err != nil {
			return nil, false, err
		}
		c, err := k.outcome(r.Ref, current{next, at}, done)
		return c, done.Undo, err
	}
	if err := t.take(ctx); err != nil {
		return backend.Reservation{}, err
	}
	res.Record, res.Now = t.last.next.Clone(), s.now()
	return res, nil
}

// Finish implements the move; the reference is valid. The busy lock of the key is
// held while work runs, so no takeover can come between; renewals may.
func (s *exclusive) Finish(ctx context.Context, ref backend.Ref, work backend.Work[*bbolt.Tx]) (backend.Record, error) {
	if err := s.begin(ctx); err != nil {
		return backend.Record{}, err
	}
	k, _, err := s.hold(ctx, ref.ID, hashOf(ref.ID), false, 0)
	if err != nil {
		return backend.Record{}, err
	}
	k.settles()
	cur, err := k.load()
	if err != nil {
		k.release()
		return backend.Record{}, err
	}
	now := s.now()
	// Asked before work is started, with an outcome that is always valid: may this
	// token settle the record at all?
	ask := backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: 1, KnownFor: 1}
	step, rec, err := ask.Apply(cur.rec, now)
	if err != nil || !step.Changed {
		k.release()
		return rec.Clone(), err
	}
	if cur.rec.State == backend.InFlight {
		// Renewals find it in memory while work runs.
		if err := k.remember(cur.rec, cur.at); err != nil {
			k.release()
			return backend.Record{}, err
		}
	}
	t := &turn{k: k}
	t.work = func(tx *bbolt.Tx) (*change, bool, error) {
		given := backend.Reservation{Outcome: backend.Acquired, Record: cur.rec.Clone(), Now: now}
		done, err := work(ctx, tx, given)
		if err != nil {
			return nil, false, err
		}
		c, err := k.outcome(ref, cur, done)
		return c, done.Undo, err
	}
	if err := t.take(ctx); err != nil {
		return backend.Record{}, err
	}
	return t.last.next.Clone(), nil
}
