package pgstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// The sweeper's statements find the head by the index and the rows by their primary
// key, in a table that has many other rows: prepared, as they are in use.
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
			if !strings.Contains(got, "Index Scan using "+strings.Trim(l.names.Sweep, `"`)) || !strings.Contains(got, "records_pkey") || strings.Contains(got, "Seq Scan on "+l.names.Prefix+"records") {
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
