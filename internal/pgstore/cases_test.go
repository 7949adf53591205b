package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// isolations are the setups with another default isolation each.
func isolations(t *testing.T, run func(t *testing.T, s setup)) {
	for _, s := range setups() {
		if s.mode == pgx.QueryExecModeCacheStatement {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				run(t, s)
			})
		}
	}
}

// C05: an owner that lost its lease finishes on top of the new one, in every way.
func TestC05LateOwner(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	a := reserveOf("key")
	old := l.acquire(a)
	l.advance(2 * time.Minute)
	b := reserveOf("key")
	b.TakeOver = old.Fence
	taken := l.acquire(b)
	if _, err := l.Complete(soon(t), completion(a, "A")); !errors.Is(err, backend.ErrLeaseLost) {
		t.Errorf("Complete by the old owner: %v", err)
	}
	if err := l.Release(soon(t), a.Ref); err != nil {
		t.Errorf("Release by the old owner: %v", err)
	}
	if err := l.Renew(soon(t), a.Ref, time.Hour); !errors.Is(err, backend.ErrLeaseLost) {
		t.Errorf("Renew by the old owner: %v", err)
	}
	if rec, err := l.Get(soon(t), a.ID); err != nil || rec.Owner != b.Owner || rec.State != backend.InFlight || !rec.LeaseUntil.Equal(taken.LeaseUntil) {
		t.Errorf("after that the record is %+v, %v", rec, err)
	}
	l.complete(completion(b, "B"))
	if res, err := l.Reserve(soon(t), reserveOf("key")); err != nil || string(res.Record.Body) != "B" {
		t.Errorf("the replay is %q, %v", res.Record.Body, err)
	}
}

// C08: the row that a reserve conflicts with is not in its snapshot, and is
// committed, rolled back, or never ended.
func TestC08ConflictWithAnUnseenRow(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, s setup) {
		l := newLease(t, newBase(t, ""), s)
		waits := func(key string) (backend.ReserveRequest, chan any) {
			r, answer := reserveOf(key), make(chan any, 1)
			r.Wait = time.Minute
			go func() {
				res, err := l.Reserve(soon(t), r)
				if err != nil {
					answer <- err
					return
				}
				answer <- res.Outcome
			}()
			deadline := time.After(30 * time.Second)
			for l.ask("SELECT count(*) FROM pg_stat_activity WHERE "+mine+" AND wait_event_type = 'Lock'") == "0" {
				select {
				case got := <-answer:
					t.Fatalf("%s: the reserve did not wait: %v", key, got)
				case <-deadline:
					t.Fatalf("%s: the reserve does not wait", key)
				case <-time.After(2 * time.Millisecond):
				}
			}
			return r, answer
		}
		tx := l.hold(reserveOf("a"))
		_, answer := waits("a")
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-answer; got != backend.Existing {
			t.Errorf("(a) the other one commits: %v; want existing", got)
		}

		tx = l.hold(reserveOf("b"))
		_, answer = waits("b")
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-answer; got != backend.Acquired {
			t.Errorf("(b) the other one rolls back: %v; want acquired", got)
		}

		tx = l.hold(reserveOf("c"))
		ctx, cancel := context.WithTimeout(soon(t), 200*time.Millisecond)
		defer cancel()
		r := reserveOf("c")
		r.Wait = time.Minute
		if res, err := l.Reserve(ctx, r); !errors.Is(err, context.DeadlineExceeded) && (err != nil || res.Outcome != backend.Busy) {
			t.Errorf("(c) the other one never ends: %v, %v; want the context's error", res.Outcome, err)
		}
		if res, err := l.Reserve(soon(t), reserveOf("c")); err != nil || res.Outcome != backend.Busy {
			t.Errorf("(c) the next call: %v, %v; want busy", res.Outcome, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}

		// (d) the row goes between the conflict and the read.
		old := reserveOf("d")
		old.TTL, old.KnownFor = time.Minute, time.Minute
		fence := l.acquire(old).Fence
		l.advance(time.Hour)
		if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed == 0 {
			t.Fatalf("Expire: %+v, %v", done, err)
		}
		r = reserveOf("d")
		r.TakeOver = fence
		if res, err := l.Reserve(soon(t), r); err != nil || res.Outcome != backend.Gone || res.Now.IsZero() {
			t.Errorf("(d) a takeover of what is gone: %+v, %v; want gone", res, err)
		}
		l.acquire(reserveOf("d"))
	})
}

// C08, the mass run: of many that reserve, take over, sweep and complete one key at
// once exactly one becomes the owner of each.
func TestC08ExactlyOneOwner(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, s setup) {
		s.size = 8
		b := newBase(t, "")
		l := newLease(t, b, s)
		store := New(l.db, b.patient())
		const keys, callers = 60, 8
		var owners [keys]atomic.Int32
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for k := range keys {
					r := reserveOf(fmt.Sprint("key", k))
					res, err := store.Reserve(soon(t), r)
					if err != nil {
						t.Errorf("Reserve: %v", err)
						return
					}
					if res.Outcome != backend.Acquired {
						continue
					}
					owners[k].Add(1)
					if _, err := store.Complete(soon(t), completion(r, "x")); err != nil {
						t.Errorf("Complete: %v", err)
					}
				}
			})
		}
		wg.Wait()
		for k := range owners {
			if n := owners[k].Load(); n != 1 {
				t.Errorf("key %d had %d owners", k, n)
			}
		}
	})
}

// C18: the fingerprint stays with the record, through handles that know nothing.
func TestC18FingerprintStays(t *testing.T) {
	t.Parallel()
	b := newBase(t, "")
	with := func(digit string) backend.ReserveRequest {
		r := reserveOf("key")
		if digit != "" {
			r.Fingerprint = append([]byte{1}, strings.Repeat(digit, 32)...)
		}
		return r
	}
	ask := func(when string, r backend.ReserveRequest, want backend.Outcome) {
		t.Helper()
		l := newLease(t, b, setup{size: 1})
		defer l.db.Pool.Close()
		res, err := l.Reserve(soon(t), r)
		if err != nil || res.Outcome != want || want == backend.Mismatch && len(res.Record.Body) > 0 {
			t.Errorf("%s: %v, %v, body %q; want %v", when, res.Outcome, err, res.Record.Body, want)
		}
	}
	first := with("1")
	ask("at first", first, backend.Acquired)
	ask("in flight, the same", with("1"), backend.Existing)
	ask("in flight, another", with("2"), backend.Mismatch)
	ask("in flight, none", with(""), backend.Mismatch)
	newLease(t, b, setup{}).complete(completion(first, "secret"))
	ask("completed, the same", with("1"), backend.Existing)
	ask("completed, another", with("2"), backend.Mismatch)
	ask("completed, none", with(""), backend.Mismatch)
}

// C23: a server that wants statements again is given them, a bounded number of
// times, and the move happens once. A trigger plays the server.
func TestC23RetriesAreBounded(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	p := l.names.Prefix
	l.exec(fmt.Sprintf(`CREATE SEQUENCE %[2]sfails; CREATE FUNCTION %[2]sfail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('%[2]sfails') %% 4 <> 0 OR NEW.key = 'never' THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[2]sfail()`, l.names.Records, p))
	r := reserveOf("key")
	l.acquire(r)
	if err := l.Renew(soon(t), r.Ref, time.Hour); err != nil {
		t.Error(err)
	}
	l.complete(completion(r, "x"))
	if rev := l.ask("SELECT rev FROM " + l.names.Records); rev != "3" {
		t.Errorf("three moves left rev %s", rev)
	}
	before := l.ask("SELECT last_value FROM " + p + "fails")
	res, err := l.Reserve(soon(t), reserveOf("never"))
	if err == nil || errors.Is(err, backend.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "40001") {
		t.Errorf("a reserve that never gets through: %v, %v", res.Outcome, err)
	}
	if n := l.ask("SELECT last_value - " + before + " FROM " + p + "fails"); n != fmt.Sprint(1+maxTries) { // once for the combiner, which holds up others
		t.Errorf("it was sent %s times; want %d", n, 1+maxTries)
	}
	ctx, cancel := context.WithCancel(soon(t))
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := l.Reserve(ctx, reserveOf("never")); err == nil {
		t.Error("a reserve that never gets through, and whose caller leaves, succeeds")
	}
}

// C24: parts that look alike when they are joined, folded or taken for patterns.
func TestC24ScopesAreApart(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	ids := []backend.ID{
		{Tenant: "a:b", Operation: "o", Key: "c"}, {Tenant: "a", Operation: "o", Key: "b:c"}, {Tenant: "a", Operation: "b:o", Key: "c"},
		{Tenant: "a/b", Operation: "o", Key: "c"}, {Tenant: "a", Operation: "o", Key: "b/c"},
		{Tenant: "a", Operation: "o", Key: "bc"}, {Tenant: "ab", Operation: "o", Key: "c"},
		{Tenant: "A", Operation: "o", Key: "k"}, {Tenant: "a", Operation: "o", Key: "k"}, {Tenant: "a", Operation: "o", Key: "k "}, {Tenant: "a", Operation: "O", Key: "k"},
		{Tenant: "a", Operation: "o", Key: "\u00e9"}, {Tenant: "a", Operation: "o", Key: "e\u0301"}, {Operation: "o", Key: "k"},
		{Tenant: "a%", Operation: "o", Key: "k"}, {Tenant: "a_", Operation: "o", Key: "k"}, {Tenant: "a*", Operation: "o", Key: "k"},
	}
	for i, id := range ids {
		r := reserveOf("")
		r.ID = id
		l.acquire(r)
		l.complete(completion(r, fmt.Sprint("answer ", i)))
	}
	for i, id := range ids {
		if rec, err := l.Get(soon(t), id); err != nil || string(rec.Body) != fmt.Sprint("answer ", i) {
			t.Errorf("%q: %q, %v", id, rec.Body, err)
		}
	}
	for _, tenant := range []string{"a", "a%", "a_", "a*", "A"} {
		want := 0
		for _, id := range ids {
			if id.Tenant == tenant {
				want++
			}
		}
		for rec, err := range l.List(soon(t), backend.Filter{Tenant: tenant}) {
			if want--; err != nil || rec.ID.Tenant != tenant {
				t.Errorf("List of tenant %q: %q, %v", tenant, rec.ID, err)
			}
		}
		if want != 0 {
			t.Errorf("List of tenant %q: %d are missing", tenant, want)
		}
	}
}

// C37: a row without a lease deadline is held: never over, never swept.
func TestC37NoDeadline(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	r := reserveOf("key")
	fence := l.acquire(r).Fence
	l.exec("UPDATE " + l.names.Records + " SET lease_until = NULL")
	l.advance(1000 * time.Hour)
	over := reserveOf("key")
	over.TakeOver = fence
	for _, r := range []backend.ReserveRequest{reserveOf("key"), over} {
		if res, err := l.Reserve(soon(t), r); err != nil || res.Outcome != backend.Existing || res.Record.State != backend.InFlight {
			t.Errorf("Reserve: %+v, %v; want it held", res, err)
		}
	}
	if done, err := l.Expire(soon(t), backend.ExpireRequest{}); err != nil || done.Removed != 0 {
		t.Errorf("Expire: %+v, %v", done, err)
	}
	if err := l.Renew(soon(t), r.Ref, time.Minute); err != nil {
		t.Errorf("Renew: %v", err)
	}
	l.complete(completion(r, "x"))
}

// C41: what a key may be is decided before the server is asked, and all of it is
// stored.
func TestC41Keys(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	for _, key := range []string{"x", strings.Repeat("k", 255), "line\nbreak", "\U0001F511", "'; DROP TABLE records; --", `back\slash`} {
		r := reserveOf(key)
		l.acquire(r)
		body := strings.Repeat("\x00\xff", 1<<19)
		l.complete(completion(r, body))
		if rec, err := l.Get(soon(t), r.ID); err != nil || string(rec.Body) != body || rec.ID != r.ID {
			t.Errorf("%q: %q, %d bytes, %v", key, rec.ID.Key, len(rec.Body), err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", 256), "nul\x00", "\xff"} {
		if _, err := l.Reserve(soon(t), reserveOf(key)); !errors.Is(err, backend.ErrInvalidKey) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	if rows := l.ask("SELECT count(*) FROM " + l.names.Records); rows != "6" {
		t.Errorf("%s rows; want 6", rows)
	}
}
