package pgstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/combine"
)

// merging makes one statement of concurrent moves of the same kind.
//
// A merged statement holds distinct keys in ascending order, so that two of them
// cannot deadlock, and waits for a lock only briefly, so that an open transaction on
// one key does not hold up the others. Whatever it did not settle — a row that is not
// as expected, a lock, a row that nobody can read, a value that the server refuses —
// each caller settles alone, outside the combiner, under its own context, in the way
// that there would be without merging. So there is one place that knows each rare
// case, and no caller's trouble is another's.
type merging struct {
	// move carries out reserves and completions. Callers alternate between the two: with
	// a combiner for each they would get out of step, and their batches would be of one.
	// They share the batch and no statement.
	move *combiner
	// look answers the reserves of keys that have a record.
	look *combiner
	// A renewal must not wait with a batch that waits for a lock.
	release, renew *combiner

	sql  mergedTexts
	wait string // lock timeout of a merged statement

	// always merges lone calls, too. Tests use it.
	always bool

	// grants are what completions need not read back.
	grants grants

	// blocked are keys that an open transaction held when they were last seen: they go
	// alone, or each batch that has one would fall apart.
	blocked known

	// replays is the share of reserves, of 256, that lately found a record: from half on
	// they look first, because a SELECT is cheaper than an INSERT that inserts nothing.
	// A wrong guess costs one round trip. It is a guess, so updates may get lost.
	replays atomic.Int32
}

// mergeOptions tune the combiners; the zero value is what was measured best.
type mergeOptions struct {
	streams int
	share   float64
	always  bool
}

const (
	// maxBatch bounds the rows of a statement, maxWeight about its bytes: a result of
	// megabytes goes alone.
	maxBatch  = 512
	maxWeight = 1 << 20

	// maxMergedWait bounds the wait of a merged statement for a lock: all its callers
	// wait.
	maxMergedWait = 10 * time.Millisecond

	// maxMerged bounds how long a stream is taken: a connection that the network has
	// swallowed must not hold up everybody behind it until a caller's context ends,
	// which may be never.
	maxMerged = 10 * time.Second
)

// newMerging returns nil where statements are not merged.
func newMerging[Tx any](s *Store[Tx], o mergeOptions) *merging {
	if !s.c.Dialect.SettingInStatement {
		return nil
	}
	if o.streams == 0 {
		o.streams = 1
	}
	if o.share == 0 {
		o.share = 1.0 / 8
	}
	m := &merging{
		sql:    newMergedTexts(s.c.Names, s.c.Now, s.sql.seed, &s.sql),
		wait:   waitText(min(s.c.LockWait, maxMergedWait)),
		always: o.always,
	}
	combiner := func(streams int, run func(context.Context, []*moveItem)) *combiner {
		return combine.New(combine.Options[moveCall]{
			Streams: streams, Max: maxBatch, MaxWeight: maxWeight, WaitShare: o.share,
			Weigh: moveCall.weight,
		}, func(ctx context.Context, items []*moveItem) {
			ctx, cancel := context.WithTimeout(ctx, maxMerged)
			defer cancel()
			run(ctx, items)
		})
	}
	m.move = combiner(o.streams, s.runMoves)
	// A look waits for no disk, so the server is busy with one while this process reads
	// the answer to another.
	m.look = combiner(2*o.streams, s.runLooks)
	m.release = combiner(o.streams, func(ctx context.Context, items []*moveItem) { s.runOwn(ctx, m.sql.release, items, false) })
	m.renew = combiner(o.streams, func(ctx context.Context, items []*moveItem) { s.runOwn(ctx, m.sql.renew, items, false) })
	return m
}

type (
	combiner = combine.Combiner[moveCall, moveAnswer]
	moveItem = combine.Item[moveCall, moveAnswer]
)

// moveCall is one of the two.
type moveCall struct {
	reserve *reserveCall
	own     *ownCall
}

func (c moveCall) weight() int {
	if c.reserve != nil {
		return c.reserve.weight()
	}
	return c.own.weight()
}

// moveAnswer is the reservation, or the record of a completion, unless the caller has
// to go on alone.
type moveAnswer struct {
	res   backend.Reservation
	alone bool
}

// runMoves carries out a batch of reserves and completions.
//
// Both together travel as one transaction, so that they share a commit: the
// completions first, then the reserves, each in ascending order. All transactions of
// this kind take their locks in that order, and so cannot deadlock.
func (s *Store[Tx]) runMoves(ctx context.Context, items []*moveItem) {
	n := 0
	for i, it := range items { // the reserves first
		if it.In.reserve != nil {
			items[n], items[i] = items[i], items[n]
			n++
		}
	}
	reserves, completes := items[:n], items[n:]
	switch {
	case len(completes) == 0:
		s.runReserves(ctx, reserves)
		return
	case len(reserves) == 0:
		s.runCompletes(ctx, completes)
		return
	}
	if _, ok := any(s.db).(pipeline); ok {
		b := newReserveBatch(reserves)
		complete, forget := s.ownRows(s.completion(completes), completes, true)
		insert, undo := s.insertRows(b, b.next())
		err := s.doMerged(ctx, func() { forget(); undo() }, complete, insert)
		if isShared(err) {
			for _, it := range items {
				it.Answer(moveAnswer{}, asMove(err))
			}
			return
		}
		if err == nil {
			b.answer(reserves, s.reserveRows(ctx, b))
			return
		}
		// A lock or a row of one kind must not fail the other.
	}
	s.runCompletes(ctx, completes)
	s.runReserves(ctx, reserves)
}

// pipeline is a [DB] that runs several statements as one transaction in one round
// trip. Otherwise it is like Do.
type pipeline interface {
	DoAll(ctx context.Context, ss ...*Stmt) error
}

// looks reports whether a reserve should look first.
func (m *merging) looks() bool { return m.replays.Load() > 128 }

// note counts what reserves found.
func (m *merging) note(replays, all int) {
	old := m.replays.Load()
	if share := int32(replays * 256 / all); share != old {
		// Rounded away from old, so that it gets there.
		step := (share - old) / 4
		if step == 0 {
			step = share - old
		}
		m.replays.Store(old + step)
	}
}

// mergedTries is how often a merged statement is sent before its callers go alone.
const mergedTries = 3

// doMerged runs merged statements, several only on a pipeline, again where the server
// wants a new snapshot or the connection was dead before anything was sent. undo
// forgets what a try that was rolled back had found; it is called before each try and
// after the last one that failed.
func (s *Store[Tx]) doMerged(ctx context.Context, undo func(), ss ...*Stmt) (err error) {
	for range mergedTries {
		undo()
		if len(ss) == 1 {
			err = s.db.Do(ctx, ss[0])
		} else {
			err = any(s.db).(pipeline).DoAll(ctx, ss...)
		}
		if err == nil {
			return nil
		}
		undo()
		if !isRetry(err) && !isStale(err) {
			return err
		}
	}
	return err
}

// isShared reports whether the error of a merged statement is the answer for all its
// callers. Otherwise one row of it is the reason, or may be, and each goes alone.
func isShared(err error) bool {
	if err == nil {
		return false
	}
	var f *Failure
	if !errors.As(err, &f) {
		return true // the context's
	}
	return f.unknown() || !class(f.Code, "22", "23", "40", "54", "55", "P0") && !f.stale
}

// leftError is the error of a caller that has no answer from a batch: in the words
// that it would have got without one.
func leftError(err error) error {
	var e *combine.Error
	switch {
	case !errors.As(err, &e):
		return err
	case !e.Sent:
		return e.Err
	case errors.Is(e.Err, combine.ErrNoAnswer):
		return &Failure{Sent: true, wrote: true, cause: "the statement ended without an answer"}
	}
	return &Failure{Sent: true, wrote: true, ctx: e.Err}
}
