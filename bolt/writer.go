package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// maxBatch bounds the members of one transaction, so that the first of them is
// not kept waiting by an endless queue.
const maxBatch = 1024

// op is one member of a round of the writer. Either write or lent is set.
type op struct {
	// write puts the op's changes into the transaction, on the writer's goroutine.
	// After a roll-back it runs again. Its error fails this op alone.
	write func(*rows) error
	// lent is work that runs inside the transaction on its caller's goroutine.
	lent *lent
	// done runs on the writer's goroutine once the op's fate is known, before
	// anybody is answered: memory follows the disk in the order of the commits.
	done func(committed bool)

	// first goes before the others of its batch: it looks at what is committed, which
	// is what memory agrees with.
	first bool

	state  atomic.Int32
	result chan error // one answer, buffered

	// The three below belong to the writer's goroutine.
	ran  bool // its lent work has been in a transaction
	gone bool // its caller has left, and nothing of it is in the transaction
	over bool // it has been answered
}

// The states of an op. A caller may withdraw it until the writer has taken it.
const (
	opQueued = iota
	opTaken
	opWithdrawn
)

// writer commits together what concurrent callers have queued. It has no timer:
// a lone caller is committed at once.
type writer struct {
	s *exclusive

	mu      sync.Mutex
	queue   []*op
	closing bool

	wake    chan struct{} // buffered; a token says: look at the queue
	stopped chan struct{} // closed when the goroutine has ended

	// The two below belong to the writer's goroutine.
	lastCommit time.Duration
	shedAt     time.Time // when due generations were last looked for
	released   int       // callers answered by the last commit and those that queued meanwhile
}

func newWriter(s *exclusive) *writer {
	return &writer{s: s, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
}

// submit queues o. After it returns nil, o.done is called exactly once, unless
// the caller withdraws o.
func (w *writer) submit(o *op) error {
	o.result = make(chan error, 1)
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		return ErrClosed
	}
	w.queue = append(w.queue, o)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return nil
}

// withdraw takes o back. It fails if the writer has begun with it. What was taken
// back leaves the queue: its results must not stay in memory for as long as the
// writer is kept waiting.
func (w *writer) withdraw(o *op) bool {
	if !o.state.CompareAndSwap(opQueued, opWithdrawn) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.queue, o); i >= 0 {
		w.queue = slices.Delete(w.queue, i, i+1)
	}
	return true
}

// await waits for the answer to a submitted op. If ctx ends first, the op is
// withdrawn, and withdrawn is set: nothing has happened or will. If it is too
// late for that, the outcome is unknown; o.done still runs.
func (w *writer) await(ctx context.Context, o *op) (withdrawn bool, err error) {
	select {
	case err := <-o.result:
		return false, err
	case <-ctx.Done():
	}
	if w.withdraw(o) {
		return true, ctx.Err()
	}
	select {
	case err := <-o.result:
		return false, err
	default:
		return false, unknownCommit(ctx.Err())
	}
}

// do submits o and waits for its commit.
func (w *writer) do(ctx context.Context, o *op) error {
	if err := w.submit(o); err != nil {
		return err
	}
	_, err := w.await(ctx, o)
	return err
}

// stop lets the writer finish what is queued and waits for its end. Further
// submissions fail.
func (w *writer) stop() {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	<-w.stopped
}

// run is the writer's goroutine.
func (w *writer) run() {
	defer close(w.stopped)
	for {
		n, closing := w.queued()
		if n == 0 {
			if closing {
				return
			}
			<-w.wake
			continue
		}
		w.gather()
		w.shed()
		w.round()
	}
}

// shed queues the removal of due generations when their slots run low: without it
// a store that nobody sweeps would one day have no slot for the next record.
func (w *writer) shed() {
	s, now := w.s, stopwatch()
	if !s.gens.crowded() || now.Sub(w.shedAt) < time.Second {
		return
	}
	w.shedAt = now
	var dropped []group
	_ = w.submit(&op{
		write: func(r *rows) (err error) {
			// What is still queued may belong to one that is due since a moment.
			at := s.now().Add(-time.Minute)
			first, _, _ := piece(s.due(r, at, false))
			dropped, err = r.drop(first, at)
			return err
		},
		done: func(committed bool) {
			if !committed || len(dropped) == 0 {
				return
			}
			s.gens.killAll(dropped)
			s.forgetDropped()
		},
	})
}

func (w *writer) queued() (int, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue), w.closing
}

// gather waits for the callers that the last commit has released to come back
// with their next op. Without it the callers split into two halves that take
// turns for ever, and every commit carries half of what it could. It waits for a
// number, not for a time: never for a lone caller, never longer than an eighth of
// what a commit costs, and no longer than people keep coming, so that a disk that
// stood still once does not make the writer burn a core.
func (w *writer) gather() {
	if w.released <= 1 {
		return
	}
	start, limit := stopwatch(), min(w.lastCommit/8, gatherMost)
	for seen, idle := 0, 0; idle < gatherLooks; idle++ {
		n, closing := w.queued()
		if n >= w.released || closing || stopwatch().Sub(start) > limit {
			return
		}
		if n > seen {
			seen, idle = n, 0
		}
		runtime.Gosched()
	}
}

// Bounds of gather: in time, and in looks at the queue without an arrival.
const (
	gatherMost  = time.Millisecond
	gatherLooks = 1024
)

// lends reports whether lent work is queued.
func (w *writer) lends() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.queue {
		if o.lent != nil {
			return true
		}
	}
	return false
}

// take empties the queue into a batch. Unless lent work is wanted too, that stays
// for the next round.
func (w *writer) take(lent bool) []*op {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch := make([]*op, 0, min(len(w.queue), maxBatch))
	left := w.queue[:0]
	for _, o := range w.queue {
		switch {
		case len(batch) == maxBatch || o.lent != nil && !lent:
			left = append(left, o)
		case o.state.CompareAndSwap(opQueued, opTaken):
			if o.first {
				batch = slices.Insert(batch, 0, o)
			} else {
				batch = append(batch, o)
			}
		}
	}
	clear(w.queue[len(left):])
	w.queue = left
	return batch
}

// round commits one batch. The batch is taken when bbolt's write lock is held:
// until then its members may withdraw, and late ones may join.
func (w *writer) round() {
	var batch []*op
	lent := w.lends()
	failed := w.try(lent, func() []*op {
		batch = w.take(lent)
		return batch
	})
	size := len(batch)
	if failed != nil {
		w.again(batch, failed)
	}
	n, _ := w.queued()
	w.released = size + n
}

// again runs the members of a batch whose transaction was rolled back because one
// of them failed. Plain writes go together; lent work goes alone from now on, so
// that no work runs more than about twice however many of its neighbours fail.
func (w *writer) again(batch []*op, failed *op) {
	for failed != nil {
		alone := failed.ran
		if failed.over {
			batch = without(batch, failed)
		}
		if alone {
			var writes []*op
			for _, o := range batch {
				if o.lent == nil {
					writes = append(writes, o)
				}
			}
			w.settle(writes)
			for _, o := range batch {
				if o.lent != nil {
					w.settle([]*op{o})
				}
			}
			return
		}
		failed = w.tryAgain(batch)
	}
}

func (w *writer) tryAgain(batch []*op) (failed *op) {
	lent := false
	for _, o := range batch {
		lent = lent || o.lent != nil
	}
	return w.try(lent, func() []*op { return batch })
}

// settle runs a batch until everybody in it has been answered.
func (w *writer) settle(batch []*op) {
	if len(batch) > 0 {
		if failed := w.tryAgain(batch); failed != nil {
			w.again(batch, failed)
		}
	}
}

func without(ops []*op, gone *op) []*op {
	kept := make([]*op, 0, len(ops))
	for _, o := range ops {
		if o != gone {
			kept = append(kept, o)
		}
	}
	return kept
}

// try runs the batch in one transaction and answers its members. If one of them
// fails, the transaction is rolled back and that member returned, alone answered.
func (w *writer) try(lent bool, take func() []*op) (failed *op) {
	var (
		batch   []*op
		taken   bool
		began   time.Time
		txid    int
		failure error
		onDisk  bool
	)
	if w.s.poisoned.Load() {
		w.finish(take(), false, ErrPoisoned)
		return nil
	}
	err := w.s.update(lent, func(tx *bbolt.Tx) error {
		batch, taken = take(), true
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		if w.s.file != nil {
			tx.DB().AllocSize = growBy(tx.Size())
		}
		// The first handler to run: whatever a later one does, the commit stands.
		tx.OnCommit(func() { onDisk = true })
		w.s.settleEnded(r)
		txid = tx.ID()
		for _, o := range batch {
			if err := o.apply(r); err != nil {
				failed, failure = o, err
				return errAborted
			}
		}
		if !r.wrote {
			return errNothing
		}
		began = stopwatch()
		return nil
	})
	if !taken {
		batch = take()
	}
	switch {
	case failed != nil:
		if failed.over = !errors.Is(failure, errUndo); failed.over {
			w.finish([]*op{failed}, false, failure)
		}
		return failed
	case err == nil:
		w.lastCommit = stopwatch().Sub(began)
		w.finish(batch, true, nil)
	case errors.Is(err, errNothing):
		w.finish(batch, true, nil)
	case onDisk:
		// A commit handler that the user's work registered has panicked. What was
		// committed stands; the callers whose work it may have been ask again.
		w.s.poisoned.Store(false)
		w.s.wedged.Store(false)
		w.finish(batch, true, unknownCommit(errHandlerPanicked))
	case began.IsZero():
		w.finish(batch, false, err)
	default:
		w.finish(batch, false, w.s.commitFailed(err, txid))
	}
	return nil
}

// update runs fn in a write transaction of the current file. A managed one cannot
// be ended by fn (R19).
func (s *exclusive) update(managed bool, fn func(*bbolt.Tx) error) error {
	for {
		db := s.bolt()
		moved := false
		body := func(tx *bbolt.Tx) error {
			// Compaction holds the write lock of the old file until the new one is in
			// place: what gets the lock afterwards must not commit to the old one.
			if moved = s.bolt() != db; moved {
				return errNothing
			}
			if managed {
				if err := s.vetOnce(db); err != nil {
					return err
				}
			}
			// A panic must not reach bbolt's own roll-back after one; see below.
			return guarded(func() error { return fn(tx) })
		}
		panicked, err := watched(func() error {
			if managed {
				return db.Update(body)
			}
			return updateBare(db, body)
		})
		if moved || errors.Is(err, bbolterrors.ErrDatabaseNotOpen) && s.bolt() != db {
			continue
		}
		if panicked {
			s.wedged.Store(true)
			s.poison()
		}
		return err
	}
}

// updateBare is DB.Update without its answer to a panic: that is to walk the whole
// file on a goroutine of bbolt's own, and on a file that has just proved to be
// damaged, a second panic there would end the process. The transaction is left as
// it is instead, and the handle with it.
func updateBare(db *bbolt.DB, fn func(*bbolt.Tx) error) error {
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// vetOnce looks at every page of the file before the first managed transaction,
// unless that was done when it was opened: DB.Update alone keeps work from ending
// its transaction, and DB.Update does not survive damage.
func (s *exclusive) vetOnce(db *bbolt.DB) error {
	if s.vetted {
		return nil
	}
	f, err := os.Open(db.Path())
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := vet(f, true, true); err != nil {
		return err
	}
	s.vetted = true
	return nil
}

// apply runs the op inside the transaction of r.
func (o *op) apply(r *rows) (err error) {
	if o.lent == nil {
		return guarded(func() error { return o.write(r) })
	}
	// A fault on a damaged page must be this op's error and not the end of the
	// process; the user's own panic never comes through here.
	err = o.lent.run(r.tx)
	if errors.Is(err, errGone) {
		// Its caller has left before its work touched this transaction: the others
		// need not be rolled back for it.
		o.gone = true
		return nil
	}
	o.ran = true
	if err != nil {
		return err
	}
	return guarded(func() error { return o.lent.write(r) })
}

// finish tells everybody how it ended. Memory is brought up to date for the whole
// batch before the first caller runs on. An error beside a commit is for those
// whose work was in the transaction.
func (w *writer) finish(batch []*op, committed bool, err error) {
	for _, o := range batch {
		if o.done != nil {
			o.done(committed && !o.gone)
		}
	}
	for _, o := range batch {
		switch {
		case o.gone:
			o.result <- errGone
		case committed && !o.ran:
			o.result <- nil
		default:
			o.result <- err
		}
	}
}

// commitFailed decides what a failed commit means. Lack of room is a plain
// failure if the commit has certainly not happened. Any other error leaves open
// what a later sync would make of the pages that this one could not write, so the
// handle is not trusted again.
func (s *exclusive) commitFailed(err error, txid int) error {
	if s.wedged.Load() {
		return unknownCommit(err)
	}
	if definite := definiteFailure(s.bolt(), err, txid); definite != nil {
		return definite
	}
	s.poison()
	return unknownCommit(err)
}

// definiteFailure returns the error of a commit that failed for lack of room
// before it could take effect, else nil. bbolt writes the data pages, syncs, writes
// the header, syncs: unless the new header can be seen, the transaction has not
// happened.
func definiteFailure(db *bbolt.DB, err error, txid int) error {
	visible := txid
	if look := guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			visible = tx.ID()
			return nil
		})
	}); look != nil || visible >= txid || !noRoom(err) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrFull, err)
}
