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
		return s.reserveAlone(ctx, r)
	}
	c := &reserveCall{ReserveRequest: *r, sum: r.ID.Sum()}
	c.Fingerprint = bytes.Clone(r.Fingerprint)
	if m.looks() {
		out, err := m.look.Do(ctx, moveCall{reserve: c})
		if err != nil || !out.alone {
			return out.res, leftError(err)
		}
	}
	if !m.blocked.has(c.sum) {
		out, err := m.move.Do(ctx, moveCall{reserve: c})
		if err != nil || !out.alone {
			return out.res, leftError(err)
		}
	}
	res, err := s.reserveAlone(ctx, r)
	if res.Outcome == backend.Busy {
		m.blocked.add(c.sum)
	} else {
		m.blocked.drop(c.sum)
	}
	return res, err
}

// reserveAlone is one plain reserve that may have to wait for another's open
// transaction. Of all who do that for one key in this process only one holds a
// connection; the others wait at the gate, where transactions on the key wait, too
// (R20).
func (s *Store[Tx]) reserveAlone(ctx context.Context, r *backend.ReserveRequest) (res backend.Reservation, err error) {
	began := now()
	p, ok, err := s.tx.gates.enter(ctx, token(r.ID.Sum()), r.Wait, s.c.LockWait)
	if err != nil {
		return res, err
	}
	if !ok {
		res = backend.Reservation{Outcome: backend.Busy}
		res.Now, err = s.clock(ctx)
		return res, err
	}
	answered := false
	defer func() { p.leave(answered) }()
	left := *r
	if r.Wait > 0 {
		p.works() // who fails fast need not wait for somebody who waits
		left.Wait = max(r.Wait-now().Sub(began), 0)
	}
	res, err = s.reserveOne(ctx, &left)
	// A row that is there answers everybody; only one that cannot be seen holds up.
	answered = err == nil && res.Outcome != backend.Busy
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
	_, out.res, err = c.Apply(cur.rec, cur.now, 0) // a plain reserve changes no record
	return out, err
}

// reserveDirect is one try of one reserve. It waits for a lock as briefly as a batch
// does, since others may be waiting for the stream.
func (s *Store[Tx]) reserveDirect(ctx context.Context, c *reserveCall) (out moveAnswer, err error) {
	m := s.merge
	out.res, err = s.reserveTry(ctx, &c.ReserveRequest, m.wait)
	_, again := err.(errAgain)
	switch {
	case again, isRetry(err), isStale(err), err == nil && out.res.Outcome == backend.Busy:
		return moveAnswer{alone: true}, nil
	case err == nil && out.res.Outcome == backend.Acquired:
		m.note(0, 1)
	case err == nil:
		m.note(1, 1)
	}
	return out, err
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
	var ids list
	for _, w := range rows {
		ids.token(w.sum)
	}
	st := &Stmt{SQL: s.merge.sql.look, Args: []any{ids.arg(), int64(len(rows))}}
	st.Row = func(sc Scanner) error {
		var sum token
		cur, err := scanRow(sc, backend.ID{}, &sum)
		// A row that cannot be read is its own caller's trouble, who will meet it alone.
		if w := b.find(sum); err == nil && w != nil && cur.rec.ID == w.ID {
			w.rec, w.now = cur.rec, cur.now
		}
		return nil
	}
	return s.doMerged(ctx, func() {}, st)
}

// insertRows is the statement that inserts those of the rows that are not there, and
// what forgets its answers: what a statement that failed had returned is not there.
func (s *Store[Tx]) insertRows(b *reserveBatch, rows []*reserveRow) (st *Stmt, undo func()) {
	var ids, tenants, operations, keys, owners, abandoned, ttl, known, sweep list
	var prints pieces
	for _, w := range rows {
		ids.token(w.sum)
		tenants.text(w.ID.Tenant)
		operations.text(w.ID.Operation)
		keys.text(w.ID.Key)
		owners.token(token(w.Owner))
		abandoned.int(int64(w.OnAbandoned))
		prints.add(w.Fingerprint)
		ttl.int(micros(w.TTL))
		if w.OnAbandoned == backend.Rerun {
			known.int(micros(w.TTL) + micros(w.KnownFor))
		} else {
			known.null()
		}
		sweep.int(micros(w.TTL) + micros(sweepWindow(&w.ReserveRequest)))
	}
	holder := rows[0].Holder
	st = &Stmt{SQL: s.merge.sql.insert, Args: []any{
		ids.arg(), tenants.arg(), operations.arg(), keys.arg(), owners.arg(), abandoned.arg(),
		prints.blob(), prints.at.arg(), prints.size.arg(), ttl.arg(), known.arg(), sweep.arg(),
		holder.Host, int64(holder.PID), null(holder.Started), int64(len(rows)), s.merge.wait,
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
			// Apply's own record is the one that was stored: this is a key without one.
			_, res, err := w.Apply(backend.Record{}, now.UTC(), uint64(fence))
			if err == nil {
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
