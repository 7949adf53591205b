package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
)

// opening is the reserve inside a transaction: what its first round trip found.
type opening struct {
	row
	fresh bool
	blind bool // only an insertion was tried, and what stands in its way was not read
	seed  int64
	lock  string // the lock_timeout that the transaction came with
	reset string // the one that it has after its setting was taken back; empty: lock
	place string // of a fresh row
	time  time.Time
}

// holding is an attempt that owns its key in an open transaction. The row says
// uncertain until the completion (R19): committed too early, it is no licence to run
// again.
type holding struct {
	rec backend.Record // as the caller's function sees it: in flight
	rev int32
	now time.Time
	// place is where the row lies, if this transaction has inserted it.
	place string
	in    bool // in a transaction of the caller
}

// open returns the statements of the first round trip. A plain reserve is one
// statement, with its lock timeout in it; a takeover looks first. blind allows the
// one that does not read the row in its way.
func (s *Store[Tx]) open(r *backend.ReserveRequest, wait time.Duration, blind bool, o *opening) []*Stmt {
	*o = opening{}
	if r.TakeOver != 0 {
		return []*Stmt{
			{SQL: s.tx.sql.clock, Row: func(sc Scanner) error { return sc.Scan(&o.time, &o.seed, &o.lock) }},
			{SQL: s.sql.get, Args: []any{token(r.ID.Sum())}, Row: func(sc Scanner) (err error) {
				o.row, err = scanRow(sc, r.ID)
				return err
			}},
		}
	}
	window := r.KnownFor
	if r.ReplayFor > 0 {
		window = min(window, r.ReplayFor)
	}
	args := []any{
		token(r.ID.Sum()), r.ID.Tenant, r.ID.Operation, r.ID.Key, token(r.Owner), int16(r.OnAbandoned),
		bytesOrNull(r.Fingerprint), r.Holder.Host, int64(r.Holder.PID), null(r.Holder.Started),
		micros(r.TTL), micros(r.TTL) + micros(window),
	}
	if o.blind = blind && s.tx.sql.first != ""; o.blind {
		return []*Stmt{{SQL: s.tx.sql.first, Args: append(args, waitText(wait)), Row: func(sc Scanner) error {
			var fence int64
			if err := sc.Scan(&fence, &o.now, &o.place, &o.lock); err != nil {
				return err
			}
			o.fresh, o.rev, o.now = true, 1, o.now.UTC()
			o.rec = inserted(r, fence, o.now)
			return nil
		}}}
	}
	reserve := &Stmt{SQL: s.tx.sql.reserve}
	if !s.c.Dialect.SettingInStatement {
		reserve.Args = args
		reserve.Row = func(sc Scanner) (err error) {
			o.row, err = scanRow(sc, r.ID, &o.fresh)
			return err
		}
		return []*Stmt{showLock(&o.lock), setLocal(waitText(wait)), reserve, setLocal(""), showLock(&o.reset)}
	}
	reserve.Args = append(args, waitText(wait))
	reserve.Row = func(sc Scanner) (err error) {
		o.row, err = scanRow(trailing{sc, []any{&o.place, &o.lock}}, r.ID, &o.fresh)
		return err
	}
	return []*Stmt{reserve}
}

// inserted is the record that a reserve of a new key has written, in flight as the
// caller's function sees it.
func inserted(r *backend.ReserveRequest, fence int64, now time.Time) backend.Record {
	return backend.Record{
		Ref: r.Ref, State: backend.InFlight, Fence: uint64(max(fence, 0)), Attempt: 1, OnAbandoned: r.OnAbandoned,
		Fingerprint: append([]byte(nil), r.Fingerprint...), Holder: r.Holder, ReservedAt: now, LeaseUntil: now.Add(r.TTL),
	}
}

// stored is b as it comes back from the server: an empty body is none.
func stored(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// trailing scans columns after those that are asked for.
type trailing struct {
	Scanner
	dest []any
}

func (t trailing) Scan(dest ...any) error { return t.Scanner.Scan(append(dest, t.dest...)...) }

// setLocal sets the lock timeout as a statement of its own, where it cannot be part of
// another; empty puts the default of the session back.
func setLocal(wait string) *Stmt {
	if wait == "" {
		return plain(`SET LOCAL lock_timeout = DEFAULT`)
	}
	return plain(fmt.Sprintf(`SET LOCAL lock_timeout = '%s'`, strings.ReplaceAll(wait, "'", "")))
}

// showLock reads the lock timeout into v.
func showLock(v *string) *Stmt {
	return &Stmt{SQL: `SELECT current_setting('lock_timeout')`, Row: func(sc Scanner) error { return sc.Scan(v) }}
}

// putBack gives the transaction the lock timeout that it came with, where its default
// is another: the application has set it, in its session or in this transaction. That
// takes a round trip, which nobody else pays.
func (s *Store[Tx]) putBack(ctx context.Context, l Link[Tx], o *opening) error {
	if o.reset == "" || o.reset == o.lock {
		return nil
	}
	o.reset = ""
	return l.Do(ctx, setLocal(o.lock))
}

// limited is w with a lock timeout that is put back afterwards.
func (s *Store[Tx]) limited(w *Stmt, wait time.Duration, o *opening) []*Stmt {
	if !s.c.Dialect.SettingInStatement {
		return []*Stmt{setLocal(waitText(wait)), w, setLocal(o.lock)}
	}
	return []*Stmt{lockTimeout(waitText(wait)), w, lockTimeout(o.lock)}
}

// take turns the opening into a holding, or into an answer without one; wrote says
// that the answer comes with a change, which has to be committed (a hold). errAgain:
// another move came in between, and only a new snapshot shows it.
func (s *Store[Tx]) take(ctx context.Context, l Link[Tx], r *backend.ReserveRequest, wait time.Duration, o *opening) (h *holding, res backend.Reservation, wrote bool, err error) {
	if o.fresh {
		if err := s.putBack(ctx, l, o); err != nil {
			return nil, res, false, err
		}
		rec := o.rec
		rec.State = backend.InFlight
		if r.OnAbandoned == backend.Rerun {
			rec.KnownUntil = rec.LeaseUntil.Add(r.KnownFor)
		}
		return &holding{rec: rec, rev: o.rev, now: o.now, place: o.place}, res, false, nil
	}
	if o.rec.State == 0 {
		if r.TakeOver == 0 {
			return nil, res, false, errAgain{}
		}
		o.now = o.time.UTC()
	}
	step, res, err := r.Apply(o.rec, o.now, uint64(max(o.seed, 0)))
	if err != nil || !step.Changed && res.Outcome != backend.Acquired {
		return nil, res, false, err // the transaction ends, or goes back to its savepoint
	}
	// What was read with its time ("the lease is over") holds until rev changes, and
	// the write finds that out.
	next := step.Next
	var sweep any
	if res.Outcome == backend.Acquired {
		if step.Changed {
			sweep = s.takeOverSweep(r, &next)
		}
		next.State, next.KnownUntil = backend.Uncertain, time.Time{}
	}
	w := s.sql.writeStmt(&o.row, &next, sweep)
	var stmts []*Stmt
	if r.TakeOver == 0 {
		// The savepoint of the first round trip stands before this write.
		stmts = append(stmts, plain(releaseWork))
	}
	stmts = append(append(stmts, s.limited(w, wait, o)...), plain(setWork))
	if err := l.Do(ctx, stmts...); err != nil {
		return nil, res, false, err
	}
	if w.Count == 0 {
		return nil, res, false, errAgain{}
	}
	if res.Outcome != backend.Acquired {
		return nil, res, true, nil
	}
	return &holding{rec: step.Next, rev: o.rev + 1, now: o.now}, res, false, nil
}

// outcome returns the statements that store what Work wants stored; rec is filled in
// when they have run, with the server's time.
func (s *Store[Tx]) outcome(h *holding, done backend.Completion) (ss []*Stmt, rec *backend.Record, err error) {
	c := backend.CompleteRequest{
		Ref: h.rec.Ref, State: done.State, Body: stored(done.Body),
		ReplayFor: roundUp(done.ReplayFor), KnownFor: roundUp(done.KnownFor),
	}
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	rec = new(backend.Record)
	st := &Stmt{Args: []any{token(c.ID.Sum()), token(c.Owner), h.rev}}
	st.Row = func(sc Scanner) error {
		var now time.Time
		var one int64
		if err := sc.Scan(&now, &one); err != nil {
			return err
		}
		_, next, err := c.Apply(h.rec, now.UTC())
		*rec = next
		return err
	}
	settled, in, place := 0, 0, 0
	if c.State == backend.Uncertain {
		st.Args = append(st.Args, bytesOrNull(c.Body))
	} else {
		settled = 1
		st.Args = append(st.Args, int16(c.State), bytesOrNull(c.Body), micros(c.ReplayFor), micros(c.KnownFor))
	}
	if h.in {
		in = 1
	}
	if h.place != "" {
		place = 1
		st.Args = append(st.Args, h.place)
	}
	st.SQL = s.tx.sql.outcome[settled][in][place]
	if done.Undo {
		ss = append(ss, plain(undoWork))
	}
	return append(ss, st), rec, nil
}
