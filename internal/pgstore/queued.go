package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// Queued is a store for functions that only queue statements: reserve, effect,
// completion and commit travel in one round trip, as one implicit transaction.
//
// The function runs once, before anything is sent. So it sees no reservation of the
// server's (its fence is 0 then), and runs for nothing where its key turns out to be
// taken. It cannot decide by what its statements find: their callbacks run when all
// of them have been sent. A callback's error comes too late to roll back; it is
// reported as an unknown outcome, and the next call with the key gets the result. A
// callback runs again where the batch has to be sent again.
type Queued struct {
	*Store[pgx.Tx]
	pool PgxDB
}

// NewQueued returns the queued form of s, which works on the pool of db.
func NewQueued(s *Store[pgx.Tx], db PgxDB) *Queued { return &Queued{s, db} }

// waitSlice is how long one batch waits for another's row. The context is looked at
// between two of them: cut off in the middle, a batch would be in doubt.
const waitSlice = 250 * time.Millisecond

// Join is refused: nothing of a batch is sent before its end, and the caller's
// transaction is not ours to end.
func (*Queued) Join(context.Context, *pgx.Batch, backend.ReserveRequest, backend.Work[*pgx.Batch]) (backend.Reservation, error) {
	return backend.Reservation{}, fmt.Errorf("idem: queued statements cannot join a transaction; use a store on pgx.Tx: %w", errors.ErrUnsupported)
}

// Finish implements backend.Transactional. The record is looked at before the
// function runs; what that queues goes out in one trip, the completion and COMMIT in
// the next.
func (q *Queued) Finish(ctx context.Context, ref backend.Ref, work backend.Work[*pgx.Batch]) (backend.Record, error) {
	return q.Store.Finish(ctx, ref, inside(work))
}

// inside sends what work queues into an open transaction.
func inside(work backend.Work[*pgx.Batch]) backend.Work[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
		b := new(pgx.Batch)
		done, err := work(ctx, b, res)
		if err != nil || done.Undo || b.Len() == 0 {
			return done, err
		}
		if _, err := onlyEffects(b); err != nil {
			return done, err
		}
		return done, tx.SendBatch(ctx, b).Close()
	}
}

// Transact implements backend.Transactional. A takeover, which has to look before
// it writes, is an ordinary transaction.
func (q *Queued) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[*pgx.Batch]) (res backend.Reservation, err error) {
	if r.TakeOver != 0 {
		return q.Store.Transact(ctx, r, inside(work))
	}
	if err := r.Validate(); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	s := q.Store
	r = normal(r)
	id := token(r.ID.Sum())
	if s.tx.known.has(id) {
		if res, ok, err := s.replay(ctx, &r); ok || err != nil {
			return res, err
		}
		s.tx.known.drop(id)
	}
	began := now()
	p, ok, err := s.tx.gates.enter(ctx, id, r.Wait, s.c.LockWait)
	if err != nil {
		return res, err
	}
	if !ok {
		return backend.Reservation{Outcome: backend.Busy}, nil
	}
	seen := false
	defer func() { p.leave(seen) }()
	u, err := q.queue(ctx, r, work)
	if err != nil {
		return res, err
	}
	res, err = q.deliver(ctx, u, p, began)
	if err != nil {
		return backend.Reservation{}, err
	}
	if seen = res.Outcome != backend.Busy; seen && (res.Record.State == backend.Completed || res.Record.State == backend.Failed) {
		s.tx.known.add(id)
	}
	return res, nil
}

// unit is what is sent: the record, completed, and the effects.
type unit struct {
	r       backend.ReserveRequest
	c       backend.CompleteRequest
	effects []pgx.QueuedQuery // copies: a batch can be sent only once
	block   bool              // they are sent inside BEGIN and COMMIT, see onlyEffects
}

func (q *Queued) queue(ctx context.Context, r backend.ReserveRequest, work backend.Work[*pgx.Batch]) (*unit, error) {
	at := now().UTC() // shown, not stored
	given := backend.Record{
		Ref: r.Ref, State: backend.InFlight, Fingerprint: append([]byte(nil), r.Fingerprint...), Attempt: 1,
		OnAbandoned: r.OnAbandoned, Holder: r.Holder, ReservedAt: at, LeaseUntil: at.Add(r.TTL),
	}
	b := new(pgx.Batch)
	done, err := work(ctx, b, backend.Reservation{Outcome: backend.Acquired, Record: given, Now: at})
	if err != nil {
		return nil, err
	}
	u := &unit{r: r, c: backend.CompleteRequest{
		Ref: r.Ref, State: done.State, Body: stored(done.Body),
		ReplayFor: roundUp(done.ReplayFor), KnownFor: roundUp(done.KnownFor),
	}}
	if err := u.c.Validate(); err != nil {
		return nil, err
	}
	if done.Undo { // what is not sent need not be undone
		return u, nil
	}
	if u.block, err = onlyEffects(b); err != nil {
		return nil, err
	}
	for _, e := range b.QueuedQueries {
		u.effects = append(u.effects, pgx.QueuedQuery{SQL: e.SQL, Arguments: e.Arguments, Fn: e.Fn})
	}
	return u, nil
}

// deliver sends u until it has an answer. A batch in doubt is sent again as a
// whole, and never called undone before it is: it may still be on its way, and
// then the row of the first that commits keeps the other out. So the context ends
// waits, but not this.
func (q *Queued) deliver(ctx context.Context, u *unit, p *pass, began time.Time) (res backend.Reservation, err error) {
	s := q.Store
	var doubt error
	asking, wait := ctx, s.c.LockWait
	for tries := 0; ; tries++ {
		res, end, err := q.send(asking, u, wait, doubt != nil)
		switch end {
		case endAnswered:
			return res, err
		case endFailed:
			return res, err
		case endDoubtful:
			if doubt == nil {
				limited, cancel := detached(ctx, settleLimit)
				defer cancel()
				asking = limited
				p.works()
			}
			doubt = err
		case endLocked:
			left := u.r.Wait - now().Sub(began)
			if doubt != nil || !isRowLocked(err) && tries < txTries && left > -lockGrace {
				break
			}
			if left <= 0 {
				return backend.Reservation{Outcome: backend.Busy}, nil
			}
			if over := ctx.Err(); over != nil {
				return res, over
			}
			wait = min(left, waitSlice)
			p.works()
			tries--
			continue
		case endClosed:
			if doubt == nil && !(isStale(err) && tries < 3) {
				return res, err
			}
		case endAgain:
			if doubt == nil && tries >= txTries {
				return res, exhausted(err)
			}
		}
		if over := standOff(asking, tries+1); over != nil {
			if doubt != nil {
				over = doubt
			}
			return res, over
		}
	}
}

// isMine reports whether err is about preparing a statement of the function.
func (u *unit) isMine(err error) bool {
	var p pgx.ErrPreprocessingBatch
	if !errors.As(err, &p) {
		return false
	}
	for _, e := range u.effects {
		if e.SQL == p.SQL() {
			return true
		}
	}
	return false
}

// send sends u once.
func (q *Queued) send(asking context.Context, u *unit, wait time.Duration, inDoubt bool) (res backend.Reservation, end ending, err error) {
	s := q.Store
	conn, err := q.pool.Pool.Acquire(asking)
	if err != nil {
		return res, endClosed, asRead(newFailure(asking, err, false))
	}
	l := &pgxLink{conn: conn, tx: newPgxTx(nil)}
	// The effects are under way together with the commit: they may take as long as the
	// caller allows, and a caller who leaves is given the truth a little later.
	ctx, cancel := lingering(asking, wait+endLimit)
	defer cancel()
	defer l.free(ctx)

	var mine backend.Record
	var at time.Time
	insert := s.insertStmt(u, wait)
	insert.Row = func(sc Scanner) error {
		var fence int64
		var lock string
		if err := sc.Scan(&fence, &at, &lock); err != nil {
			return err
		}
		at = at.UTC()
		_, next, err := u.c.Apply(inserted(&u.r, fence, at), at)
		mine = next
		return err
	}
	b := new(pgx.Batch)
	if u.block {
		b.Queue("begin")
	}
	b = queue(b, []*Stmt{insert})
	var late error
	for _, e := range u.effects {
		if fn := e.Fn; fn != nil {
			e.Fn = func(br pgx.BatchResults) error {
				// Everything has been sent: what the callback thinks of it decides nothing,
				// and the answers behind it are still to be read.
				if err := fn(br); err != nil && late == nil {
					late = err
				}
				return nil
			}
		}
		b.QueuedQueries = append(b.QueuedQueries, &e)
	}
	if u.block {
		b.Queue("commit") // not reached behind an error
	}
	br := conn.SendBatch(ctx, b)
	raw := br.Close()
	if own, ok := raw.(rowError); ok {
		// The answer about the inserted row cannot be read, and what became of the
		// statements behind it is not known.
		return res, endFailed, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, own.error)
	}
	err = commitError(ctx, newFailure(ctx, raw, true), false)
	switch {
	case err == nil && conn.Conn().PgConn().TxStatus() != 'I':
		return res, endFailed, errEnded
	case err == nil && late != nil:
		return res, endFailed, fmt.Errorf("%w: the transaction was committed, and a callback of a queued statement then returned an error: %w", backend.ErrOutcomeUnknown, late)
	case err == nil:
		return backend.Reservation{Outcome: backend.Acquired, Record: mine, Now: at}, endAnswered, nil
	case errors.Is(err, backend.ErrOutcomeUnknown):
		return res, endDoubtful, err
	case isRetry(err):
		return res, endAgain, err
	case isLockTimeout(err) && insert.Count == 0:
		return res, endLocked, err
	case insert.Count == 0 && isUnique(err):
		// The key is taken. Its row is looked at on this connection: there may be no
		// second one.
		if conn.Conn().PgConn().TxStatus() != 'I' {
			if err := pgxDo(asking, conn, plain("rollback")); err != nil {
				return res, openError(err), asRead(err)
			}
		}
		var cur row
		look := &Stmt{SQL: s.sql.get, Args: []any{token(u.r.ID.Sum())}, Row: func(sc Scanner) (err error) {
			cur, err = scanRow(sc, u.r.ID)
			return err
		}}
		if err := pgxDo(asking, conn, look); err != nil {
			return res, openError(err), asRead(err)
		}
		if cur.rec.State == 0 {
			return res, endAgain, errAgain{} // gone in between
		}
		_, res, err := u.r.Apply(cur.rec, cur.now, 0)
		if err != nil {
			return res, endFailed, err
		}
		if inDoubt && res.Outcome == backend.Existing && res.Record.Owner == u.r.Owner && res.Record.State == u.c.State {
			// The batch in doubt took effect; see (*attempt).once for the write.
			if err := pgxDo(asking, conn, &Stmt{SQL: s.tx.sql.touch, Args: []any{token(u.r.ID.Sum()), token(u.r.Owner)}}); err != nil {
				return res, endDoubtful, asMove(err)
			}
			res.Outcome = backend.Acquired
		}
		if res.Outcome == backend.Acquired && !inDoubt {
			// A reserve of this very attempt, made outside of a transaction.
			return backend.Reservation{}, endFailed, fmt.Errorf("%w: the attempt has reserved its key already; use Finish", backend.ErrInvalidRequest)
		}
		return res, endAnswered, nil
	case insert.Count > 0, u.isMine(raw):
		// A statement of the function failed, and with it everything. Its own error goes
		// back, as from a function that had sent it itself.
		return res, endFailed, raw
	}
	return res, endClosed, err
}

// insertText writes a settled record. It is a plain insertion: on a conflict it has
// to fail, so that the server skips the effects behind it.
func insertText(n Names, now, seed string) string {
	return fmt.Sprintf(limitedInsert+`INSERT INTO %[2]s (id, %[3]s, sweep_after) `+
		`SELECT $1::uuid, $2::text, $3::text, $4::text, %[4]d, 1, $14::int2, $5::uuid, %[5]s, 1, false, $6::int2, `+
		`$7::bytea, $8::text, $9::int8, $10::timestamptz, c.now, c.now + $11::int8 * interval '1 microsecond', `+
		`CASE WHEN $14::int2 <> %[6]d THEN c.now END, c.now + $15::int8 * interval '1 microsecond', c.now + $16::int8 * interval '1 microsecond', `+
		`'', $17::bytea, c.now + $12::int8 * interval '1 microsecond' FROM c RETURNING fence, reserved_at, `+resetLimit,
		now, n.Records, columns, rowFormat, seed, backend.Uncertain)
}

func (s *Store[Tx]) insertStmt(u *unit, wait time.Duration) *Stmt {
	r, c := &u.r, &u.c
	holder, sweep := r.Holder, micros(unsettledSweep)
	lease, replay, known := any(micros(r.TTL)), any(nil), any(nil)
	if c.State != backend.Uncertain {
		holder, lease = backend.Holder{}, nil
		replay, known, sweep = micros(c.ReplayFor), micros(c.KnownFor), micros(c.KnownFor)
		if len(c.Body) > 0 {
			sweep = micros(c.ReplayFor)
		}
	}
	return &Stmt{SQL: s.tx.sql.insert, Args: []any{
		token(r.ID.Sum()), r.ID.Tenant, r.ID.Operation, r.ID.Key, token(r.Owner), int16(r.OnAbandoned),
		bytesOrNull(r.Fingerprint), holder.Host, int64(holder.PID), null(holder.Started),
		lease, sweep, waitText(wait), int16(c.State), replay, known, bytesOrNull(c.Body),
	}}
}
