package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// reserveText is a plain reserve as one statement: the row as it stands, or a new
// one. Arguments: see reserveStmt. Columns: whether it is new, the columns, the
// server's time.
//
// Where the row is there, the INSERT selects nothing: a replay draws no fence,
// writes no WAL and waits for nobody. The conflict clause is for the row that the
// statement's snapshot does not show: no row comes back then, and the next
// statement sees it.
//
// wait is evaluated with the row of clock, before the insertion can wait for
// another transaction's row of the same key.
func reserveText(n Names, d Dialect, now, seed string) string {
	wait := ""
	if d.SettingInStatement {
		wait = `, set_config('lock_timeout', $14::text, true)`
	}
	return fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %[1]s AS t%[2]s), `+
		`cur AS MATERIALIZED (SELECT %[3]s FROM %[4]s WHERE id = $1::uuid), `+
		`ins AS (INSERT INTO %[4]s (id, %[3]s, sweep_after) `+
		`SELECT $1::uuid, $2::text, $3::text, $4::text, %[5]d, 1, %[6]d, $5::uuid, %[7]s, 1, false, $6::int2, `+
		`$7::bytea, $8::text, $9::int8, $10::timestamptz, t, %[8]s, NULL::timestamptz, NULL::timestamptz, %[9]s, '', NULL::bytea, %[10]s `+
		`FROM clock WHERE NOT EXISTS (SELECT 1 FROM cur) ON CONFLICT (id) DO NOTHING RETURNING %[3]s) `+
		`SELECT true, %[3]s, reserved_at FROM ins UNION ALL SELECT false, %[3]s, %[1]s FROM cur`,
		now, wait, columns, n.Records, rowFormat, backend.InFlight, seed, after(11), after(12), after(13))
}

// reserveStmt is the plain reserve of r.
func (s *Store[Tx]) reserveStmt(r *backend.ReserveRequest, wait string) *Stmt {
	var known any // none unless under Rerun
	if r.OnAbandoned == backend.Rerun {
		known = micros(r.TTL) + micros(r.KnownFor)
	}
	args := []any{
		token(r.ID.Sum()), r.ID.Tenant, r.ID.Operation, r.ID.Key, token(r.Owner), int16(r.OnAbandoned),
		bytesOrNull(r.Fingerprint), r.Holder.Host, int64(r.Holder.PID), null(r.Holder.Started),
		micros(r.TTL), known, micros(r.TTL) + micros(sweepWindow(r)),
	}
	if s.c.Dialect.SettingInStatement {
		args = append(args, wait)
	}
	return &Stmt{SQL: s.sql.reserve, Args: args}
}

// sweepWindow is from the end of the lease to sweep_after, which stays as it is until
// the sweeper comes by, so that a completion does not touch the index: it is set to
// when the record, completed at the end of its lease, will first have something to
// lose.
func sweepWindow(r *backend.ReserveRequest) time.Duration {
	if r.ReplayFor > 0 {
		return min(r.KnownFor, r.ReplayFor)
	}
	return r.KnownFor
}

// Reserve implements backend.Backend.
func (s *Store[Tx]) Reserve(ctx context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	if err := r.Validate(); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	r = normal(r)
	if r.TakeOver != 0 {
		res, err = s.lone(ctx, &r, s.takeOverOnce)
	} else {
		res, err = s.reservePlain(ctx, &r)
	}
	if err != nil {
		return backend.Reservation{}, err
	}
	return res, nil
}

// reserveOne is one plain reserve, alone.
func (s *Store[Tx]) reserveOne(ctx context.Context, r *backend.ReserveRequest) (res backend.Reservation, err error) {
	err = s.try(ctx, func() error {
		res, err = s.reserveTry(ctx, r, s.wait(r))
		return err
	})
	return res, err
}

// reserveTry is one try of a plain reserve.
func (s *Store[Tx]) reserveTry(ctx context.Context, r *backend.ReserveRequest, wait string) (res backend.Reservation, err error) {
	var (
		cur   row
		fresh bool
	)
	st := s.reserveStmt(r, wait)
	st.Row = func(sc Scanner) (err error) {
		cur, err = scanRow(sc, r.ID, &fresh)
		return err
	}
	if s.c.Dialect.SettingInStatement {
		err = s.db.Do(ctx, st)
	} else {
		err = s.doWaiting(ctx, st, wait)
	}
	switch {
	case isLockTimeout(err):
		return backend.Reservation{Outcome: backend.Busy}, nil
	case err != nil:
		return res, asMove(err)
	case st.Count == 0:
		// The conflicting row was committed after this statement's snapshot, or its
		// transaction ended while we waited: the next statement sees what became of it.
		return res, errAgain{}
	case fresh:
		return backend.Reservation{Outcome: backend.Acquired, Record: cur.rec, Now: cur.now}, nil
	}
	_, res, err = r.Apply(cur.rec, cur.now, 0) // a plain reserve changes no record
	return res, err
}

// takeOverOnce is a reserve over the record that the caller saw. The lease was over by
// the server's clock when the row was read, and the write happens only over that
// very row: a renewal would have changed rev.
func (s *Store[Tx]) takeOverOnce(ctx context.Context, r *backend.ReserveRequest) (res backend.Reservation, err error) {
	err = s.try(ctx, func() error {
		var (
			cur  row
			seed int64
		)
		over := Stmt{SQL: s.sql.over, Args: []any{token(r.ID.Sum())}, Row: func(sc Scanner) (err error) {
			cur, err = scanRow(sc, r.ID, &seed)
			return err
		}}
		if err := s.db.Do(ctx, &over); err != nil {
			return asRead(err)
		}
		if cur.rec.State == 0 {
			if cur.now, err = s.clock(ctx); err != nil {
				return err
			}
		}
		step, answer, err := r.Apply(cur.rec, cur.now, uint64(max(seed, 0)))
		if err != nil {
			return err
		}
		res = answer
		if !step.Changed {
			return nil
		}
		err = s.write(ctx, &cur, &step.Next, s.takeOverSweep(r, &step.Next), s.wait(r))
		if isLockTimeout(err) {
			res = backend.Reservation{Outcome: backend.Busy}
			return nil
		}
		return err
	})
	return res, err
}

// takeOverSweep is sweep_after of a record that a takeover wrote.
func (s *Store[Tx]) takeOverSweep(r *backend.ReserveRequest, next *backend.Record) any {
	if next.State != backend.InFlight {
		return nil // held: the sweeper moves it
	}
	return next.LeaseUntil.Add(sweepWindow(r))
}

// wait is the lock timeout of a reserve.
func (s *Store[Tx]) wait(r *backend.ReserveRequest) string {
	if r.Wait > 0 {
		return waitText(r.Wait)
	}
	return waitText(s.c.LockWait)
}

// clock asks for the server's time, where no row could bring it along.
func (s *Store[Tx]) clock(ctx context.Context) (now time.Time, err error) {
	err = s.db.Do(ctx, &Stmt{SQL: s.sql.clock, Row: func(sc Scanner) error { return sc.Scan(&now) }})
	return now.UTC(), asRead(err)
}

// normal gives the request the precision of the server, so that the record in the
// answer and the stored one are the same.
func normal(r backend.ReserveRequest) backend.ReserveRequest {
	r.TTL, r.KnownFor, r.ReplayFor = roundUp(r.TTL), roundUp(r.KnownFor), roundUp(r.ReplayFor)
	r.Holder.Started = r.Holder.Started.UTC().Truncate(time.Microsecond)
	return r
}

// roundUp rounds to microseconds, the server's precision, and upwards: a positive
// duration stays positive.
func roundUp(d time.Duration) time.Duration {
	if rest := d % time.Microsecond; rest > 0 && d < 1<<63-1-time.Microsecond {
		return d - rest + time.Microsecond
	}
	return d.Truncate(time.Microsecond)
}
