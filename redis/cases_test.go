package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// The field cases on a real server. Every step has a handle of its own, which knows
// nothing of the others' reservations. C01 is in lost_test.go, C32 in cluster_test.go,
// C40 in forgets_test.go and lane_test.go.

// ledger counts effects outside the store.
type ledger map[string]int

func (l ledger) does(key, value string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { l[key]++; return value, nil }
}

// handles opens stores on one server.
func handles(t *testing.T, client redis.UniversalClient, o *idem.Options) func() *idem.Store {
	prefix := newPrefix()
	return func() *idem.Store {
		t.Helper()
		store, err := idem.New(newStore(t, client, prefix), o)
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
}

func wantValue(t *testing.T, res idem.Result[string], err error, value string, replayed bool) {
	t.Helper()
	if err != nil || res.Value != value || res.Replayed != replayed {
		t.Errorf("answered %q, replayed %v, %v; want %q, replayed %v", res.Value, res.Replayed, err, value, replayed)
	}
}

// TestCaseC05_OldOwnerCannotFinish: an owner that lost its lease changes nothing, whether
// the handle remembers its reservation or not.
func TestCaseC05_OldOwnerCannotFinish(t *testing.T) {
	t.Parallel()
	client := newClient(t, testdb.Redis(t).Addr())
	prefix := newPrefix()
	open := func() *Store { return newStore(t, client, prefix) }
	for _, remembers := range []bool{false, true} {
		for _, how := range []string{"complete", "release"} {
			a := request(fmt.Sprint(how, remembers))
			a.TTL = 300 * time.Millisecond
			own := open()
			first, err := own.Reserve(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if !remembers {
				own = open()
			}
			b := a
			b.Owner, b.TTL, b.TakeOver = token(), time.Hour, first.Record.Fence
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				res, err := open().Reserve(t.Context(), b)
				if err != nil || time.Now().After(end) {
					t.Fatalf("takeover: %v, %v", res.Outcome, err)
				}
				if res.Outcome == backend.Acquired {
					break
				}
			}
			if how == "complete" {
				if _, err := own.Complete(t.Context(), completion(a.Ref, "A")); !errors.Is(err, backend.ErrLeaseLost) {
					t.Errorf("the old owner completes: %v; want ErrLeaseLost", err)
				}
			} else if err := own.Release(t.Context(), a.Ref); err != nil {
				t.Errorf("the old owner releases: %v; want nothing to happen", err)
			}
			c := a
			c.Owner = token()
			res, err := open().Reserve(t.Context(), c)
			if err != nil || res.Outcome != backend.Existing || res.Record.Owner != b.Owner || !res.Record.IsLive(res.Now) {
				t.Errorf("a third caller was answered %v, %+v, %v; want the second's attempt", res.Outcome, res.Record, err)
			}
			if _, err := open().Complete(t.Context(), completion(b.Ref, "B")); err != nil {
				t.Error(err)
			}
			if rec, err := open().Get(t.Context(), a.ID); err != nil || string(rec.Body) != "B" {
				t.Errorf("in the end there is %q, %v; want B", rec.Body, err)
			}
		}
	}
}

// TestCaseC09_WorkDoneRecordingFails: a server that has become full while the operation
// ran, or before.
func TestCaseC09_WorkDoneRecordingFails(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t, "--maxmemory-policy", "noeviction")
	open := handles(t, newClient(t, srv.Addr()), &idem.Options{LeaseTTL: 2 * time.Second})
	full := func(on bool) { srv.Do(t, "CONFIG", "SET", "maxmemory", map[bool]string{true: "1", false: "0"}[on]) }
	effects := ledger{}
	for _, heals := range []bool{false, true} {
		key := idem.Key(fmt.Sprint("heals ", heals))
		res, err := idem.Execute(t.Context(), open(), pay, key, hash, func(ctx context.Context) (string, error) {
			full(true)
			if heals {
				time.AfterFunc(300*time.Millisecond, func() { full(false) })
			}
			return effects.does(string(key), "done")(ctx)
		})
		if heals {
			wantValue(t, res, err, "done", false)
		} else {
			if !errors.Is(err, idem.ErrOutcomeUnknown) || res.Value != "done" {
				t.Errorf("answered %q, %v; want the result, and its recording unknown", res.Value, err)
			}
			full(false)
		}
		if effects[string(key)] != 1 {
			t.Errorf("%d effects", effects[string(key)])
		}
		// After the lease the policy decides; this is Rerun.
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			res, err = idem.Execute(t.Context(), open(), pay, key, hash, effects.does(string(key), "again"))
			if err == nil {
				break
			}
			if !errors.Is(err, idem.ErrInFlight) || time.Now().After(end) {
				t.Fatalf("the next call: %v", err)
			}
		}
		if heals {
			wantValue(t, res, err, "done", true)
		} else {
			wantValue(t, res, err, "again", false)
		}
	}
	full(true)
	if _, err := idem.Execute(t.Context(), open(), pay, "late", hash, effects.does("late", "x")); !errors.Is(err, idem.ErrUnavailable) || effects["late"] != 0 {
		t.Errorf("a full server: %v, %d effects; want unavailable and none", err, effects["late"])
	}
}

// TestCaseC18_FingerprintStays with the record until a release.
func TestCaseC18_FingerprintStays(t *testing.T) {
	t.Parallel()
	open := handles(t, newClient(t, testdb.Redis(t).Addr()), nil)
	other := idem.FingerprintBytes([]byte("200 EUR"))
	effects := ledger{}
	call := func(key idem.Key, h idem.Fingerprint, fn func(context.Context) (string, error)) (idem.Result[string], error) {
		return idem.Execute(t.Context(), open(), pay, key, h, fn)
	}
	mismatch := func(key idem.Key, h idem.Fingerprint) {
		t.Helper()
		res, err := call(key, h, effects.does("wrong", "x"))
		if !errors.Is(err, idem.ErrFingerprintMismatch) || res != (idem.Result[string]{}) || strings.Contains(err.Error(), "secret") {
			t.Errorf("another request: %+v, %v; want a mismatch that carries nothing", res, err)
		}
	}
	res, err := call("k", hash, effects.does("k", "secret"))
	wantValue(t, res, err, "secret", false)
	mismatch("k", other)
	mismatch("k", idem.NoFingerprint())
	res, err = call("k", hash, effects.does("k", "x"))
	wantValue(t, res, err, "secret", true)
	res, err = call("running", hash, func(context.Context) (string, error) {
		mismatch("running", other)
		return "v", nil
	})
	wantValue(t, res, err, "v", false)
	if _, err := call("released", hash, func(context.Context) (string, error) { return "", errors.New("declined") }); err == nil {
		t.Error("no error")
	}
	res, err = call("released", other, effects.does("released", "v"))
	wantValue(t, res, err, "v", false)
	mismatch("released", hash)
	if effects["wrong"] != 0 || effects["k"] != 1 {
		t.Errorf("effects: %v", effects)
	}
}

// TestCaseC24_ScopeAndKeyApart: parts that look alike when joined are other identities,
// and nothing folds them on the server.
func TestCaseC24_ScopeAndKeyApart(t *testing.T) {
	t.Parallel()
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	var all []backend.ID
	for _, p := range [][2]string{
		{"a:b", "c"}, {"a", "b:c"}, {"a/b", "c"}, {"a", "b/c"}, {"a", "bc"}, {"ab", "c"}, {"A", "k"}, {"a", "k"},
		{"a", "\u00e9"}, {"a", "e\u0301"}, {"a", "k "}, {"a*", "k"}, {"a%", "k"}, {"a_", "k"}, {"[a]", "k"},
	} {
		all = append(all, backend.ID{Tenant: p[0], Operation: "o", Key: p[1]}, backend.ID{Operation: p[0], Key: p[1]})
	}
	for i, id := range all {
		r := request("")
		r.ID = id
		if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
			t.Errorf("%q: %v, %v; want a key of its own", id, res.Outcome, err)
		} else if _, err := s.Complete(t.Context(), completion(r.Ref, fmt.Sprint(i))); err != nil {
			t.Error(err)
		}
	}
	for i, id := range all {
		if rec, err := s.Get(t.Context(), id); err != nil || string(rec.Body) != fmt.Sprint(i) {
			t.Errorf("%q answers %q, %v; want %d", id, rec.Body, err, i)
		}
	}
}

// TestCaseC37_MissingDeadline: a record without one is held, neither over nor free, and a
// dead context reserves nothing.
func TestCaseC37_MissingDeadline(t *testing.T) {
	t.Parallel()
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	r := request("k")
	_, fresh, err := r.Apply(backend.Record{}, time.Now().Add(-time.Hour), 7)
	if err != nil {
		t.Fatal(err)
	}
	rec := fresh.Record
	rec.LeaseUntil = time.Time{}
	plant(t, s, &rec)
	again := request("k")
	res, err := s.Reserve(t.Context(), again)
	if err != nil || res.Outcome != backend.Existing || !res.Record.IsLive(res.Now) || res.Record.Expired(res.Now) {
		t.Errorf("a plain reserve: %v, %+v, %v; want it held", res.Outcome, res.Record, err)
	}
	again.TakeOver = rec.Fence
	if res, err = s.Reserve(t.Context(), again); err != nil || res.Outcome != backend.Existing {
		t.Errorf("a takeover: %v, %v; want it held", res.Outcome, err)
	}
	for _, ttl := range []time.Duration{0, -time.Second} {
		r := request("new")
		r.TTL = ttl
		if _, err := s.Reserve(t.Context(), r); !errors.Is(err, backend.ErrInvalidRequest) {
			t.Errorf("a lease of %v: %v; want ErrInvalidRequest", ttl, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	if _, err := s.Reserve(ctx, request("new")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("a dead context: %v", err)
	}
	if _, err := s.Get(t.Context(), request("new").ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("refused reserves left a record: %v", err)
	}
}

// TestCaseC41_Limits: what the store cannot keep is refused before the server is asked.
func TestCaseC41_Limits(t *testing.T) {
	t.Parallel()
	client := newClient(t, testdb.Redis(t).Addr())
	s := newStore(t, client, newPrefix())
	sent := new(counter)
	client.AddHook(sent)
	for _, key := range []string{"", strings.Repeat("x", backend.MaxKey+1), strings.Repeat("x", 32769), "a\x00b", "\xff"} {
		_, err := s.Reserve(t.Context(), request(key))
		if !errors.Is(err, backend.ErrInvalidKey) || sent.sent.Load() != 0 || key != "" && strings.Contains(err.Error(), key) {
			t.Errorf("a key of %d bytes: %v after %d commands; want it refused here, unquoted", len(key), err, sent.sent.Load())
		}
	}
	big := request("big")
	if _, err := s.Complete(t.Context(), completion(big.Ref, strings.Repeat("x", backend.MaxBody+1))); !errors.Is(err, backend.ErrInvalidRequest) || sent.sent.Load() != 0 {
		t.Errorf("a result that is too large: %v after %d commands", err, sent.sent.Load())
	}
	for _, key := range []string{"line\nbreak", "\U0001F4B8", strings.Repeat("x", backend.MaxKey), strings.Repeat("{", backend.MaxKey)} {
		for _, size := range []int{0, 1 << 20} {
			r := request(key)
			r.ID.Operation = fmt.Sprint("size ", size)
			body := strings.Repeat("\x00\xff", size/2)
			if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
				t.Fatalf("%q: %v, %v", key, res.Outcome, err)
			}
			if _, err := s.Complete(t.Context(), completion(r.Ref, body)); err != nil {
				t.Fatal(err)
			}
			if rec, err := s.Get(t.Context(), r.ID); err != nil || string(rec.Body) != body {
				t.Errorf("%q: a result of %d bytes comes back with %d, %v", key, size, len(rec.Body), err)
			}
		}
	}
}
