package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// TestCaseC40_FlushInMidAttempt: a server that has forgotten everything, as an empty
// replica after its promotion, lets nobody complete what it does not know.
func TestCaseC40_FlushInMidAttempt(t *testing.T) {
	t.Parallel()
	s := newStore(t, newClient(t, testdb.StartRedis(t).Addr()), "")
	for _, other := range []bool{false, true} {
		a, b := request("k"), request("k")
		first, err := s.Reserve(t.Context(), a)
		if err != nil || first.Outcome != backend.Acquired {
			t.Fatal(first.Outcome, err)
		}
		if err := s.client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		flushScripts(t, s)
		if other {
			// A fence is the server's millisecond: nothing is left to tell two apart that
			// begin in the same one.
			for began := first.Record.ReservedAt.UnixMilli(); ; {
				at, err := s.client.Time(t.Context()).Result()
				if err != nil {
					t.Fatal(err)
				}
				if at.UnixMilli() > began {
					break
				}
			}
			res, err := s.Reserve(t.Context(), b)
			if err != nil || res.Outcome != backend.Acquired {
				t.Fatal(res.Outcome, err)
			}
			if res.Record.Fence <= first.Record.Fence {
				t.Errorf("after the flush the fence went from %d to %d", first.Record.Fence, res.Record.Fence)
			}
			if _, err := s.Complete(t.Context(), completion(b.Ref, "B")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Complete(t.Context(), completion(a.Ref, "A")); !errors.Is(err, backend.ErrLeaseLost) {
			t.Errorf("A's completion, B executed %v: %v; want ErrLeaseLost", other, err)
		}
		rec, err := s.Get(t.Context(), a.ID)
		if other && (err != nil || string(rec.Body) != "B") || !other && !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("afterwards, B executed %v, there is %q, %v", other, rec.Body, err)
		}
		if err := s.client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCaseC40_FullServerFailsClosed: no room under noeviction is an error that says so,
// and nothing is reserved.
func TestCaseC40_FullServerFailsClosed(t *testing.T) {
	t.Parallel()
	client := newClient(t, testdb.StartRedis(t, "--maxmemory-policy", "noeviction").Addr())
	s := newStore(t, client, "")
	owner, held := request("owner"), request("held")
	held.OnAbandoned = backend.Hold
	for _, r := range []backend.ReserveRequest{owner, held} {
		if _, err := s.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []backend.Abandoned{backend.Rerun, backend.Hold} {
		r := request("new")
		r.OnAbandoned = policy
		_, err := s.Reserve(t.Context(), r)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Code != "OOM" || !errors.Is(err, ErrRefused) || errors.Is(err, backend.ErrOutcomeUnknown) {
			t.Errorf("Reserve under %v on a full server: %v; want OOM", policy, err)
		}
	}
	if _, err := s.Complete(t.Context(), completion(owner.Ref, "x")); !errors.Is(err, ErrRefused) {
		t.Errorf("Complete on a full server: %v; want a refusal", err)
	}
	if _, err := s.Get(t.Context(), owner.ID); err != nil {
		t.Errorf("Get on a full server: %v", err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), request("new").ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("after a refused reserve: %v; want ErrNotFound", err)
	}
	if _, err := s.Complete(t.Context(), completion(owner.Ref, "x")); err != nil {
		t.Errorf("Complete once there is room: %v", err)
	}
}

// TestCaseC40_RestartBetweenSteps: with every write synced, nothing that was
// acknowledged is lost when the server is killed between any two steps.
func TestCaseC40_RestartBetweenSteps(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStore(t, newClient(t, srv.Addr()), "")
	again := func() {
		t.Helper()
		srv.Kill(t)
		srv.Restart(t)
	}
	r := request("k")
	res, err := s.Reserve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	again()
	if got, err := s.Reserve(t.Context(), r); err != nil || got.Outcome != backend.Acquired || got.Record.Fence != res.Record.Fence || !got.Record.LeaseUntil.Equal(res.Record.LeaseUntil) {
		t.Fatalf("a copy of the reserve after a restart: %v, fence %d, %v; want acquired with fence %d", got.Outcome, got.Record.Fence, err, res.Record.Fence)
	}
	if err := s.Renew(t.Context(), r.Ref, 3*time.Hour); err != nil {
		t.Fatal(err)
	}
	again()
	if err := s.Release(t.Context(), r.Ref); err != nil {
		t.Fatal(err)
	}
	again()
	r.Owner, r.TakeOver = token(), res.Record.Fence
	if res, err = s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired || res.Record.Attempt != 2 {
		t.Fatalf("a takeover after a restart: %v, %+v, %v", res.Outcome, res.Record, err)
	}
	again()
	if _, err := s.Complete(t.Context(), completion(r.Ref, "kept")); err != nil {
		t.Fatal(err)
	}
	again()
	if rec, err := s.Get(t.Context(), r.ID); err != nil || string(rec.Body) != "kept" {
		t.Fatalf("after a restart: %q, %v; want the acknowledged result", rec.Body, err)
	}
}

// TestDownServerIsUnknownAndSilent: no reply is an unknown outcome, and the error
// tells neither address nor password nor key.
func TestDownServerIsUnknownAndSilent(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t, "--requirepass", "s3cret-word")
	opt, err := redis.ParseURL(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	opt.MaxRetries = -1
	client := redis.NewClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, "")
	srv.Kill(t)
	r := request("raw-key-text")
	_, reserve := s.Reserve(t.Context(), r)
	_, get := s.Get(t.Context(), r.ID)
	var list error
	for _, err := range s.List(t.Context(), backend.Filter{}) {
		list = err
	}
	_, fresh := New(t.Context(), client, nil)
	_, opened := Open(t.Context(), srv.URL(), nil)
	for name, err := range map[string]error{"Reserve": reserve, "Get": get, "List": list, "New": fresh, "Open": opened} {
		if err == nil {
			t.Errorf("%s on a dead server succeeded", name)
			continue
		}
		if errors.Is(err, backend.ErrOutcomeUnknown) != (name == "Reserve") {
			t.Errorf("%s: %v; unknown is right for a write only", name, err)
		}
		for _, secret := range []string{"127.0.0.1", strings.Split(srv.Addr(), ":")[1], "s3cret-word", r.ID.Key} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error %q tells %q", name, err, secret)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t, "--requirepass", "s3cret-word")
	if _, err := New(t.Context(), newClient(t, srv.Addr()), nil); !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("without a password: %v; want a refusal", err)
	}
	opt, err := redis.ParseURL(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, "")
	r := request("k")
	if err := client.LPush(t.Context(), s.key(&r.ID), "x").Err(); err != nil {
		t.Fatal(err)
	}
	held := r
	held.OnAbandoned = backend.Hold
	_, reserve := s.Reserve(t.Context(), r)
	_, hold := s.Reserve(t.Context(), held)
	_, complete := s.Complete(t.Context(), completion(r.Ref, "x"))
	_, get := s.Get(t.Context(), r.ID)
	for name, err := range map[string]error{"Reserve": reserve, "Reserve under Hold": hold, "Complete": complete, "Get": get, "Release": s.Release(t.Context(), r.Ref)} {
		if !errors.Is(err, backend.ErrCorruptRecord) {
			t.Errorf("%s over a list in the record's place: %v; want ErrCorruptRecord", name, err)
		}
	}
	// A replica refuses writes.
	single := redis.NewClient(&redis.Options{Addr: opt.Addr, Password: opt.Password, MaxRetries: -1})
	t.Cleanup(func() { _ = single.Close() })
	other := newStore(t, single, "other:")
	if err := client.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Reserve(t.Context(), request("k")); !errors.Is(err, ErrRefused) {
		t.Errorf("Reserve on a replica: %v; want a refusal", err)
	}
}
