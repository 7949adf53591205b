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
	complete := many(one.complete, 10,
		`SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int2[], $5::int4[], $6::int4[], $7::int8[], $8::int8[]) `+
			`AS u(id, token, next, at, size, replay, keep) ORDER BY id LIMIT $9::int8`,
		"$1::uuid ", "q.id ", "$2::uuid ", "q.token ", "$3::int2,", "q.next,",
		"$4::bytea,", piece("$4")+",", "$5::int8 ", "q.replay ", "$6::int8 ", "q.keep ")
	complete = strings.Replace(complete, "RETURNING ", "RETURNING r.id, ", 1)

	q := func(column string) string { return "(t + q." + column + " * interval '1 microsecond')" }
	return mergedTexts{
		look: fmt.Sprintf(`SELECT r.id, %s, %s FROM (SELECT id FROM unnest($1::uuid[]) AS u(id) LIMIT $2::int8) AS q JOIN %s AS r ON r.id = q.id`,
			columns, now, n.Records),
		// The inner SELECT is what keeps a known key from drawing a fence; the conflict
		// clause is for rows that the statement's snapshot does not show.
		insert: fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %[1]s AS t`+wait+` `+
			`INSERT INTO %[3]s (id, %[4]s, sweep_after) `+
			`SELECT q.id, q.tenant, q.operation, q.key, %[5]d, 1, %[6]d, q.owner, %[7]s, 1, false, q.abandoned, `+
			`%[8]s, $13::text, $14::int8, $15::timestamptz, t, %[9]s, NULL::timestamptz, NULL::timestamptz, %[10]s, '', NULL::bytea, %[11]s `+
			`FROM clock, (SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int2[], $8::int4[], $9::int4[], $10::int8[], $11::int8[], $12::int8[]) `+
			`AS u(id, tenant, operation, key, owner, abandoned, at, size, ttl, known, sweep) ORDER BY id LIMIT $16::int8) AS q `+
			`WHERE (SELECT true FROM %[3]s AS x WHERE x.id = q.id) IS NULL ORDER BY q.id `+
			`ON CONFLICT (id) DO NOTHING RETURNING id, fence, reserved_at`,
			now, 17, n.Records, columns, rowFormat, backend.InFlight, seed, piece("$7"), q("ttl"), q("known"), q("sweep")),
		complete:     complete,
		release:      own(one.release),
		renew:        own(one.renew),
		completeWait: limited(one.complete, 7),
	}
}
