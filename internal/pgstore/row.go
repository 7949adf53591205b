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
	if len(before) == 0 {
		if v, ok := rawOf(s, rowColumns); ok {
			return v.row(id)
		}
	}
	var (
		r   row
		c   codes
		pid int64
		started, lease, completed,
		replay, known *time.Time
	)
	rec := &r.rec
	dest := append(before,
		&rec.ID.Tenant, &rec.ID.Operation, &rec.ID.Key, &c.format, &r.rev, &c.state, &c.owner, &c.fence, &c.attempt, &rec.TookOver, &c.abandoned,
		&rec.Fingerprint, &rec.Holder.Host, &pid, &started, &rec.ReservedAt, &lease, &completed, &replay, &known,
		&rec.Evidence, &rec.Body, &r.now)
	if err := s.Scan(dest...); err != nil {
		return row{}, errColumn
	}
	rec.Holder.PID = int(pid)
	rec.Holder.Started, rec.LeaseUntil, rec.CompletedAt = utc(started), utc(lease), utc(completed)
	rec.ReplayUntil, rec.KnownUntil = utc(replay), utc(known)
	rec.ReservedAt, r.now = rec.ReservedAt.UTC(), r.now.UTC()
	return r.checked(&c, id)
}

// rowColumns is the number of columns and the server's time.
const rowColumns = 23

// errColumn has no word of the driver's error, which may quote what it could not read.
// lint:const error
var errColumn = fmt.Errorf("%w: a column of the row cannot be read", backend.ErrCorruptRecord)

// scanRowOf reads the row's id, the columns and the server's time. expect gives the key
// that has this id; it is called once.
func scanRowOf(s Scanner, expect func(token) backend.ID) (row, error) {
	if v, ok := rawOf(s, 1+rowColumns); ok {
		sum := v.token()
		return v.row(expect(sum))
	}
	var sum token
	r, err := scanRow(s, backend.ID{}, &sum)
	if id := expect(sum); err == nil && r.rec.ID != id {
		err = errOther
	}
	return r, err
}

// row reads the columns and the server's time.
func (v *rawValues) row(id backend.ID) (row, error) {
	var (
		r row
		c codes
	)
	rec := &r.rec
	rec.ID.Tenant, rec.ID.Operation, rec.ID.Key = v.text(id.Tenant), v.text(id.Operation), v.text(id.Key)
	c.format, r.rev, c.state, c.owner, c.fence, c.attempt, rec.TookOver, c.abandoned = v.int16(), v.int32(), v.int16(), v.token(), v.int64(), v.int32(), v.bool(), v.int16()
	print := v.bytes()
	rec.Holder.Host, rec.Holder.PID, rec.Holder.Started = v.text(""), int(v.int64()), v.maybe()
	rec.ReservedAt, rec.LeaseUntil, rec.CompletedAt, rec.ReplayUntil, rec.KnownUntil = v.time(), v.maybe(), v.maybe(), v.maybe(), v.maybe()
	rec.Evidence = v.text("")
	body := v.bytes()
	r.now = v.time()
	if v.bad {
		return row{}, errColumn
	}
	// One copy for both: the driver uses its memory again.
	both := append(append(make([]byte, 0, len(print)+len(body)), print...), body...)
	rec.Fingerprint, rec.Body = both[:len(print):len(print)], both[len(print):]
	return r.checked(&c, id)
}

// codes are the columns that are checked before they mean anything.
type codes struct {
	format, state, abandoned int16
	fence                    int64
	attempt                  int32
	owner                    token
}

// errOther: two different keys with one sum, or a row edited by hand: the record of
// another key must not answer for this one (R5).
// lint:const error
var errOther = fmt.Errorf("%w: the row belongs to another key", backend.ErrCorruptRecord)

// checked is the row, if it makes sense and is the record of id, where that is given.
func (r *row) checked(c *codes, id backend.ID) (row, error) {
	rec := &r.rec
	if c.format != rowFormat {
		return row{}, &backend.VersionError{What: "record", Found: int(c.format), Known: rowFormat}
	}
	switch {
	case c.state < int16(backend.InFlight) || c.state > int16(backend.Open),
		c.abandoned < int16(backend.Rerun) || c.abandoned > int16(backend.Hold),
		c.attempt < 1, c.fence < 1, len(rec.Fingerprint) > backend.MaxFingerprint:
		return row{}, fmt.Errorf("%w: a column of the row is out of range", backend.ErrCorruptRecord)
	case id != (backend.ID{}) && rec.ID != id:
		return row{}, errOther
	}
	rec.State, rec.OnAbandoned = backend.State(c.state), backend.Abandoned(c.abandoned)
	rec.Owner, rec.Fence, rec.Attempt = c.owner, uint64(c.fence), int(c.attempt)
	if len(rec.Fingerprint) == 0 {
		rec.Fingerprint = nil
	}
	if len(rec.Body) == 0 {
		rec.Body = nil
	}
	return *r, nil
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
