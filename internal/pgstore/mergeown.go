package pgstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/goidem/idem/backend"
)

// ownCall is a move by the token that owns the record: a completion, a release or a
// renewal. It shares no memory with the caller.
type ownCall struct {
	backend.CompleteRequest // of the others only Ref
	sum                     token
	length                  time.Duration // of a release or renewal
}

func (c *ownCall) weight() int { return 128 + len(c.Body) }

// completeMerged is completeOne, with others that come at the same time.
func (s *Store[Tx]) completeMerged(ctx context.Context, r *backend.CompleteRequest) (backend.Record, bool, error) {
	if s.merge == nil {
		return s.completeOne(ctx, r)
	}
	c := &ownCall{CompleteRequest: *r, sum: r.ID.Sum()}
	c.Body = bytes.Clone(r.Body)
	out, err := s.merge.move.Do(ctx, moveCall{own: c})
	return out.res.Record, !out.alone && err == nil, leftError(err)
}

// moveMerged is a release or a renewal, with others that come at the same time.
func moveMerged(ctx context.Context, c *combiner, ref backend.Ref, length time.Duration) (done bool, err error) {
	out, err := c.Do(ctx, moveCall{own: &ownCall{CompleteRequest: backend.CompleteRequest{Ref: ref}, sum: ref.ID.Sum(), length: length}})
	return !out.alone && err == nil, leftError(err)
}

// runCompletes carries out a batch of completions.
func (s *Store[Tx]) runCompletes(ctx context.Context, items []*moveItem) {
	if len(items) > 1 || s.merge.always {
		s.runOwn(ctx, s.merge.sql.complete, items, true)
		return
	}
	c := items[0].In.own
	var rec backend.Record
	st := s.completeStmt(&c.CompleteRequest)
	st.SQL, st.Args = s.merge.sql.completeWait, append(st.Args, s.merge.wait)
	st.Row = func(sc Scanner) error {
		cur, err := scanRow(sc, c.ID)
		rec = cur.rec
		return err
	}
	err := s.db.Do(ctx, st)
	switch {
	case isRetry(err), isStale(err), isLockTimeout(err):
		items[0].Answer(moveAnswer{alone: true}, nil)
	case err != nil:
		items[0].Answer(moveAnswer{alone: true}, asMove(err))
	default:
		rec.Body = c.Body
		items[0].Answer(moveAnswer{res: backend.Reservation{Record: rec}, alone: st.Count == 0}, nil)
	}
}

// runOwn carries out a batch with a merged statement.
func (s *Store[Tx]) runOwn(ctx context.Context, text string, items []*moveItem, completes bool) {
	st, undo := s.ownRows(text, items, completes)
	err := s.doMerged(ctx, undo, st)
	if isShared(err) {
		for _, it := range items {
			it.Answer(moveAnswer{}, asMove(err))
		}
	}
}

// ownRows is the statement for a batch, and what forgets its answers. Of several moves
// on one key only the first is in it.
func (s *Store[Tx]) ownRows(text string, items []*moveItem, completes bool) (st *Stmt, undo func()) {
	slices.SortStableFunc(items, func(a, b *moveItem) int { return bytes.Compare(a.In.own.sum[:], b.In.own.sum[:]) })
	var (
		ids, owners, states, replay, known, lengths list
		bodies                                      pieces
		rows                                        = make([]*moveItem, 0, len(items))
	)
	for _, it := range items {
		c := it.In.own
		if n := len(rows); n > 0 && rows[n-1].In.own.sum == c.sum {
			continue
		}
		rows = append(rows, it)
		ids.token(c.sum)
		owners.token(token(c.Owner))
		if !completes {
			lengths.int(micros(c.length))
			continue
		}
		states.int(int64(c.State))
		bodies.add(c.Body)
		replay.int(micros(c.ReplayFor))
		known.int(micros(c.KnownFor))
	}
	st = &Stmt{SQL: text, Args: []any{ids.arg(), owners.arg(), lengths.arg(), int64(len(rows)), s.merge.wait}}
	if completes {
		st.Args = []any{
			ids.arg(), owners.arg(), states.arg(), bodies.blob(), bodies.at.arg(), bodies.size.arg(),
			replay.arg(), known.arg(), int64(len(rows)), s.merge.wait,
		}
	}
	st.Row = func(sc Scanner) (err error) {
		var sum token
		var cur row
		if completes {
			cur, err = scanRow(sc, backend.ID{}, &sum)
		} else {
			err = sc.Scan(&sum)
		}
		i, ok := slices.BinarySearchFunc(rows, sum, func(it *moveItem, sum token) int { return bytes.Compare(it.In.own.sum[:], sum[:]) })
		if err != nil || !ok || completes && cur.rec.ID != rows[i].In.own.ID {
			// Its caller asks again, alone, and finds its own move standing or the fault.
			return nil
		}
		cur.rec.Body = rows[i].In.own.Body
		rows[i].Answer(moveAnswer{res: backend.Reservation{Record: cur.rec}}, nil)
		return nil
	}
	return st, func() {
		for _, it := range items {
			it.Answer(moveAnswer{alone: true}, nil)
		}
	}
}
