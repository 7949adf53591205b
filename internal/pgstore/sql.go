package pgstore

import (
	"fmt"

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
}

// PostgreSQL and CockroachDB are the dialects. A sequence on CockroachDB would be a
// round trip between nodes for every key, so the cluster's clock seeds there: a
// clock that was set back can give a fence again, once the record is gone.
func PostgreSQL() Dialect {
	return Dialect{
		Name:               "PostgreSQL",
		Seed:               func(n Names) string { return "nextval('" + n.Fence + "')" },
		SettingInStatement: true,
	}
}

// CockroachDB is the dialect of CockroachDB; see [PostgreSQL].
func CockroachDB() Dialect {
	return Dialect{
		Name: "CockroachDB",
		Seed: func(Names) string { return "(extract(epoch from clock_timestamp()) * 1000000)::bigint" },
	}
}

// texts are the statements that every move needs, built once for each store.
type texts struct {
	now    string // expression: the server's clock
	get    string // $1 id: columns, now
	write  string // compare-and-set of a whole row on rev; see writeArgs
	delete string // $1 id, $2 rev
	seed   string // expression
}

func newTexts(n Names, d Dialect, now string) texts {
	return texts{
		now:  now,
		seed: d.Seed(n),
		get:  fmt.Sprintf(`SELECT %s, %s FROM %s WHERE id = $1`, columns, now, n.Records),
		write: fmt.Sprintf(`UPDATE %s SET rev = rev + 1, state = $3, owner = $4, fence = $5, attempt = $6, took_over = $7, on_abandoned = $8, `+
			`fingerprint = $9, holder_host = $10, holder_pid = $11, holder_started = $12, reserved_at = $13, lease_until = $14, `+
			`completed_at = $15, replay_until = $16, known_until = $17, evidence = $18, body = $19, `+
			`sweep_after = coalesce($20::timestamptz, sweep_after) WHERE id = $1 AND rev = $2`, n.Records),
		delete: fmt.Sprintf(`DELETE FROM %s WHERE id = $1 AND rev = $2`, n.Records),
	}
}

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
