package bolt

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// joined marks a key whose next record is in a transaction that the caller owns.
// Nobody but that caller knows whether it will commit, and bbolt says so for
// commits only. Until then nobody else may own the key.
type joined struct {
	tx     *bbolt.Tx
	change *change
	// over is closed when the fate of the transaction is known and memory agrees
	// with it.
	over chan struct{}
	// stuck is closed when the store cannot find out.
	stuck chan struct{}
	asked atomic.Bool // a turn of the writer has been asked for
}

// marks are the keys bound by callers' transactions.
type marks struct {
	mu    sync.Mutex
	list  []*joined
	count atomic.Int32
}

func (m *marks) add(j *joined) {
	m.mu.Lock()
	m.list = append(m.list, j)
	m.count.Store(int32(len(m.list)))
	m.mu.Unlock()
}

// ended returns the marks of transactions other than tx and keeps the rest.
// bbolt has one write transaction at a time: while tx is one, the others are over.
func (m *marks) ended(tx *bbolt.Tx) []*joined {
	if m.count.Load() == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var over, left []*joined
	for _, j := range m.list {
		if j.tx == tx {
			left = append(left, j)
		} else {
			over = append(over, j)
		}
	}
	m.list = left
	m.count.Store(int32(len(left)))
	return over
}

// Join implements the move; the request is valid.
func (s *exclusive) Join(ctx context.Context, tx *bbolt.Tx, r backend.ReserveRequest, work backend.Work[*bbolt.Tx]) (res backend.Reservation, err error) {
	if err := s.begin(ctx); err != nil {
		return res, err
	}
	if tx == nil || tx.DB() == nil || tx.DB() != s.bolt() || !tx.Writable() {
		return res, ErrWrongTx
	}
	mine, err := newRows(tx)
	if err != nil {
		return res, err
	}
	// This very transaction proves that all earlier ones have ended. What became
	// of them can be read in it, because it sees every commit.
	if err := guarded(func() error { s.settleEnded(mine); return nil }); err != nil {
		return res, err
	}
	hash := hashOf(r.ID)
	if rec, ok := s.parked(r.ID, hash); ok {
		_, res, err := r.Apply(rec, s.now(), 0)
		res.Record = res.Record.Clone()
		return res, err
	}
	k, ok, err := s.holdIn(ctx, tx, r.ID, hash, r.Wait)
	if err != nil {
		return res, err
	}
	if !ok {
		return backend.Reservation{Outcome: backend.Busy, Now: s.now()}, nil
	}
	parked := false
	defer func() {
		if !parked {
			k.release()
		}
	}()
	if mark := k.mark(); mark != nil {
		// Joined before in this transaction: answered from what it wrote then.
		_, res, err := r.Apply(mark.change.next, s.now(), 0)
		if err == nil && res.Outcome == backend.Acquired {
			return res, fmt.Errorf("%w: the key is settled twice in one transaction", backend.ErrInvalidRequest)
		}
		res.Record = res.Record.Clone()
		return res, err
	}
	res, next, at, err := s.reserve(k, &r, func(n uint64) error {
		if s.covered(n) {
			return nil
		}
		// The writer cannot move the mark beside the caller's transaction, and moved
		// inside of it, it would go back with it: the fence would be given again.
		return fmt.Errorf("%w: a new block of fences is needed, and is taken once this transaction has ended", backend.ErrRetryTransaction)
	})
	switch {
	case err != nil:
		return backend.Reservation{}, err
	case next.State == 0 && res.Outcome != backend.Acquired:
		return res, nil
	case res.Outcome != backend.Acquired:
		// Found abandoned under Hold: it turns uncertain. The caller's transaction
		// must stay untouched and ours cannot run beside it. Memory is enough where
		// after a crash the row on disk leads the next reserve here again; else the
		// row is written once that transaction has ended.
		res.Record = res.Record.Clone()
		if err := k.remember(next, at); err != nil {
			return backend.Reservation{}, err
		}
		if at != inPending {
			parked = true
			k.park(next, at)
		}
		return res, nil
	case next.State == 0:
		next = res.Record
	}

	cur := current{next, at}
	// Whatever happens to work: without a savepoint its writes stay in the caller's
	// transaction, and if that is committed, nobody can say that the operation did
	// not take effect. So the key is uncertain in it from before the first of them: on
	// an error, on a panic, on Goexit, and if work itself ends the transaction (R19).
	early, err := k.joinUncertain(mine, tx, cur)
	if err != nil {
		return backend.Reservation{}, err
	}
	given := res
	given.Record = next.Clone()
	done, err := work(ctx, tx, given)
	if err != nil {
		return backend.Reservation{}, err
	}
	if tx.DB() == nil {
		return backend.Reservation{}, fmt.Errorf("%w: the caller's transaction was ended from inside the operation", backend.ErrOutcomeUnknown)
	}
	if done.Undo {
		done = backend.Completion{State: backend.Uncertain, Body: done.Body}
	}
	c, err := k.outcome(r.Ref, cur, done)
	if err != nil {
		return backend.Reservation{}, err
	}
	c.early = true
	if err := guarded(func() error { return c.write(mine) }); err != nil {
		return backend.Reservation{}, err
	}
	k.sh.mu.Lock()
	early.change = c
	k.sh.mu.Unlock()
	res.Record, res.Now = c.next.Clone(), s.now()
	return res, nil
}

// joinUncertain writes the record as uncertain into the caller's transaction.
func (k held) joinUncertain(r *rows, tx *bbolt.Tx, cur current) (*joined, error) {
	rec := cur.rec
	rec.State, rec.KnownUntil = backend.Uncertain, time.Time{}
	return k.join(r, tx, k.change(rec, cur.at, k.s.now()))
}

// join writes a change into the caller's transaction and marks the key.
func (k held) join(r *rows, tx *bbolt.Tx, c *change) (*joined, error) {
	if err := guarded(func() error { return c.write(r) }); err != nil {
		return nil, err
	}
	j := &joined{tx: tx, change: c, over: make(chan struct{}), stuck: make(chan struct{})}
	k.sh.mu.Lock()
	k.e.joined = j
	k.sh.mu.Unlock()
	k.s.marks.add(j)
	tx.OnCommit(func() { j.end(true) })
	return j, nil
}

// end brings memory to where the disk is and frees the key. The first call counts.
func (j *joined) end(committed bool) {
	k := j.change.k
	k.sh.mu.Lock()
	defer k.sh.mu.Unlock()
	if k.e.joined != j {
		return
	}
	k.e.joined = nil
	if committed {
		j.change.applied()
	}
	k.sh.tidy(k.e)
	close(j.over)
}

// settleEnded finds out what became of callers' transactions that have ended. r
// belongs to a write transaction that began after them.
func (s *exclusive) settleEnded(r *rows) {
	for _, j := range s.marks.ended(r.tx) {
		select {
		case <-j.over: // it committed and said so
		default:
			j.end(j.change.isOn(r))
		}
	}
}

// isOn reports whether the disk holds what the change wrote. The row is compared
// in full: after a roll-back another record may have been given its sequence.
func (c *change) isOn(r *rows) bool {
	if c.at == inPending {
		same, err := r.samePending(c.next.ID, c.row)
		return err == nil && same
	}
	return r.sameSettled(c.gen, c.at.seq(), c.row)
}

// settleJoined waits until the fate of a caller's transaction is known: the
// writer's next turn proves that it has ended. It gives up when ctx ends or, if
// limited, after wait; the turn stays queued for whoever asks next.
func (s *exclusive) settleJoined(ctx context.Context, j *joined, limited bool, wait time.Duration) (over bool, err error) {
	if j.asked.CompareAndSwap(false, true) {
		o := &op{
			write: func(*rows) error { return nil },
			done: func(committed bool) {
				if !committed {
					close(j.stuck)
				}
			},
		}
		if err := s.writer.submit(o); err != nil {
			close(j.stuck)
		}
	}
	var deadline <-chan time.Time
	if limited {
		timer := time.NewTimer(max(wait, failFast))
		defer timer.Stop()
		deadline = timer.C
	}
	select {
	case <-j.over:
		return true, nil
	case <-j.stuck:
		if err := s.usable(); err != nil {
			return false, err
		}
		return false, fmt.Errorf("%w: what became of a caller's transaction cannot be read", ErrDamaged)
	case <-deadline:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// holdIn takes the busy lock for a caller that owns bbolt's write transaction. It
// does not wait for marks: that of its own transaction is its own, and the others
// have been settled. It waits for a bounded time only, because a holder may in
// turn be waiting for this very transaction to end.
func (s *exclusive) holdIn(ctx context.Context, tx *bbolt.Tx, id backend.ID, hash uint64, wait time.Duration) (held, bool, error) {
	sh := s.shardOf(hash)
	sh.mu.Lock()
	e := sh.entry(id, hash)
	if !e.busy {
		e.busy = true
		sh.mu.Unlock()
		return held{s, sh, e}, true, nil
	}
	turn := make(chan struct{})
	e.waiters = append(e.waiters, turn)
	sh.mu.Unlock()
	timer := time.NewTimer(max(wait, failFast))
	defer timer.Stop()
	select {
	case <-turn:
	case <-timer.C:
		if !sh.leave(e, turn) {
			return held{}, false, nil
		}
	case <-ctx.Done():
		if !sh.leave(e, turn) {
			return held{}, false, ctx.Err()
		}
	}
	return held{s, sh, e}, true, nil
}
