package pgstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/goidem/idem/backend"
)

// reserveCall is a plain reserve on its way into a statement. It shares no memory with
// the caller, who may be gone before the statement is sent.
type reserveCall struct {
	backend.ReserveRequest
	sum token
}

func (c *reserveCall) weight() int {
	return 128 + len(c.ID.Tenant) + len(c.ID.Operation) + len(c.ID.Key) + len(c.Fingerprint)
}

// reservePlain is one plain reserve, with others that come at the same time.
func (s *Store[Tx]) reservePlain(ctx context.Context, r *backend.ReserveRequest) (backend.Reservation, error) {
	m := s.merge
	if m == nil {
		return s.lone(ctx, r, s.reserveOne)
	}
	c := &reserveCall{ReserveRequest: *r, sum: r.ID.Sum()}
	c.Fingerprint = bytes.Clone(r.Fingerprint)
	if m.looks() || s.tx.known.has(c.sum) {
		out, err := m.look.Do(ctx, moveCall{reserve: c})
		if err != nil || !out.alone {
			return out.res, leftError(err)
		}
		s.tx.known.drop(c.sum)
	}
	if !m.blocked.has(c.sum) {
		out, err := m.move.Do(ctx, moveCall{reserve: c})
		if err != nil || !out.alone {
			return out.res, leftError(err)
		}
	}
	res, err := s.lone(ctx, r, s.reserveOne)
	if res.Outcome == backend.Busy {
		m.blocked.add(c.sum)
	} else {
		m.blocked.drop(c.sum)
	}
	return res, err
}

// runReserves carries out a batch.
func (s *Store[Tx]) runReserves(ctx context.Context, items []*moveItem) {
	if len(items) == 1 && !s.merge.always {
		items[0].Answer(s.reserveDirect(ctx, items[0].In.reserve))
		return
	}
	b := newReserveBatch(items)
	b.answer(items, s.reserveRows(ctx, b))
}

// runLooks answers those of a batch that have a record.
func (s *Store[Tx]) runLooks(ctx context.Context, items []*moveItem) {
	if len(items) == 1 && !s.merge.always {
		items[0].Answer(s.lookDirect(ctx, items[0].In.reserve))
		return
	}
	b := newReserveBatch(items)
	err := s.lookRows(ctx, b, b.open())
	if err == nil {
		s.merge.note(len(b.rows)-len(b.open()), len(b.rows))
	} else {
		err = nil // nothing was changed: each may reserve
	}
	b.answer(items, err)
}

// lookDirect is a look at one key.
func (s *Store[Tx]) lookDirect(ctx context.Context, c *reserveCall) (out moveAnswer, err error) {
	cur, err := s.read(ctx, c.ID)
	if err != nil || cur.rec.State == 0 {
		if err == nil {
			s.merge.note(0, 1)
		}
		return moveAnswer{alone: true}, nil
	}
	s.merge.note(1, 1)
	s.seen(c.sum, &cur.rec)
	_, out.res, err = c.Apply(cur.rec, cur.now, 0) // a plain reserve changes no record
	return out, err
}

// reserveDirect is one try of one reserve. It waits for a lock as briefly as a batch
// does, since others may be waiting for the stream.
//
// As long as only new keys come, the statement only inserts: to bring along what may
// stand in the way costs every new key a third more. The first duplicate after such a
// run whose key this process has not seen settled is read in a second trip; then the
// statement that does both is back, until the run is long enough again.
func (s *Store[Tx]) reserveDirect(ctx context.Context, c *reserveCall) (out moveAnswer, err error) {
	m := s.merge
	fresh := false
	if m.replays.Load() > 0 {
		out.res, err = s.reserveTry(ctx, &c.ReserveRequest, m.wait)
		if fresh = err == nil && out.res.Outcome == backend.Acquired; fresh {
			m.grants.add(out.res.Record, 1)
		}
	} else {
		st := &Stmt{SQL: m.sql.insertOne, Args: s.insertOneArgs(c)}
		st.Row = func(sc Scanner) error {
			var fence int64
			var now time.Time
			if err := sc.Scan(&fence, &now); err != nil {
				return err
			}
			fresh = true
			out.res = s.granted(c, fence, now)
			return nil
		}
		if err = asMove(s.db.Do(ctx, st)); err == nil && !fresh {
			return s.lookDirect(ctx, c)
		}
	}
	_, again := err.(errAgain)
	switch {
	case again, isRetry(err), isStale(err), isLockTimeout(err), err == nil && out.res.Outcome == backend.Busy:
		return moveAnswer{alone: true}, nil
	case fresh:
		m.note(0, 1)
	case err == nil:
		m.note(1, 1)
		s.seen(c.sum, &out.res.Record)
	}
	return out, err
}

func (s *Store[Tx]) insertOneArgs(c *reserveCall) []any {
	var known any // none unless under Rerun
	if c.OnAbandoned == backend.Rerun {
		known = micros(c.TTL) + micros(c.KnownFor)
	}
	return []any{
		c.sum, c.ID.Tenant, c.ID.Operation, c.ID.Key, token(c.Owner), int16(c.OnAbandoned), bytesOrNull(c.Fingerprint),
		c.Holder.Host, int64(c.Holder.PID), null(c.Holder.Started),
		micros(c.TTL), known, micros(c.TTL) + micros(sweepWindow(&c.ReserveRequest)), s.merge.wait,
	}
}

// granted is the answer to a reserve that has inserted its record, which is remembered.
func (s *Store[Tx]) granted(c *reserveCall, fence int64, now time.Time) backend.Reservation {
	// Apply's own record is the one that was stored: this is a key without one.
	_, res, err := c.Apply(backend.Record{}, now.UTC(), uint64(max(fence, 0)))
	if err == nil {
		s.merge.grants.add(res.Record, 1)
	}
	return res
}

// seen remembers a key that was seen settled: its replays are one look.
func (s *Store[Tx]) seen(sum token, rec *backend.Record) {
	if rec.State == backend.Completed || rec.State == backend.Failed {
		s.tx.known.add(sum)
	}
}

// reserveRow is a key of a batch, with the first request for it.
type reserveRow struct {
	*reserveCall
	tried bool // an insertion has passed over it: it is there, or was when that ran
	fresh bool
	rec   backend.Record // as stored; zero: not settled here
	now   time.Time
}

// answer is the answer to c, one of the requests for this key. Those after the first
// come right after it, at the same time by the server's clock.
func (w *reserveRow) answer(c *reserveCall, failed error) (moveAnswer, error) {
	switch {
	case w.rec.State != 0:
		rec := w.rec
		if c != w.reserveCall {
			rec = rec.Clone()
		} else if w.fresh {
			return moveAnswer{res: backend.Reservation{Outcome: backend.Acquired, Record: rec, Now: w.now}}, nil
		}
		_, res, err := c.Apply(rec, w.now, 0) // a plain reserve changes no record
		return moveAnswer{res: res}, err
	case isShared(failed):
		return moveAnswer{}, asMove(failed)
	}
	return moveAnswer{alone: true}, nil
}

// reserveBatch is the rows of a batch, distinct and in ascending order.
type reserveBatch struct {
	rows []reserveRow
}

// newReserveBatch sorts items and makes a batch of them.
func newReserveBatch(items []*moveItem) *reserveBatch {
	slices.SortStableFunc(items, func(a, b *moveItem) int { return bytes.Compare(a.In.reserve.sum[:], b.In.reserve.sum[:]) })
	b := &reserveBatch{rows: make([]reserveRow, 0, len(items))}
	for _, it := range items {
		if n := len(b.rows); n == 0 || b.rows[n-1].sum != it.In.reserve.sum {
			b.rows = append(b.rows, reserveRow{reserveCall: it.In.reserve})
		}
	}
	return b
}

// answer answers the items that the batch was made of.
func (b *reserveBatch) answer(items []*moveItem, err error) {
	at := 0
	for _, it := range items {
		if b.rows[at].sum != it.In.reserve.sum {
			at++
		}
		it.Answer(b.rows[at].answer(it.In.reserve, err))
	}
}

func (b *reserveBatch) find(sum token) *reserveRow {
	i, ok := slices.BinarySearchFunc(b.rows, sum, func(w reserveRow, sum token) int { return bytes.Compare(w.sum[:], sum[:]) })
	if !ok {
		return nil
	}
	return &b.rows[i]
}

// open are the rows that are not settled.
func (b *reserveBatch) open() (rows []*reserveRow) {
	for i := range b.rows {
		if b.rows[i].rec.State == 0 {
			rows = append(rows, &b.rows[i])
		}
	}
	return rows
}

// next are the rows of the next insertion. The holder is the same in all requests of a
// process, as a rule, and travels once.
func (b *reserveBatch) next() (rows []*reserveRow) {
	for _, w := range b.open() {
		if !w.tried && (len(rows) == 0 || w.Holder == rows[0].Holder) {
			rows = append(rows, w)
		}
	}
	return rows
}

// maxHolders bounds the insertions of a batch. Whose holder is rarer goes alone.
const maxHolders = 4

// reserveRows settles what it can: the insertion, then a look at what was there before
// it.
func (s *Store[Tx]) reserveRows(ctx context.Context, b *reserveBatch) error {
	for range maxHolders {
		rows := b.next()
		if len(rows) == 0 {
			break
		}
		st, undo := s.insertRows(b, rows)
		if err := s.doMerged(ctx, undo, st); err != nil {
			return err
		}
	}
	found := b.open()
	if len(found) > 0 {
		if err := s.lookRows(ctx, b, found); err != nil {
			return err
		}
	}
	s.merge.note(len(found)-len(b.open()), len(b.rows))
	return nil
}

// lookRows reads the rows that are there.
func (s *Store[Tx]) lookRows(ctx context.Context, b *reserveBatch, rows []*reserveRow) error {
	ids := make(tokens, 0, len(rows))
	for _, w := range rows {
		ids = append(ids, w.sum)
	}
	st := &Stmt{SQL: s.merge.sql.look, Args: []any{ids, int64(len(rows))}}
	st.Row = func(sc Scanner) error {
		var w *reserveRow
		cur, err := scanRowOf(sc, func(sum token) (id backend.ID) {
			if w = b.find(sum); w != nil {
				id = w.ID
			}
			return id
		})
		// A row that cannot be read is its own caller's trouble, who will meet it alone.
		if err == nil && w != nil {
			w.rec, w.now = cur.rec, cur.now
			s.seen(w.sum, &cur.rec)
		}
		return nil
	}
	return s.doMerged(ctx, func() {}, st)
}

// insertRows is the statement that inserts those of the rows that are not there, and
// what forgets its answers: what a statement that failed had returned is not there.
func (s *Store[Tx]) insertRows(b *reserveBatch, rows []*reserveRow) (st *Stmt, undo func()) {
	n := len(rows)
	ids, owners := make(tokens, 0, n), make(tokens, 0, n)
	tenants, operations, keys := make(words, 0, n), make(words, 0, n), make(words, 0, n)
	abandoned, ttl, known, sweep := make(numbers, 0, n), make(numbers, 0, n), make(numbers, 0, n), make(numbers, 0, n)
	prints := make(blobs, 0, n)
	for _, w := range rows {
		ids, owners = append(ids, w.sum), append(owners, w.Owner)
		tenants, operations, keys = append(tenants, word(w.ID.Tenant)), append(operations, word(w.ID.Operation)), append(keys, word(w.ID.Key))
		abandoned = append(abandoned, number(w.OnAbandoned))
		prints = append(prints, w.Fingerprint)
		ttl = append(ttl, number(micros(w.TTL)))
		keep := noNumber
		if w.OnAbandoned == backend.Rerun {
			keep = number(micros(w.TTL) + micros(w.KnownFor))
		}
		known = append(known, keep)
		sweep = append(sweep, number(micros(w.TTL)+micros(sweepWindow(&w.ReserveRequest))))
	}
	holder := rows[0].Holder
	st = &Stmt{SQL: s.merge.sql.insert, Args: []any{
		ids, tenants, operations, keys, owners, abandoned, prints, ttl, known, sweep,
		holder.Host, int64(holder.PID), null(holder.Started), int64(n), s.merge.wait,
	}}
	st.Row = func(sc Scanner) error {
		var (
			sum   token
			fence int64
			now   time.Time
		)
		if err := sc.Scan(&sum, &fence, &now); err != nil {
			return nil // the caller who goes alone finds its own row
		}
		if w := b.find(sum); w != nil {
			if res := s.granted(w.reserveCall, fence, now); res.Outcome == backend.Acquired {
				w.fresh, w.rec, w.now = true, res.Record, res.Now
			}
		}
		return nil
	}
	return st, func() {
		for _, w := range rows {
			w.tried, w.rec, w.fresh = true, backend.Record{}, false
		}
	}
}
