package pgstore

import (
	"fmt"
	"strings"

	"github.com/goidem/idem/backend"
)

// mergedTexts are the statements on many rows.
//
// Each takes its rows from arrays, through a LIMIT whose argument is their number. It
// limits nothing: it is for the planner. Of a plan that is kept for all arguments it
// makes one for a single row, which looks the record up by its primary key. Without
// it the plan for ten rows reads the whole table as long as that is small, and is kept
// when the table has grown.
type mergedTexts struct {
	look, insert             string
	complete, release, renew string
	completeWait             string // texts.complete with a lock timeout in $7
	// settle completes what a reserve of this process has left as it was: everything else
	// of the record is known, so only the time comes back.
	settle string
	// One row each, in the words of insert and settle.
	insertOne, settleOne string
}

func newMergedTexts(n Names, now, seed string, one *texts) mergedTexts {
	const wait = `, set_config('lock_timeout', $%d::text, true))`
	limited := func(text string, n int) string {
		return strings.Replace(text, " AS t)", " AS t"+fmt.Sprintf(wait, n), 1)
	}
	// many makes a statement on one row one on many: what were arguments are columns
	// of q, the rest is the same word for word.
	many := func(text string, timeout int, from string, columns ...string) string {
		text = strings.NewReplacer(columns...).Replace(text)
		return limited(strings.Replace(text, "FROM clock WHERE ", "FROM clock, ("+from+") AS q WHERE ", 1), timeout)
	}
	own := func(text string) string {
		return many(text, 5,
			`SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int8[]) AS u(id, token, length) ORDER BY id LIMIT $4::int8`,
			"$1::uuid ", "q.id ", "$2::uuid", "q.token", "$3::int8", "q.length") + ` RETURNING r.id`
	}
	complete := many(one.complete, 8,
		`SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int2[], $4::bytea[], $5::int8[], $6::int8[]) `+
			`AS u(id, token, next, body, replay, keep) ORDER BY id LIMIT $7::int8`,
		"$1::uuid ", "q.id ", "$2::uuid ", "q.token ", "$3::int2,", "q.next,",
		"$4::bytea,", "q.body,", "$5::int8 ", "q.replay ", "$6::int8 ", "q.keep ")
	complete = strings.Replace(complete, "RETURNING ", "RETURNING r.id, ", 1)

	// The time and the limit of waits, once for the statement: OFFSET keeps the planner
	// from writing the expressions wherever they are used.
	clock := func(n int) string {
		return fmt.Sprintf(`(SELECT %s AS t, set_config('lock_timeout', $%d::text, true) OFFSET 0) AS c`, now, n)
	}
	plus := func(length string) string { return "(t + " + length + " * interval '1 microsecond')" }
	q := func(column string) string { return plus("q." + column) }
	insert := func(first, clock, from, where string, id, tenant, operation, key, owner, abandoned, print, host, pid, started, ttl, known, sweep string) string {
		return fmt.Sprintf(`INSERT INTO %[1]s (id, %[2]s, sweep_after) `+
			`SELECT `+strings.Join([]string{id, tenant, operation, key}, ", ")+`, %[3]d, 1, %[4]d, `+owner+`, %[5]s, 1, false, `+abandoned+`, `+
			print+`, `+host+`, `+pid+`, `+started+`, t, `+ttl+`, NULL::timestamptz, NULL::timestamptz, `+known+`, '', NULL::bytea, `+sweep+` `+
			`FROM `+clock+from+` WHERE `+where+` ON CONFLICT (id) DO NOTHING RETURNING `+first+`fence, reserved_at`,
			n.Records, columns, rowFormat, backend.InFlight, seed)
	}
	// Everything that makes a record of the owner completable is implied by its rev: what
	// it was when this process has read it, it still is.
	settle := func(first, clock, from, id, owner, rev, state, body, replay, keep string) string {
		return fmt.Sprintf(`UPDATE %[1]s AS r SET rev = r.rev + 1, state = `+state+`, body = `+body+`, holder_host = '', holder_pid = 0, holder_started = NULL, `+
			`lease_until = NULL, completed_at = t, replay_until = `+plus(replay)+`, known_until = `+plus(keep)+`, `+
			`sweep_after = CASE WHEN r.sweep_after > greatest(r.lease_until, t) + 2 * `+keep+` * interval '1 microsecond' THEN `+plus(keep)+` ELSE r.sweep_after END `+
			`FROM `+clock+from+` WHERE r.id = `+id+` AND r.owner = `+owner+` AND r.rev = `+rev+` AND r.state = %[2]d AND NOT %[3]s RETURNING `+first+`t`,
			n.Records, backend.InFlight, expired)
	}
	return mergedTexts{
		look: fmt.Sprintf(`SELECT r.id, %s, %s FROM (SELECT id FROM unnest($1::uuid[]) AS u(id) LIMIT $2::int8) AS q JOIN %s AS r ON r.id = q.id`,
			columns, now, n.Records),
		// The inner SELECT keeps a known key from drawing a fence, and from waiting for who
		// is just writing to it; the conflict clause is for rows that the statement's snapshot
		// does not show.
		insert: insert("id, ", clock(15),
			`, (SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int2[], $7::bytea[], $8::int8[], $9::int8[], $10::int8[]) `+
				`AS u(id, tenant, operation, key, owner, abandoned, print, ttl, known, sweep) ORDER BY id LIMIT $14::int8) AS q`,
			`(SELECT true FROM `+n.Records+` AS x WHERE x.id = q.id) IS NULL ORDER BY q.id`,
			"q.id", "q.tenant", "q.operation", "q.key", "q.owner", "q.abandoned", "q.print", "$11::text", "$12::int8", "$13::timestamptz",
			q("ttl"), q("known"), q("sweep")),
		insertOne: insert("", clock(14), "", `NOT EXISTS (SELECT 1 FROM `+n.Records+` AS x WHERE x.id = $1::uuid)`,
			"$1::uuid", "$2::text", "$3::text", "$4::text", "$5::uuid", "$6::int2", "$7::bytea", "$8::text", "$9::int8", "$10::timestamptz",
			plus("$11::int8"), plus("$12::int8"), plus("$13::int8")),
		complete:     complete,
		release:      own(one.release),
		renew:        own(one.renew),
		completeWait: limited(one.complete, 7),
		settle: settle("r.id, ", clock(9),
			`, (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int4[], $4::int2[], $5::bytea[], $6::int8[], $7::int8[]) `+
				`AS u(id, token, seen, next, body, replay, keep) ORDER BY id LIMIT $8::int8) AS q`,
			"q.id", "q.token", "q.seen", "q.next", "q.body", "q.replay", "q.keep"),
		settleOne: settle("", clock(8), "", "$1::uuid", "$2::uuid", "$3::int4", "$4::int2", "$5::bytea", "$6::int8", "$7::int8"),
	}
}
