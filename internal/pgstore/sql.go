package pgstore

import (
	"fmt"
	"strings"

	"github.com/goidem/idem/backend"
)

// Dialect is what the two servers do not share.
type Dialect struct {
	Name string // "PostgreSQL" or "CockroachDB", for messages
	// Seed is the expression of the least fence that a new attempt may get. It is
	// drawn for every attempt, takeovers included, so that no fence is given twice on
	// a key even after its record is gone.
	Seed func(Names) string
	// SettingInStatement says that set_config(..., true) inside a statement acts on
	// that very statement, so that a lock timeout costs no statement of its own.
	SettingInStatement bool
	// Places says that rows have a place (ctid) by which they are found at once.
	Places bool
}

// PostgreSQL and CockroachDB are the dialects. A sequence on CockroachDB would be a
// round trip between nodes for every key, so the cluster's clock seeds there: a
// clock that was set back can give a fence again, once the record is gone.
func PostgreSQL() Dialect {
	return Dialect{
		Name:               "PostgreSQL",
		Seed:               func(n Names) string { return "nextval('" + n.Fence + "')" },
		SettingInStatement: true,
		Places:             true,
	}
}

// CockroachDB is the dialect of CockroachDB; see [PostgreSQL].
func CockroachDB() Dialect {
	return Dialect{
		Name: "CockroachDB",
		Seed: func(Names) string { return "(extract(epoch from clock_timestamp()) * 1000000)::int8" },
	}
}

// texts are the statements that every move needs, built once for each store. Every
// argument has a cast, so that they mean the same prepared and not.
type texts struct {
	now    string // expression: the server's clock
	seed   string // expression
	clock  string // now alone
	get    string // $1 id: columns, now
	over   string // $1 id: seed, columns, now
	write  string // compare-and-set of a whole row on rev; see writeStmt
	delete string // $1 id, $2 rev
	// These are the same with a lock timeout in $21 and $3; empty where the server cannot.
	writeWait, deleteWait string

	reserve, complete, release, renew string
	list, expire, look                string
}

func newTexts(n Names, d Dialect, now string) texts {
	seed := d.Seed(n)
	t := texts{
		now:    now,
		seed:   seed,
		clock:  `SELECT ` + now,
		get:    fmt.Sprintf(`SELECT %s, %s FROM %s WHERE id = $1::uuid`, columns, now, n.Records),
		over:   fmt.Sprintf(`SELECT %s, %s, %s FROM %s WHERE id = $1::uuid`, seed, columns, now, n.Records),
		delete: fmt.Sprintf(`DELETE FROM %s WHERE id = $1::uuid AND rev = $2::int4`, n.Records),
	}
	const update = `UPDATE %s SET rev = rev + 1, state = $3::int2, owner = $4::uuid, fence = $5::int8, attempt = $6::int4, took_over = $7::bool, ` +
		`on_abandoned = $8::int2, fingerprint = $9::bytea, holder_host = $10::text, holder_pid = $11::int8, holder_started = $12::timestamptz, ` +
		`reserved_at = $13::timestamptz, lease_until = $14::timestamptz, completed_at = $15::timestamptz, replay_until = $16::timestamptz, ` +
		`known_until = $17::timestamptz, evidence = $18::text, body = $19::bytea, sweep_after = coalesce($20::timestamptz, sweep_after)%s ` +
		`WHERE id = $1::uuid AND rev = $2::int4`
	t.write = fmt.Sprintf(update, n.Records, "")
	if d.SettingInStatement {
		t.writeWait = fmt.Sprintf(`WITH wait AS MATERIALIZED (SELECT set_config('lock_timeout', $21::text, true)) `+update, n.Records, " FROM wait")
		t.deleteWait = fmt.Sprintf(`WITH wait AS MATERIALIZED (SELECT set_config('lock_timeout', $3::text, true)) DELETE FROM %s USING wait WHERE id = $1::uuid AND rev = $2::int4`, n.Records)
	}
	t.reserve = reserveText(n, d, now, seed)
	t.complete, t.release, t.renew = completeText(n, now), releaseText(n, now), renewText(n, now)
	t.list, t.expire, t.look = listText(n, now), expireText(n, d, now), lookText(n, now)
	return t
}

// after is a time that lies $n microseconds after t. The multiplication keeps days
// out of the interval: a day would be counted in the session's time zone, where it
// can have 23 hours.
func after(n int) string { return fmt.Sprintf(`(t + $%d::int8 * interval '1 microsecond')`, n) }

// readable is what scanRow accepts. A fast statement passes over every other row and
// leaves it to the general way, which says what is wrong with it.
const readable = `(r.format = 1 AND r.state BETWEEN 1 AND 5 AND r.on_abandoned BETWEEN 1 AND 3 AND r.attempt > 0 AND r.fence > 0)`

// expired is Record.Expired at t, for a readable row. A lease or window without an
// end is never over (R14).
const expired = `(r.state <> 4 AND (r.state <> 1 OR r.lease_until IS NOT NULL) AND r.known_until IS NOT NULL AND r.known_until <= t)`

// columnsBut returns the columns of row r with NULL in the place of the body: who
// has just sent it does not want it back.
func columnsBut() string { return strings.TrimSuffix(columns, "body") + "NULL::bytea" }

// writeStmt writes next over the row that was read as r, if nobody wrote in between
// (Count is 0 then). sweep moves sweep_after; nil leaves it, which keeps the update
// HOT.
func (t *texts) writeStmt(r *row, next *backend.Record, sweep any) *Stmt {
	return &Stmt{SQL: t.write, Args: []any{
		token(next.ID.Sum()), r.rev, int16(next.State), token(next.Owner), int64(next.Fence), int32(next.Attempt), next.TookOver, int16(next.OnAbandoned),
		bytesOrNull(next.Fingerprint), next.Holder.Host, int64(next.Holder.PID), null(next.Holder.Started), next.ReservedAt, null(next.LeaseUntil),
		null(next.CompletedAt), null(next.ReplayUntil), null(next.KnownUntil), next.Evidence, bytesOrNull(next.Body), sweep,
	}}
}

func bytesOrNull(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}
