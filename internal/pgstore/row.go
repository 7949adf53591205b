package pgstore

import (
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// rowFormat is the version of what a row means (R28). It stands in every row.
const rowFormat = 1

// columns of a record in the order of scanRow, without id and sweep_after, which
// only WHERE clauses read.
const columns = `tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned, ` +
	`fingerprint, holder_host, holder_pid, holder_started, reserved_at, lease_until, completed_at, replay_until, known_until, ` +
	`evidence, body`

// row is a record as stored, with what a compare-and-set on it needs.
type row struct {
	rec backend.Record
	rev int32
	now time.Time // the server's clock when the row was read
}

// scanRow reads the columns, followed by the server's time. before are
// destinations of columns that come first.
func scanRow(s Scanner, id backend.ID, before ...any) (row, error) {
	var (
		r                        row
		format, state, abandoned int16
		fence, pid               int64
		attempt                  int32
		owner                    token
		started, lease, completed,
		replay, known *time.Time
	)
	rec := &r.rec
	dest := append(before,
		&rec.ID.Tenant, &rec.ID.Operation, &rec.ID.Key, &format, &r.rev, &state, &owner, &fence, &attempt, &rec.TookOver, &abandoned,
		&rec.Fingerprint, &rec.Holder.Host, &pid, &started, &rec.ReservedAt, &lease, &completed, &replay, &known,
		&rec.Evidence, &rec.Body, &r.now)
	if err := s.Scan(dest...); err != nil {
		// The driver's error may quote what it could not read.
		return row{}, fmt.Errorf("%w: a column of the row cannot be read", backend.ErrCorruptRecord)
	}
	if format != rowFormat {
		return row{}, &backend.VersionError{What: "record", Found: int(format), Known: rowFormat}
	}
	switch {
	case state < int16(backend.InFlight) || state > int16(backend.Open),
		abandoned < int16(backend.Rerun) || abandoned > int16(backend.Hold),
		attempt < 1, fence < 1, len(rec.Fingerprint) > backend.MaxFingerprint:
		return row{}, fmt.Errorf("%w: a column of the row is out of range", backend.ErrCorruptRecord)
	case id != (backend.ID{}) && rec.ID != id:
		// Two different keys with one sum, or a row edited by hand: the record of
		// another key must not answer for this one (R5).
		return row{}, fmt.Errorf("%w: the row belongs to another key", backend.ErrCorruptRecord)
	}
	rec.State, rec.OnAbandoned = backend.State(state), backend.Abandoned(abandoned)
	rec.Owner, rec.Fence, rec.Attempt, rec.Holder.PID = owner, uint64(fence), int(attempt), int(pid)
	rec.Holder.Started, rec.LeaseUntil, rec.CompletedAt = utc(started), utc(lease), utc(completed)
	rec.ReplayUntil, rec.KnownUntil = utc(replay), utc(known)
	rec.ReservedAt, r.now = rec.ReservedAt.UTC(), r.now.UTC()
	if len(rec.Fingerprint) == 0 {
		rec.Fingerprint = nil
	}
	if len(rec.Body) == 0 {
		rec.Body = nil
	}
	return r, nil
}

func utc(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// null turns the zero time into NULL.
func null(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// micros is how durations travel: the server multiplies them with a microsecond.
func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }
