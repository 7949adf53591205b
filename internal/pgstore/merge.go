package pgstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/goidem/idem/internal/combine"
)

// merging makes one statement of concurrent moves of the same kind. Each kind has a
// combiner of its own: a statement that reserves waits for other reserves' rows, and
// no completion should wait with it.
//
// A merged statement holds distinct keys in ascending order, so that two of them
// cannot deadlock, and waits for a lock only briefly, so that an open transaction on
// one key does not hold up the others. Whatever it did not settle — a row that is not
// as expected, a lock, a row that nobody can read, a value that the server refuses —
// each caller settles alone, outside the combiner, under its own context, in the way
// that there would be without merging. So there is one place that knows each rare
// case, and no caller's trouble is another's.
type merging struct {
	// look answers the reserves of keys that have a record, reserve the others.
	look, reserve *combine.Combiner[*reserveCall, reserveAnswer]
	// One for each of the moves by which an attempt's own token changes its record.
	complete, release, renew *combine.Combiner[*ownCall, ownAnswer]

	sql  mergedTexts
	wait string // lock timeout of a merged statement

	// always merges lone calls, too. Tests use it.
	always bool

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
	reserves := func(streams int, run func(context.Context, []*reserveItem)) *combine.Combiner[*reserveCall, reserveAnswer] {
		return combine.New(combine.Options[*reserveCall]{
			Streams: streams, Max: maxBatch, MaxWeight: maxWeight, WaitShare: o.share,
			Weigh: (*reserveCall).weight,
		}, run)
	}
	// A look waits for no disk, so the server is busy with one while this process reads
	// the answer to another.
	m.look = reserves(2*o.streams, s.runLooks)
	m.reserve = reserves(o.streams, s.runReserves)
	own := func(run func(context.Context, []*ownItem)) *combine.Combiner[*ownCall, ownAnswer] {
		return combine.New(combine.Options[*ownCall]{
			Streams: o.streams, Max: maxBatch, MaxWeight: maxWeight, WaitShare: o.share,
			Weigh: (*ownCall).weight,
		}, run)
	}
	m.complete = own(s.runCompletes)
	m.release = own(func(ctx context.Context, items []*ownItem) { s.runOwn(ctx, m.sql.release, items, false) })
	m.renew = own(func(ctx context.Context, items []*ownItem) { s.runOwn(ctx, m.sql.renew, items, false) })
	return m
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

// doMerged runs a merged statement, again where the server wants a new snapshot or
// the connection was dead before anything was sent.
func (s *Store[Tx]) doMerged(ctx context.Context, st *Stmt, begin func()) (err error) {
	for range mergedTries {
		begin()
		if err = s.db.Do(ctx, st); err == nil || !isRetry(err) && !isStale(err) {
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
