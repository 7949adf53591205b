package pgstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/combine"
)

// ownCall is a move by the token that owns the record: a completion, a release or a
// renewal. It shares no memory with the caller.
type ownCall struct {
	backend.CompleteRequest // of the others only Ref
	sum                     token
	length                  time.Duration // of a release or renewal
}

func (c *ownCall) weight() int { return 128 + len(c.Body) }

// ownAnswer: done is false where the statement found no record that it may change.
// What that means is for the general way to say.
type ownAnswer struct {
	rec  backend.Record
	done bool
}

type ownItem = combine.Item[*ownCall, ownAnswer]

// completeMerged is completeOne, with others that come at the same time.
func (s *Store[Tx]) completeMerged(ctx context.Context, r *backend.CompleteRequest) (backend.Record, bool, error) {
	if s.merge == nil {
		return s.completeOne(ctx, r)
	}
	c := &ownCall{CompleteRequest: *r, sum: r.ID.Sum()}
	c.Body = bytes.Clone(r.Body)
	out, err := s.merge.complete.Do(ctx, c)
	return out.rec, out.done, leftError(err)
}

// moveMerged is a release or a renewal, with others that come at the same time.
func moveMerged(ctx context.Context, c *combine.Combiner[*ownCall, ownAnswer], ref backend.Ref, length time.Duration) (done bool, err error) {
	out, err := c.Do(ctx, &ownCall{CompleteRequest: backend.CompleteRequest{Ref: ref}, sum: ref.ID.Sum(), length: length})
	return out.done, leftError(err)
}

// runCompletes carries out a batch of completions.
func (s *Store[Tx]) runCompletes(ctx context.Context, items []*ownItem) {
	if len(items) > 1 || s.merge.always {
		s.runOwn(ctx, s.merge.sql.complete, items, true)
		return
	}
	c := items[0].In
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
		items[0].Answer(ownAnswer{}, nil)
	case err != nil:
		items[0].Answer(ownAnswer{}, asMove(err))
	default:
		rec.Body = c.Body
		items[0].Answer(ownAnswer{rec: rec, done: st.Count > 0}, nil)
	}
}

// runOwn carries out a batch with a merged statement. Of several moves on one key only
// the first is in it.
func (s *Store[Tx]) runOwn(ctx context.Context, text string, items []*ownItem, completes bool) {
	slices.SortStableFunc(items, func(a, b *ownItem) int { return bytes.Compare(a.In.sum[:], b.In.sum[:]) })
	var (
		ids, owners, states, replay, known, lengths list
		bodies                                      pieces
		rows                                        = make([]*ownItem, 0, len(items))
	)
	for _, it := range items {
		c := it.In
		it.Answer(ownAnswer{}, nil)
		if n := len(rows); n > 0 && rows[n-1].In.sum == c.sum {
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
	st := &Stmt{SQL: text, Args: []any{ids.arg(), owners.arg(), lengths.arg(), int64(len(rows)), s.merge.wait}}
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
		i, ok := slices.BinarySearchFunc(rows, sum, func(it *ownItem, sum token) int { return bytes.Compare(it.In.sum[:], sum[:]) })
		if err != nil || !ok || completes && cur.rec.ID != rows[i].In.ID {
			// Its caller asks again, alone, and finds its own move standing or the fault.
			return nil
		}
		cur.rec.Body = rows[i].In.Body
		rows[i].Answer(ownAnswer{rec: cur.rec, done: true}, nil)
		return nil
	}
	err := s.doMerged(ctx, st, func() {
		for _, it := range rows { // what a try that was rolled back had found
			it.Answer(ownAnswer{}, nil)
		}
	})
	if err == nil {
		return
	}
	for _, it := range rows {
		if isShared(err) {
			it.Answer(ownAnswer{}, asMove(err))
		} else {
			it.Answer(ownAnswer{}, nil)
		}
	}
}
