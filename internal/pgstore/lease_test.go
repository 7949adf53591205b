package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// lease is a store in lease mode on a base of its own, on the server's real clock.
type lease struct {
	*Store[pgx.Tx]
	*base
	db PgxDB
}

func newLease(t testing.TB, b *base, s setup) *lease {
	t.Helper()
	if s.size == 0 {
		s.size = 4
	}
	if s.mode == 0 {
		s.mode = pgx.QueryExecModeCacheStatement
	}
	db := PgxDB{Pool: newPool(t, b.url, s)}
	return &lease{New(db, b.config()), b, db}
}

// lint:const numbers the attempts of the package's tests
var attempts struct {
	sync.Mutex
	n uint64
}

// reserveOf is a reserve of key by an attempt of its own.
func reserveOf(key string) backend.ReserveRequest {
	attempts.Lock()
	defer attempts.Unlock()
	attempts.n++
	r := backend.ReserveRequest{TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun}
	r.ID = backend.ID{Tenant: "shop", Operation: "pay", Key: key}
	copy(r.Owner[:], fmt.Sprintf("attempt %8d", attempts.n))
	return r
}

func completion(r backend.ReserveRequest, body string) backend.CompleteRequest {
	return backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte(body), ReplayFor: time.Hour, KnownFor: 2 * time.Hour}
}

func (l *lease) acquire(r backend.ReserveRequest) backend.Record {
	l.t.Helper()
	res, err := l.Reserve(soon(l.t), r)
	if err != nil || res.Outcome != backend.Acquired {
		l.t.Fatalf("Reserve: %v, %v; want acquired", res.Outcome, err)
	}
	return res.Record
}

func (l *lease) complete(c backend.CompleteRequest) {
	l.t.Helper()
	if _, err := l.Complete(soon(l.t), c); err != nil {
		l.t.Fatalf("Complete: %v", err)
	}
}

// open begins a transaction of another application and runs text in it.
func (l *lease) open(text string, args ...any) pgx.Tx {
	l.t.Helper()
	tx, err := l.admin.Begin(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(l.t.Context())) })
	if _, err := tx.Exec(l.t.Context(), text, args...); err != nil {
		l.t.Fatal(err)
	}
	return tx
}

// hold is an open transaction that has reserved r, as another process's would be.
func (l *lease) hold(r backend.ReserveRequest) pgx.Tx {
	l.t.Helper()
	r = normal(r)
	st := l.reserveStmt(&r, "1s")
	return l.open(st.SQL, st.Args...)
}

// A completion stays within the row's page and touches no index; so does a renewal.
func TestCompleteIsHOT(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	const keys = 200
	for i := range keys {
		r := reserveOf(fmt.Sprint("key", i))
		r.ReplayFor = time.Hour
		l.acquire(r)
		if err := l.Renew(soon(t), r.Ref, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		l.complete(completion(r, strings.Repeat("x", 50)))
	}
	l.db.Pool.Close() // a session that ends hands in its counters
	table := strings.Trim(l.names.Records, `"`)
	deadline := time.After(30 * time.Second)
	for {
		all, hot := l.ask("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = $1", table), l.ask("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", table)
		if all == fmt.Sprint(2*keys) {
			var n int
			if _, err := fmt.Sscan(hot, &n); err != nil || n < 2*keys*9/10 {
				t.Fatalf("%s of %s updates were HOT; want nearly all", hot, all)
			}
			return
		}
		select {
		case <-deadline:
			t.Fatalf("the server counts %s updates; want %d", all, 2*keys)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// An outcome that is kept much shorter than was thought at the reserve moves its
// place in the sweeper's index.
func TestShortOutcomeIsSweptInTime(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	r := reserveOf("short")
	r.KnownFor = 240 * time.Hour
	l.acquire(r)
	c := completion(r, "x")
	c.ReplayFor, c.KnownFor = time.Minute, time.Minute
	l.complete(c)
	l.advance(2 * time.Minute)
	if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed != 1 {
		t.Fatalf("Expire: %+v, %v; want the record removed", done, err)
	}
}

// A replay draws no fence and writes nothing.
func TestReplayWritesNothing(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	r := reserveOf("key")
	l.acquire(r)
	l.complete(completion(r, "done"))
	state := func() string {
		return l.ask("SELECT concat_ws(' ', (SELECT last_value FROM " + l.names.Fence + "), (SELECT rev FROM " + l.names.Records + "), txid_snapshot_xmax(txid_current_snapshot()))")
	}
	// Another test's transaction may draw an xid meanwhile: that a replay draws none
	// is shown by one quiet moment.
	for range 2000 {
		before := state()
		res, err := l.Reserve(soon(t), reserveOf("key"))
		if err != nil || res.Outcome != backend.Existing || string(res.Record.Body) != "done" {
			t.Fatalf("Reserve: %v, %v", res, err)
		}
		if state() == before {
			return
		}
	}
	t.Fatal("each of 2000 replays moved the fence, the record or the transaction counter")
}

// The lock timeout of a reserve acts on that very statement and stays in it.
func TestLockTimeoutDoesNotLeak(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{size: 1})
	tx := l.hold(reserveOf("key"))
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		r := reserveOf("key")
		r.Wait = wait
		res, err := l.Reserve(soon(t), r)
		if err != nil || res.Outcome != backend.Busy {
			t.Fatalf("Reserve behind an open transaction: %+v, %v; want busy", res, err)
		}
	}
	var timeout string
	if err := l.db.Do(soon(t), &Stmt{SQL: "SHOW lock_timeout", Row: func(s Scanner) error { return s.Scan(&timeout) }}); err != nil || timeout != "0" {
		t.Errorf("lock_timeout is %s afterwards, %v; want 0", timeout, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.acquire(reserveOf("key"))
}

// A takeover does not wait either where another's transaction has locked the row.
func TestTakeOverBehindAnOpenTransactionIsBusy(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	old := l.acquire(reserveOf("key"))
	l.advance(2 * time.Minute)
	tx := l.open("SELECT 1 FROM " + l.names.Records + " FOR UPDATE")
	r := reserveOf("key")
	r.TakeOver = old.Fence
	if res, err := l.Reserve(soon(t), r); err != nil || res.Outcome != backend.Busy {
		t.Fatalf("Reserve: %v, %v; want busy", res.Outcome, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rec := l.acquire(r); !rec.TookOver || rec.Fence <= old.Fence {
		t.Errorf("the takeover is %+v", rec)
	}
}

// Days have 23 hours now and then: windows are counted in seconds, whatever time
// zone the session is in.
func TestWindowsDoNotFollowSummerTime(t *testing.T) {
	t.Parallel()
	b := newBase(t, testdb.Postgres(t).Database(t))
	b.exec("ALTER DATABASE " + b.ask("SELECT current_database()") + " SET timezone = 'Europe/Berlin'")
	b.exec("UPDATE " + b.clock() + " SET t = '2027-03-27 12:00:00+00'") // the clocks change that night
	l := newLease(t, b, setup{})
	r := reserveOf("key")
	r.TTL, r.KnownFor = time.Hour, 72*time.Hour
	rec := l.acquire(r)
	if rec.LeaseUntil.Sub(rec.ReservedAt) != r.TTL || rec.KnownUntil.Sub(rec.LeaseUntil) != r.KnownFor {
		t.Errorf("after the reserve: lease %v, known %v", rec.LeaseUntil.Sub(rec.ReservedAt), rec.KnownUntil.Sub(rec.LeaseUntil))
	}
	if err := l.Renew(soon(t), r.Ref, 50*time.Hour); err != nil {
		t.Fatal(err)
	}
	rec, err := l.Get(soon(t), r.ID)
	if err != nil || rec.LeaseUntil.Sub(rec.ReservedAt) != 50*time.Hour || rec.KnownUntil.Sub(rec.LeaseUntil) != r.KnownFor {
		t.Errorf("after the renewal: lease %v, known %v, %v", rec.LeaseUntil.Sub(rec.ReservedAt), rec.KnownUntil.Sub(rec.LeaseUntil), err)
	}
	c := completion(r, "x")
	c.ReplayFor, c.KnownFor = 36*time.Hour, 48*time.Hour
	done, err := l.Complete(soon(t), c)
	if err != nil || done.ReplayUntil.Sub(done.CompletedAt) != c.ReplayFor || done.KnownUntil.Sub(done.CompletedAt) != c.KnownFor {
		t.Errorf("after the completion: %v, %v, %v", done.ReplayUntil.Sub(done.CompletedAt), done.KnownUntil.Sub(done.CompletedAt), err)
	}
}

// A listing goes through several pages, with long bodies, and a pool of one serves
// other calls between two yields.
func TestListPages(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{size: 1})
	const keys = 2*listPage + 7
	l.exec(fmt.Sprintf(`INSERT INTO %s (id, %s, sweep_after) SELECT md5(i::text)::uuid, 'shop', 'pay', 'bulk' || i, 1, 1, 1, md5(i::text)::uuid, i, 1, false, 1, `+
		`NULL, '', 0, NULL, now(), NULL, NULL, NULL, NULL, '', NULL, now() FROM generate_series(1, %d) AS i`, l.names.Records, columns, keys))
	// Their ids are none of idem's, which a listing must notice.
	for _, err := range l.List(soon(t), backend.Filter{}) {
		if !errors.Is(err, backend.ErrCorruptRecord) {
			t.Fatalf("List over rows of other keys: %v", err)
		}
	}
	l.exec("DELETE FROM " + l.names.Records)
	for i := range keys {
		r := reserveOf(fmt.Sprint("key", i))
		r.ID.Operation = []string{"pay", "ship"}[i%2]
		st := l.reserveStmt(&r, "1s")
		if err := l.db.Do(soon(t), st); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			l.complete(completion(r, strings.Repeat("long", listBody)))
		}
	}
	seen := map[string]bool{}
	for rec, err := range l.List(soon(t), backend.Filter{Operation: "ship"}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[rec.ID.Key] {
			t.Fatalf("List shows %s twice", rec.ID.Key)
		}
		seen[rec.ID.Key] = true
		if got, err := l.Get(soon(t), rec.ID); err != nil || !bytes.Equal(got.Body, rec.Body) {
			t.Fatalf("Get inside List: %v, %d bytes of body, listed with %d", err, len(got.Body), len(rec.Body))
		}
	}
	if len(seen) != keys/2 {
		t.Errorf("List shows %d records; want %d", len(seen), keys/2)
	}
}
