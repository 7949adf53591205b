package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// TestStoreWaitsForReplicas: a move that a replica does not have is not done, and
// the same move again succeeds once a replica has it.
func TestStoreWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master := testdb.StartRedis(t)
	s, err := New(t.Context(), newClient(t, master.Addr()), &Options{AckReplicas: 1, AckTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	native, held, free := request("native"), request("held"), request("free")
	held.OnAbandoned = backend.Hold
	loose := newStore(t, s.client, "")
	for _, r := range []backend.ReserveRequest{native, held, free} {
		if res, err := loose.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
			t.Fatal(res.Outcome, err)
		}
	}
	rec, err := loose.Get(t.Context(), free.ID)
	if err == nil {
		err = loose.Release(t.Context(), free.Ref)
	}
	if err != nil {
		t.Fatal(err)
	}
	over := request("free")
	over.TakeOver = rec.Fence
	fresh, script := request("new"), request("new, held")
	script.OnAbandoned = backend.Hold
	reserve := func(r backend.ReserveRequest) func() error {
		return func() error {
			res, err := s.Reserve(t.Context(), r)
			if err == nil && res.Outcome != backend.Acquired {
				t.Errorf("Reserve answered %v; want acquired", res.Outcome)
			}
			return err
		}
	}
	moves := []struct {
		name string
		do   func() error
	}{
		{"reserve", reserve(fresh)},
		{"reserve by script", reserve(script)},
		{"take over", reserve(over)},
		{"renew", func() error { return s.Renew(t.Context(), native.Ref, 2*time.Hour) }},
		{"complete", func() error { _, err := s.Complete(t.Context(), completion(native.Ref, "x")); return err }},
	}
	for _, m := range moves {
		for range 2 { // a copy is told the same: the write still has no replica
			if m.name == "renew" {
				continue // a second renewal to the same end writes nothing
			}
			var short *AckError
			if err := m.do(); !errors.As(err, &short) || !errors.Is(err, backend.ErrOutcomeUnknown) || short.Replicas != 0 || short.NeedReplicas != 1 {
				t.Errorf("%s without a replica: %v; want an AckError, 0 of 1", m.name, err)
			}
		}
	}
	testdb.StartReplica(t, master)
	for _, m := range moves {
		if m.name == "renew" {
			continue // completed by now
		}
		// The replica may need a moment to be counted.
		for end := time.Now().Add(30 * time.Second); ; {
			err := m.do()
			if err == nil {
				break
			}
			if !errors.Is(err, backend.ErrOutcomeUnknown) || time.Now().After(end) {
				t.Fatalf("%s again, with a replica: %v; want success", m.name, err)
			}
		}
	}
}
