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
	known                   *granted      // of a completion: the record as a reserve of this process has left it
}

func (c *ownCall) weight() int { return 128 + len(c.Body) }

// completeMerged is completeOne, with others that come at the same time.
func (s *Store[Tx]) completeMerged(ctx context.Context, r *backend.CompleteRequest) (backend.Record, bool, error) {
	if s.merge == nil {
		return s.completeOne(ctx, r)
	}
	c := &ownCall{CompleteRequest: *r, sum: r.ID.Sum(), known: s.merge.grants.take(&r.Ref)}
	c.Body = bytes.Clone(r.Body)
	out, err := s.merge.move.Do(ctx, moveCall{own: c})
	if err == nil && out.alone && c.known != nil {
		// A renewal came in between, or it was another's lock. The statement that reads the
		// record back settles the first, and the others of the batch, too, come again at once.
		c.known = nil
		out, err = s.merge.move.Do(ctx, moveCall{own: c})
	}
	if err != nil || out.alone {
		return backend.Record{}, false, leftError(err)
	}
	s.tx.known.add(c.sum)
	return out.res.Record, true, nil
}

// moveMerged is a release or a renewal, with others that come at the same time.
func moveMerged(ctx context.Context, c *combiner, ref backend.Ref, length time.Duration) (done bool, err error) {
	out, err := c.Do(ctx, moveCall{own: &ownCall{CompleteRequest: backend.CompleteRequest{Ref: ref}, sum: ref.ID.Sum(), length: length}})
	return !out.alone && err == nil, leftError(err)
}

// runCompletes carries out a batch of completions.
func (s *Store[Tx]) runCompletes(ctx context.Context, items []*moveItem) {
	if len(items) > 1 || s.merge.always {
		s.runOwn(ctx, s.completion(items), items, true)
		return
	}
	c := items[0].In.own
	var rec backend.Record
	if c.known != nil {
		st := &Stmt{SQL: s.merge.sql.settleOne, Args: []any{
			c.sum, token(c.Owner), c.known.rev, int16(c.State), bytesOrNull(c.Body), micros(c.ReplayFor), micros(c.KnownFor), s.merge.wait,
		}}
		st.Row = func(sc Scanner) error {
			var now time.Time
			err := sc.Scan(&now)
			if err == nil {
				rec, err = c.settled(now)
			}
			return err
		}
		s.completeAlone(ctx, items[0], st, &rec)
		return
	}
	st := s.completeStmt(&c.CompleteRequest)
	st.SQL, st.Args = s.merge.sql.completeWait, append(st.Args, s.merge.wait)
	st.Row = func(sc Scanner) error {
		cur, err := scanRow(sc, c.ID)
		rec = cur.rec
		return err
	}
	s.completeAlone(ctx, items[0], st, &rec)
}

// completeAlone runs the completion of one record, which its Row leaves in rec.
func (s *Store[Tx]) completeAlone(ctx context.Context, it *moveItem, st *Stmt, rec *backend.Record) {
	err := s.db.Do(ctx, st)
	switch {
	case isRetry(err), isStale(err), isLockTimeout(err):
		it.Answer(moveAnswer{alone: true}, nil)
	case err != nil:
		it.Answer(moveAnswer{alone: true}, asMove(err))
	default:
		rec.Body = it.In.own.Body
		it.Answer(moveAnswer{res: backend.Reservation{Record: *rec}, alone: st.Count == 0}, nil)
	}
}

// settled is the record of a completion that found what is known of it unchanged.
func (c *ownCall) settled(now time.Time) (backend.Record, error) {
	own := c.CompleteRequest
	own.Body = nil // the answer gets it where it is wanted
	_, rec, err := own.Apply(c.known.rec, now.UTC())
	return rec, err
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

// completion is the text for a batch of completions: the one that reads nothing back
// where this process knows all of the records.
func (s *Store[Tx]) completion(items []*moveItem) string {
	for _, it := range items {
		if it.In.own.known == nil {
			return s.merge.sql.complete
		}
	}
	return s.merge.sql.settle
}

// ownRows is the statement for a batch, and what forgets its answers. Of several moves
// on one key only the first is in it.
func (s *Store[Tx]) ownRows(text string, items []*moveItem, completes bool) (st *Stmt, undo func()) {
	slices.SortStableFunc(items, func(a, b *moveItem) int { return bytes.Compare(a.In.own.sum[:], b.In.own.sum[:]) })
	n := len(items)
	var (
		ids, owners                          = make(tokens, 0, n), make(tokens, 0, n)
		lengths, revs, states, replay, known numbers
		bodies                               blobs
		rows                                 = make([]*moveItem, 0, n)
	)
	if completes {
		revs, states, replay, known, bodies = make(numbers, 0, n), make(numbers, 0, n), make(numbers, 0, n), make(numbers, 0, n), make(blobs, 0, n)
	}
	settles := text == s.merge.sql.settle
	for _, it := range items {
		c := it.In.own
		if n := len(rows); n > 0 && rows[n-1].In.own.sum == c.sum {
			continue
		}
		rows = append(rows, it)
		ids, owners = append(ids, c.sum), append(owners, c.Owner)
		if !completes {
			// Its record will not be what this process knows of it.
			s.merge.grants.take(&c.Ref)
			lengths = append(lengths, number(micros(c.length)))
			continue
		}
		if settles {
			revs = append(revs, number(c.known.rev))
		}
		states, bodies = append(states, number(c.State)), append(bodies, c.Body)
		replay, known = append(replay, number(micros(c.ReplayFor))), append(known, number(micros(c.KnownFor)))
	}
	switch {
	case settles:
		st = &Stmt{SQL: text, Args: []any{ids, owners, revs, states, bodies, replay, known, int64(len(rows)), s.merge.wait}}
	case completes:
		st = &Stmt{SQL: text, Args: []any{ids, owners, states, bodies, replay, known, int64(len(rows)), s.merge.wait}}
	default:
		st = &Stmt{SQL: text, Args: []any{ids, owners, lengths, int64(len(rows)), s.merge.wait}}
	}
	find := func(sum token) *moveItem {
		i, ok := slices.BinarySearchFunc(rows, sum, func(it *moveItem, sum token) int { return bytes.Compare(it.In.own.sum[:], sum[:]) })
		if !ok {
			return nil
		}
		return rows[i]
	}
	st.Row = func(sc Scanner) (err error) {
		var it *moveItem
		var rec backend.Record
		switch {
		case settles:
			var sum token
			var now time.Time
			if err = sc.Scan(&sum, &now); err == nil {
				if it = find(sum); it != nil {
					rec, err = it.In.own.settled(now)
				}
			}
		case completes:
			var cur row
			cur, err = scanRowOf(sc, func(sum token) (id backend.ID) {
				if it = find(sum); it != nil {
					id = it.In.own.ID
				}
				return id
			})
			rec = cur.rec
		default:
			var sum token
			if err = sc.Scan(&sum); err == nil {
				it = find(sum)
			}
		}
		if err != nil || it == nil {
			// Its caller asks again, alone, and finds its own move standing or the fault.
			return nil
		}
		rec.Body = it.In.own.Body
		it.Answer(moveAnswer{res: backend.Reservation{Record: rec}}, nil)
		return nil
	}
	return st, func() {
		for _, it := range items {
			it.Answer(moveAnswer{alone: true}, nil)
		}
	}
}
