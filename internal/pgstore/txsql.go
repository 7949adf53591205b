package pgstore

import (
	"fmt"
	"strings"

	"github.com/goidem/idem/backend"
)

const (
	codeAborted  = "25P02" // the transaction is aborted; also our name for a COMMIT that rolled back
	codeDivision = "22012" // a statement below found no row, see [newTxTexts]

	clockNow = "clock_timestamp()" // the server's clock where nothing else is configured

	codeNoSavepoint   = "3B001"
	codeNoTransaction = "25P01"
)

// txTexts are the statements of transactional mode, built once for each store.
type txTexts struct {
	// first inserts a new key and reads nothing, which is a third cheaper than reserve:
	// the new row, or the row that stands. first is empty where the server cannot.
	first   string
	reserve string // see open
	clock   string // now, seed, lock_timeout
	lock    string // $1 id, $2 lock timeout, where that can be part of it: columns, now; locks the row
	claim   string // $1 id, $2 owner: an attempt's record turns uncertain
	touch   string // $1 id, $2 owner
	insert  string // see insertStmt
	// outcome writes what Work wants stored, see (*Store).outcome: uncertain or settled,
	// in a transaction of the caller or of ours, found by key or by place.
	outcome [2][2][2]string
}

// newTxTexts builds them.
//
// A statement that is to keep the COMMIT behind it in the same round trip from
// happening must fail: the server skips what follows an error, and nothing else. An
// UPDATE that finds no row does not fail, so its rows are counted and one is divided
// by the count.
func newTxTexts(n Names, d Dialect, now, seed string) txTexts {
	set, reset, same, place := "", "", "", ""
	if d.SettingInStatement {
		// Set before the INSERT waits, put back after it: what the caller's function
		// does afterwards waits as long as its own settings say.
		set = `, current_setting('lock_timeout') AS old, set_config('lock_timeout', $13::text, true) AS set`
		reset = `, set_config('lock_timeout', c.old, true)`
		// The row was written by this very transaction. A function that has committed or
		// rolled back and begun another one is found out here (R19).
		same = ` AND r.xmin = pg_current_xact_id()::xid`
		place = `, ctid::text AS place`
	}
	of := func(alias string) string { return alias + "." + strings.ReplaceAll(columns, ", ", ", "+alias+".") }
	placeOf := func(alias string) string {
		if place == "" {
			return ""
		}
		return ", " + alias + ".place"
	}
	// An expression that stands in a statement several times has to be the same time
	// each time, and a subselect for it costs more than the update.
	still := now
	if still == clockNow {
		still = `statement_timestamp()`
	}
	one := func(update, same, by string) string {
		return fmt.Sprintf(`WITH u AS (UPDATE %s r SET rev = rev + 1, %s WHERE %sr.id = $1::uuid AND r.owner = $2::uuid AND r.rev = $3::int4 AND r.state = %d%s `+
			`RETURNING %s AS now) SELECT max(u.now), 1 / count(*) FROM u`, n.Records, update, by, backend.Uncertain, same, still)
	}
	var outcome [2][2][2]string
	for in, same := range []string{same, ""} {
		for place := range 2 {
			// Where the row lies is known from its insertion, and while this transaction is
			// open, it stays there. That saves the way through the index and, under
			// SERIALIZABLE, a conflict with everybody who inserts into the same page of it.
			hold, settle := "", ""
			if place == 1 {
				hold, settle = `r.ctid = $5::text::tid AND `, `r.ctid = $8::text::tid AND `
			}
			outcome[0][in][place] = one(`body = $4::bytea, known_until = NULL`, same, hold)
			outcome[1][in][place] = one(`state = $4::int2, body = $5::bytea, holder_host = '', holder_pid = 0, holder_started = NULL, lease_until = NULL, completed_at = `+still+`, `+
				`replay_until = `+still+` + $6::int8 * interval '1 microsecond', known_until = `+still+` + $7::int8 * interval '1 microsecond'`, same, settle)
		}
	}
	first, lock := "", fmt.Sprintf(`SELECT %s, %s FROM %s WHERE id = $1::uuid FOR UPDATE`, columns, now, n.Records)
	if d.SettingInStatement {
		// The limit is set when the row is looked for, and put back when it is locked.
		lock = fmt.Sprintf(`WITH c AS MATERIALIZED (SELECT current_setting('lock_timeout') AS old, set_config('lock_timeout', $2::text, true) AS set), `+
			`cur AS MATERIALIZED (SELECT %[1]s FROM %[2]s WHERE id = $1::uuid AND (SELECT set FROM c) IS NOT NULL FOR UPDATE) `+
			`SELECT %[1]s, %[3]s, set_config('lock_timeout', (SELECT old FROM c), true) FROM cur`, columns, n.Records, now)
		first = fmt.Sprintf(limitedInsert+`INSERT INTO %[2]s (id, %[3]s, sweep_after) `+
			`SELECT $1::uuid, $2::text, $3::text, $4::text, %[4]d, 1, %[5]d, $5::uuid, %[6]s, 1, false, $6::int2, `+
			`$7::bytea, $8::text, $9::int8, $10::timestamptz, c.now, c.now + $11::int8 * interval '1 microsecond', `+
			`NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, '', NULL::bytea, c.now + $12::int8 * interval '1 microsecond' FROM c `+
			`ON CONFLICT (id) DO NOTHING RETURNING fence, reserved_at, ctid::text, `+resetLimit,
			now, n.Records, columns, rowFormat, backend.Uncertain, seed)
	}
	return txTexts{
		first: first,
		// The insertion comes first, and the row is read only where that did nothing: a
		// read of what is not there yet would, under SERIALIZABLE, conflict with every
		// other new key beside it. No row at all: another transaction's row, committed
		// after this snapshot.
		reserve: fmt.Sprintf(`WITH c AS MATERIALIZED (SELECT %[1]s AS now%[2]s), `+
			`ins AS (INSERT INTO %[4]s (id, %[3]s, sweep_after) `+
			`SELECT $1::uuid, $2::text, $3::text, $4::text, %[5]d, 1, %[6]d, $5::uuid, %[7]s, 1, false, $6::int2, `+
			`$7::bytea, $8::text, $9::int8, $10::timestamptz, c.now, c.now + $11::int8 * interval '1 microsecond', `+
			`NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, '', NULL::bytea, c.now + $12::int8 * interval '1 microsecond' FROM c `+
			`ON CONFLICT (id) DO NOTHING RETURNING %[3]s%[11]s), `+
			`cur AS (SELECT %[3]s%[11]s FROM %[4]s WHERE id = $1::uuid AND NOT EXISTS (SELECT 1 FROM ins)) `+
			`SELECT true, %[8]s, c.now%[12]s%[10]s FROM ins, c UNION ALL SELECT false, %[9]s, c.now%[13]s%[10]s FROM cur, c`,
			now, set, columns, n.Records, rowFormat, backend.Uncertain, seed, of("ins"), of("cur"), reset,
			place, placeOf("ins"), placeOf("cur")),
		clock:   fmt.Sprintf(`SELECT %s, %s, current_setting('lock_timeout')`, now, seed),
		lock:    lock,
		claim:   fmt.Sprintf(`UPDATE %s SET rev = rev + 1, state = %d, known_until = NULL WHERE id = $1::uuid AND owner = $2::uuid AND state IN (%d, %d)`, n.Records, backend.Uncertain, backend.InFlight, backend.Uncertain),
		touch:   fmt.Sprintf(`UPDATE %s SET rev = rev + 1 WHERE id = $1::uuid AND owner = $2::uuid`, n.Records),
		insert:  insertText(n, now, seed),
		outcome: outcome,
	}
}

// limitedInsert begins an insertion that waits for another's row as long as $13 says,
// and resetLimit, in its RETURNING, puts back what held before: c is read once, before
// the insertion. Where that inserts nothing, the limit stays until the transaction
// ends or goes back to a savepoint.
const (
	limitedInsert = `WITH c AS MATERIALIZED (SELECT %[1]s AS now, current_setting('lock_timeout') AS old, set_config('lock_timeout', $13::text, true) AS set) `
	resetLimit    = `set_config('lock_timeout', (SELECT old FROM c), true)`
)

// The savepoints: what the caller's function does after the reserve can be undone
// alone (R17), and all that idem does in a transaction of the caller's (R21).
//
// Undoing everything instead, and storing the outcome in a second transaction, would
// let the key go in between: a duplicate that waits behind the row would become its
// owner, and run a function whose last run may have taken effect outside.
const (
	setWork     = `SAVEPOINT idem_fn`
	undoWork    = `ROLLBACK TO SAVEPOINT idem_fn`
	releaseWork = `RELEASE SAVEPOINT idem_fn`
	setJoin     = `SAVEPOINT idem_join`
	undoJoin    = `ROLLBACK TO SAVEPOINT idem_join`
	releaseJoin = `RELEASE SAVEPOINT idem_join`
)

func plain(sql string) *Stmt { return &Stmt{SQL: sql} }
