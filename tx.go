package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/goidem/idem/backend"
)

// ExecuteTx runs fn once for the key inside a transaction of the store: what fn
// writes through tx and the record of the key commit together or not at all. A
// retry gets the stored result and fn does not run.
//
// fn may run more than once before the one commit that counts (a serialization
// retry, a neighbour in a group commit that failed), so it touches nothing but tx
// and variables that it sets anew. If ctx ends between two such runs, nothing is
// committed. It must not commit or roll back tx. Its error
// rolls everything back: [Permanent] and [Uncertain] then store the outcome alone,
// any other error comes back unwrapped and leaves the key free.
//
// ctx governs waiting and fn. Once fn has returned, the commit is carried through
// on a detached context. A commit whose outcome is unknown is settled by the
// backend; ErrOutcomeUnknown remains only when the store stays unreachable.
func ExecuteTx[T, Tx any](ctx context.Context, s *TxStore[Tx], scope Scope, key Key, hash Fingerprint,
	fn func(context.Context, Tx) (T, error), opts ...TxOption) (Result[T], error) {

	c, err := newTxCall(ctx, s, scope, key, hash, fn, opts, false)
	if err != nil {
		return Result[T]{}, err
	}
	return inTx(ctx, c, fn, s.tx.Transact)
}

// ExecuteIn is [ExecuteTx] inside a transaction that the caller owns. Nothing is
// committed: the result is provisional until the caller commits, and a caller
// whose commit fails calls again in a new transaction. The transaction stays
// usable whatever happens here, a duplicate included.
//
// Where the store has savepoints, fn runs inside one and its error undoes its
// writes. Where it has none (bolt), fn's error turns the key uncertain inside the
// caller's transaction, so that committing half of the work does not pass for
// none. ErrRetryTransaction: the key was committed after the caller's snapshot.
func ExecuteIn[T, Tx any](ctx context.Context, s *TxStore[Tx], tx Tx, scope Scope, key Key, hash Fingerprint,
	fn func(context.Context, Tx) (T, error), opts ...TxOption) (Result[T], error) {

	c, err := newTxCall(ctx, s, scope, key, hash, fn, opts, true)
	if err != nil {
		return Result[T]{}, err
	}
	return inTx(ctx, c, fn, func(ctx context.Context, r backend.ReserveRequest, work backend.Work[Tx]) (backend.Reservation, error) {
		return s.tx.Join(ctx, tx, r, work)
	})
}

// ExecuteThenTx is for effects in two worlds. call runs first, under a lease and
// with no transaction open: it talks to the outside, with a derived key. Then
// record runs inside a transaction, and its writes commit together with the
// result of the key. If the lease was lost meanwhile, nothing is committed and the
// error is ErrLeaseLost.
//
// An error of call or record ends the attempt as in [Execute]; after an error of
// record the next attempt calls again, which is why call passes
// Attempt.DeriveKey on. record may run more than once, as fn of [ExecuteTx] may.
// Once call has returned, ctx no longer cancels anything: the work is finished.
func ExecuteThenTx[C, T, Tx any](ctx context.Context, s *TxStore[Tx], scope Scope, key Key, hash Fingerprint,
	call func(context.Context) (C, error), record func(context.Context, Tx, C) (T, error), opts ...CallOption) (Result[T], error) {

	if s == nil || call == nil || record == nil {
		return Result[T]{}, fmt.Errorf("%w: ExecuteThenTx needs a store and two functions", ErrInvalidOption)
	}
	c, err := newCall(s.Store, scope, key, hash)
	if err != nil {
		return Result[T]{}, err
	}
	for _, o := range opts {
		o.applyCall(&c.o)
	}
	if err := c.check(ctx, typeOf[T]()); err != nil {
		return Result[T]{}, err
	}
	seen := c.observe(ctx)
	defer seen.leave()
	res, err := thenTx(seen.ctx, c, s.tx, call, record)
	seen.end(res.Replayed, res.Attempt, err)
	return res, err
}

func thenTx[C, T, Tx any](ctx context.Context, c *call, b backend.Transactional[Tx],
	call func(context.Context) (C, error), record func(context.Context, Tx, C) (T, error)) (Result[T], error) {

	return underLease(ctx, c, func(a *running) (Result[T], error) {
		called, err := run(a, call)
		if err != nil {
			return failed(a, *new(T), err)
		}
		w := &txWork[T, Tx]{c: c, fn: func(ctx context.Context, tx Tx) (T, error) { return record(ctx, tx, called) }, attempt: &a.attempt}
		rec, err := finishTx(a, b, w)
		if err != nil {
			return Result[T]{Value: w.value, Attempt: a.rec.Attempt}, err
		}
		if w.failed != nil {
			return resultOf(*new(T), false, &rec), c.s.decodeOutcome(c.scope, &rec, new(struct{}))
		}
		return resultOf(w.value, false, &rec), nil
	})
}

// finishTx commits the writes of w together with the completion.
func finishTx[T, Tx any](a *running, b backend.Transactional[Tx], w *txWork[T, Tx]) (rec backend.Record, err error) {
	defer func() {
		if w.running { // record panicked or left by Goexit
			a.abort()
		}
	}()
	// The transaction is bounded by the lease, through a context that ends when the
	// lease is lost, and by nothing of the caller's.
	ctx, cancel := context.WithCancelCause(a.detached)
	defer cancel(nil)
	a.lease.cancelsToo(cancel)
	var own *workError
	err = a.persist(func(limited context.Context) error {
		// The time limit bounds the tries and the wait for a turn, behind somebody
		// else's transaction, but not a transaction that is under way.
		if limited.Err() != nil {
			return limited.Err()
		}
		w.begun.Store(false)
		defer context.AfterFunc(limited, func() {
			if !w.begun.Load() {
				cancel(nil)
			}
		})()
		var err error
		rec, err = b.Finish(ctx, a.ref, w.run)
		if errors.As(err, &own) {
			return nil // record's own error: no further try
		}
		return err
	})
	switch {
	case own != nil:
		return a.fail(own.err)
	case err == nil && w.uncertain != nil:
		return rec, a.c.waitsForResolve(w.uncertain)
	case errors.Is(err, ErrOutcomeUnknown):
		return rec, &callError{sentinel: ErrOutcomeUnknown, scope: a.c.scope, reason: "the call was made, its record may not be committed; ask again with the same key", cause: err}
	case errors.Is(err, ErrLeaseLost), errors.Is(err, context.Canceled) && a.lease.isLost():
		return rec, &callError{sentinel: ErrLeaseLost, scope: a.c.scope, reason: "nothing was committed"}
	case err != nil:
		return rec, &callError{sentinel: ErrOutcomeUnknown, scope: a.c.scope, reason: "the call was made, its record may not be committed; ask again with the same key", cause: err}
	}
	return rec, nil
}

func newTxCall[T, Tx any](ctx context.Context, s *TxStore[Tx], scope Scope, key Key, hash Fingerprint,
	fn func(context.Context, Tx) (T, error), opts []TxOption, joins bool) (*call, error) {

	if s == nil || fn == nil {
		return nil, fmt.Errorf("%w: a transaction needs a store and a function", ErrInvalidOption)
	}
	c, err := newCall(s.Store, scope, key, hash)
	if err != nil {
		return nil, err
	}
	for _, o := range opts {
		o.applyTx(&c.o)
	}
	c.joins = joins
	return c, c.check(ctx, typeOf[T]())
}

// transactor is Transact, or Join with its transaction.
type transactor[Tx any] func(context.Context, backend.ReserveRequest, backend.Work[Tx]) (backend.Reservation, error)

// inTx is ExecuteTx and ExecuteIn behind their checks.
func inTx[T, Tx any](ctx context.Context, c *call, fn func(context.Context, Tx) (T, error), transact transactor[Tx]) (Result[T], error) {
	seen := c.observe(ctx)
	defer seen.leave()
	w := &txWork[T, Tx]{c: c, fn: fn}
	defer func() {
		if w.number > 0 { // this call held the key for a while
			c.s.waiting.wake(c.id)
		}
	}()
	g, err := c.acquire(seen.ctx, func(ctx context.Context, r *backend.ReserveRequest) (backend.Reservation, error) {
		res, err := transact(ctx, *r, w.run)
		return res, c.transactError(ctx, err)
	})
	var res Result[T]
	switch {
	case err != nil:
		res.Attempt = w.number
		if errors.Is(err, ErrOutcomeUnknown) {
			res.Value = w.value
		}
	case !g.acquired:
		res, err = replay[T](c, &g)
	case w.uncertain != nil:
		res.Attempt = g.rec.Attempt
		err = c.waitsForResolve(w.uncertain)
	case g.rec.State == StateUncertain:
		// Join on a store without savepoints: the effect could not be undone.
		res.Attempt = g.rec.Attempt
		err = c.waitsForResolve(w.failed)
	case w.failed != nil:
		res = resultOf(res.Value, false, &g.rec)
		err = c.s.decodeOutcome(c.scope, &g.rec, new(struct{}))
	default:
		res = resultOf(w.value, false, &g.rec)
	}
	seen.end(res.Replayed, res.Attempt, err)
	return res, err
}

// transactError tells the error of the caller's function, which goes back as it
// came, from one of the store.
func (c *call) transactError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var own *workError
	switch {
	case errors.As(err, &own):
		return own.err
	case errors.Is(err, ErrOutcomeUnknown):
		return &callError{sentinel: ErrOutcomeUnknown, scope: c.scope, reason: "the transaction may have committed; ask again with the same key", cause: err}
	}
	return c.storeError(ctx, "nothing was committed", err)
}

// workError carries the error of the caller's function through a backend.
type workError struct{ err error }

func (e *workError) Error() string { return e.err.Error() }
func (e *workError) Unwrap() error { return e.err }

// txWork runs the caller's function in a transaction and turns how it ends into
// what is stored. It may run several times; everything that it leaves behind is of
// the last run.
type txWork[T, Tx any] struct {
	c       *call
	fn      func(context.Context, Tx) (T, error)
	attempt *Attempt // nil: of the reservation

	value     T
	number    int
	failed    *FailedError
	uncertain error // why, if it is
	running   bool
	begun     atomic.Bool // the function has been started
}

func (w *txWork[T, Tx]) run(ctx context.Context, tx Tx, res backend.Reservation) (backend.Completion, error) {
	c := w.c
	var none T
	w.value, w.failed, w.uncertain, w.number = none, nil, nil, res.Record.Attempt
	attempt := w.attempt
	if attempt == nil {
		if err := c.judge(&res.Record, res.Now); err != nil {
			return backend.Completion{}, &workError{err: err}
		}
		made := c.attempt(&res.Record, nil)
		attempt = &made
	}
	w.begun.Store(true)
	value, err := w.call(ctx, tx, attempt)
	switch e := err.(type) {
	case nil:
	case *permanentError:
		w.failed = e.failed()
		dedup := c.retain.failed.Dedup
		return backend.Completion{State: StateFailed, Body: c.s.encodeFailure(c.id, w.failed), ReplayFor: dedup, KnownFor: dedup, Undo: true}, nil
	default:
		if u := asUncertain(err); u != nil {
			w.uncertain = cmp.Or(u.err, error(u))
			return backend.Completion{State: StateUncertain, Undo: true}, nil
		}
		return backend.Completion{}, &workError{err: err}
	}
	w.value = value
	v := forCodec(&value)
	return backend.Completion{
		State: StateCompleted, Body: c.s.encodeResult(c.id, v),
		ReplayFor: c.replayFor(v), KnownFor: c.retain.completed.Dedup,
	}, nil
}

// call calls the function once.
func (w *txWork[T, Tx]) call(ctx context.Context, tx Tx, a *Attempt) (value T, err error) {
	begun := now()
	inner := new(fnContext)
	w.c.enter(inner, ctx, true, a)
	w.running = true
	defer func() {
		inner.frame.ended.Store(true)
		seen := err
		if w.running {
			seen = errDidNotReturn
		}
		w.c.event(ctx, Event{Phase: PhaseFn, Outcome: okOr(seen), Attempt: w.number, Duration: now().Sub(begun), Err: seen})
	}()
	value, err = w.fn(inner, tx)
	w.running = false
	return value, err
}

// attempt is what the operation sees of its reservation.
func (c *call) attempt(rec *backend.Record, l *lease) Attempt {
	return Attempt{Scope: c.scope, Key: Key(c.id.Key), Number: rec.Attempt, Fence: rec.Fence, TookOver: rec.TookOver, lease: l}
}
