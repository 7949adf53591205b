package pgstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// The sweeper's statements find the head by the index and the rows by their place or
// primary key, in a table that has many other rows: prepared, as they are in use.
func TestSweepUsesTheIndexes(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	l.exec(fmt.Sprintf(`INSERT INTO %s (id, %s, sweep_after) SELECT md5(i::text)::uuid, 'shop', 'pay', 'bulk' || i, 1, 1, 2, md5(i::text)::uuid, i, 1, false, 1, `+
		`NULL, '', 0, NULL, now(), NULL, now(), now() + interval '1 hour', now() + interval '2 hours', '', 'x', now() + i * interval '1 second' FROM generate_series(1, 20000) AS i; `+
		`ANALYZE %[1]s`, l.names.Records, columns))
	conn, err := l.admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	found := map[string]string{"expire": "Tid Scan on", "look": "records_pkey"}
	for name, text := range map[string]string{"expire": l.sql.expire, "look": l.sql.look} {
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			args := "(1000)"
			if name == "look" {
				args = "(1000, 1)"
			}
			batch := []string{"SET plan_cache_mode = " + plan, "PREPARE sweep_" + name + plan + " AS " + text, "EXPLAIN EXECUTE sweep_" + name + plan + args}
			var lines []string
			for _, text := range batch {
				answers, err := conn.Conn().PgConn().Exec(t.Context(), text).ReadAll()
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				lines = nil
				for _, line := range answers[0].Rows {
					lines = append(lines, string(line[0]))
				}
			}
			got := strings.Join(lines, "\n")
			if !strings.Contains(got, "Index Scan using "+strings.Trim(l.names.Sweep, `"`)) || !strings.Contains(got, found[name]) || strings.Contains(got, "Seq Scan on "+l.names.Prefix+"records") {
				t.Errorf("%s with %s does not go by the indexes:\n%s", name, plan, got)
			}
		}
	}
}

// A head full of rows that are not due, more than a batch of them, does not keep the
// sweeper from what lies behind (C44), and nothing is lost or counted twice.
func TestSweepPassesWhatIsNotDue(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	const held, dropped, bare, due = 30, 7, 5, 20
	for i := range held {
		r := reserveOf(fmt.Sprint("held", i))
		r.OnAbandoned, r.TTL, r.KnownFor = backend.Hold, time.Minute, time.Minute
		l.acquire(r)
	}
	settle := func(n int, name, body string, replay, known time.Duration) {
		for i := range n {
			r := reserveOf(fmt.Sprint(name, i))
			r.KnownFor = 3 * time.Minute
			l.acquire(r)
			c := completion(r, body)
			c.ReplayFor, c.KnownFor = replay, known
			l.complete(c)
		}
	}
	settle(dropped, "dropped", "x", time.Minute, 24*time.Hour)
	settle(bare, "bare", "", time.Minute, 24*time.Hour)
	settle(due, "due", "x", time.Minute, time.Minute)
	l.advance(10 * time.Minute)
	var all backend.ExpireResult
	for round := 0; ; round++ {
		done, err := l.Expire(soon(t), backend.ExpireRequest{Limit: 4})
		if err != nil {
			t.Fatal(err)
		}
		if done.Removed+done.Bodies > 2*4 {
			t.Errorf("a round with limit 4: %+v", done)
		}
		all.Removed, all.Bodies = all.Removed+done.Removed, all.Bodies+done.Bodies
		if !done.More {
			break
		}
		if round > held+dropped+bare+due {
			t.Fatal("the sweep does not come to its end")
		}
	}
	if all.Removed != due || all.Bodies != dropped {
		t.Errorf("removed %d records and dropped %d bodies; want %d and %d", all.Removed, all.Bodies, due, dropped)
	}
	if left := l.ask("SELECT count(*) FROM " + l.names.Records + " WHERE sweep_after <= " + l.now); left != "0" {
		t.Errorf("%s rows are still at the head", left)
	}
	if bodies := l.ask("SELECT count(body) FROM " + l.names.Records); bodies != "0" {
		t.Errorf("%s bodies are left", bodies)
	}
}

// A row of another version, and a damaged one, stay, and do not block the head.
func TestSweepLeavesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	for _, column := range []string{"format", "state", "attempt", "on_abandoned"} {
		r := reserveOf(column)
		r.TTL, r.KnownFor = time.Minute, time.Minute
		l.acquire(r)
		l.exec("UPDATE " + l.names.Records + " SET " + column + " = -1 WHERE key = '" + column + "'")
	}
	l.advance(time.Hour)
	done, err := l.Expire(soon(t), backend.ExpireRequest{Limit: 2})
	for done.More && err == nil {
		done, err = l.Expire(soon(t), backend.ExpireRequest{Limit: 2})
	}
	if err != nil || l.ask("SELECT count(*) FROM "+l.names.Records) != "4" || l.ask("SELECT count(*) FROM "+l.names.Records+" WHERE sweep_after <= "+l.now) != "0" {
		t.Errorf("Expire: %+v, %v; %s rows are left", done, err, l.ask("SELECT count(*) FROM "+l.names.Records))
	}
}

// Rows that somebody has locked are passed over, not waited for.
func TestSweepDoesNotWait(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	for i := range 10 {
		r := reserveOf(fmt.Sprint("key", i))
		r.TTL, r.KnownFor = time.Minute, time.Minute
		l.acquire(r)
	}
	l.advance(time.Hour)
	tx := l.open("SELECT 1 FROM " + l.names.Records + " WHERE key IN ('key1', 'key2') FOR UPDATE")
	if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed != 8 {
		t.Fatalf("Expire beside an open transaction: %+v, %v; want 8 removed", done, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed != 2 {
		t.Fatalf("Expire: %+v, %v; want 2 removed", done, err)
	}
}

// The first window's end gives the room of the result back and keeps the key, in
// batches that pass over locked rows too; the second one's removes the row. The first
// step moves the row in the sweeper's index, so that it is no HOT update: it happens
// once in a record's life, and vacuum finds the dead row like any other.
func TestSweepOfTwoWindows(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	const n = 40
	for i := range n {
		r := reserveOf(fmt.Sprint("key", i))
		r.KnownFor, r.ReplayFor = 2*time.Hour, time.Minute
		l.acquire(r)
		c := completion(r, strings.Repeat("x", 1000))
		c.ReplayFor, c.KnownFor = time.Minute, 2*time.Hour
		l.complete(c)
	}
	room := func() (bytes int) {
		t.Helper()
		if _, err := fmt.Sscan(l.ask("SELECT coalesce(sum(pg_column_size(r.*)), 0) FROM "+l.names.Records+" AS r"), &bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	full := room()
	l.advance(30 * time.Minute)
	tx := l.open("SELECT 1 FROM " + l.names.Records + " WHERE key = 'key7' FOR UPDATE")
	var bodies int
	sweep := func() {
		t.Helper()
		for more, rounds := true, 0; more; rounds++ {
			done, err := l.Expire(soon(t), backend.ExpireRequest{Limit: 9})
			if err != nil || done.Removed != 0 || done.Bodies > 9 || rounds > n {
				t.Fatalf("%+v, %v", done, err)
			}
			bodies, more = bodies+done.Bodies, done.More
		}
	}
	if sweep(); bodies != n-1 {
		t.Errorf("dropped %d results beside a locked row, want %d", bodies, n-1)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sweep(); bodies != n {
		t.Errorf("dropped %d results, want %d", bodies, n)
	}
	if left := room(); left > full-n*900 {
		t.Errorf("rows of %d bytes take %d without their results of 1,000 each", full, left)
	}
	rec, err := l.Get(soon(t), reserveOf("key7").ID)
	if err != nil || rec.State != backend.Completed || !rec.BodyExpired || len(rec.Body) != 0 {
		t.Errorf("between the windows: %+v, %v", rec, err)
	}
	// The clock of the store is the server's: set back, it makes nothing due, and set
	// forward it removes what is due then.
	l.advance(-time.Hour)
	if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed+done.Bodies != 0 {
		t.Errorf("an hour back: %+v, %v", done, err)
	}
	l.advance(2*time.Hour + 31*time.Minute)
	if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed != n {
		t.Errorf("two hours forward: %+v, %v", done, err)
	}
}

// What row-level TTL of CockroachDB removes is what a sweeper would remove: settled
// records from the end of their dedup window on, and nothing that is not settled.
func TestSweepAgreesWithRowLevelTTL(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	var ttl string
	for _, m := range Migrations(l.names, CockroachDB()) {
		for _, text := range m.statements() {
			if _, after, ok := strings.Cut(text, "ttl_expiration_expression = '"); ok {
				ttl, _, _ = strings.Cut(after, "'")
			}
		}
	}
	if ttl == "" {
		t.Fatal("the schema has no row-level TTL")
	}
	settled := reserveOf("settled")
	settled.KnownFor = time.Hour
	l.acquire(settled)
	c := completion(settled, "x")
	c.ReplayFor, c.KnownFor = time.Minute, time.Hour
	l.complete(c)
	for _, name := range []string{"uncertain", "live", "held", "rerun"} {
		r := reserveOf(name)
		if r.TTL, r.KnownFor = time.Minute, time.Hour; name == "live" {
			r.TTL = 100 * time.Hour
		}
		if name == "held" {
			r.OnAbandoned = backend.Hold
		}
		l.acquire(r)
		if name == "uncertain" {
			c := completion(r, "")
			c.State, c.ReplayFor, c.KnownFor = backend.Uncertain, 0, 0
			l.complete(c)
		}
	}
	due := func() string {
		return l.ask("SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM " + l.names.Records + " WHERE " + ttl + " <= " + l.now)
	}
	if end := l.ask("SELECT (" + ttl + ") = known_until AND known_until = completed_at + interval '1 hour' FROM " + l.names.Records + " WHERE key = 'settled'"); end != "true" {
		t.Error("the end by TTL is not that of the dedup window")
	}
	l.advance(59 * time.Minute)
	if got := due(); got != "" {
		t.Errorf("due by TTL within the dedup window: %s", got)
	}
	l.advance(30 * time.Hour)
	if got := due(); got != "settled" {
		t.Errorf("due by TTL: %q, want the settled record only", got)
	}
	if _, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil {
		t.Fatal(err)
	}
	if left := l.ask("SELECT string_agg(key, ' ' ORDER BY key) FROM " + l.names.Records); left != "held live uncertain" || due() != "" {
		t.Errorf("after the sweep: %s; due by TTL: %q", left, due())
	}
}
