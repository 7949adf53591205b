package idem_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// dated returns a policy whose keys carry their issue time in the given way, with a
// dedup window of an hour and a skew of a minute.
func dated(t *testing.T, by expiry.Issued) *expiry.Policy {
	t.Helper()
	p, err := expiry.New(expiry.Rule{Operation: "*", Replay: time.Hour, Dedup: time.Hour, Issued: by, Skew: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// uuidv7At returns a UUID of version 7 that was issued at a time.
func uuidv7At(at time.Time) string {
	u := uuid.Must(uuid.NewRandom())
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6] = u[6]&0x0f | 0x70
	return u.String()
}

// TestR23_LateKeyIsRefused: the record is consulted first; only where the store has
// no memory of the key does its age decide, by the clock of the store.
func TestR23_LateKeyIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Retention: dated(t, expiry.ByUUIDv7)})
		begun := time.Now()
		used, never := uuidv7At(begun), uuidv7At(begun.Add(time.Millisecond))
		res, err := run(t.Context(), s.store, used, does(s.ledger, used, "v"))
		wantRan(t, res, err, "v")

		time.Sleep(58 * time.Minute)
		res, err = run(t.Context(), s.store, used, does(s.ledger, used, "again"))
		wantReplayed(t, res, err, "v")

		time.Sleep(5 * time.Minute) // the record is gone, the key older than it lived
		for _, key := range []string{used, never} {
			for range 2 { // what the refusal leaves behind must not pass for memory
				_, err = run(t.Context(), s.store, key, does(s.ledger, key, "late"))
				wantOnly(t, err, idem.ErrKeyExpired)
				if idem.Advise(err) != idem.AdviceAsk {
					t.Errorf("advice %v", idem.Advise(err))
				}
			}
			if _, err := s.store.Get(t.Context(), testScope(), idem.Key(key)); !errors.Is(err, idem.ErrNotFound) {
				t.Errorf("a refused key left a record: %v", err)
			}
		}
		s.ledger.want(t, used, 1)
		s.ledger.want(t, never, 0)

		fresh := uuidv7At(time.Now())
		res, err = run(t.Context(), s.store, fresh, does(s.ledger, fresh, "v"))
		wantRan(t, res, err, "v")

		future := uuidv7At(time.Now().Add(2 * time.Minute))
		_, err = run(t.Context(), s.store, future, does(s.ledger, future, "v"))
		wantOnly(t, err, idem.ErrInvalidKey)
		near := uuidv7At(time.Now().Add(30 * time.Second))
		res, err = run(t.Context(), s.store, near, does(s.ledger, near, "v"))
		wantRan(t, res, err, "v")
	})
}

// TestR23_WrongKeysAreRefusedUnasked: a key that does not carry what its operation
// declares is refused before the store is asked.
func TestR23_WrongKeysAreRefusedUnasked(t *testing.T) {
	t.Parallel()
	for by, want := range map[expiry.Issued]error{expiry.ByUUIDv7: idem.ErrInvalidKey, expiry.ByULID: idem.ErrInvalidKey, expiry.ByOption: idem.ErrInvalidOption} {
		s := newSetup(t, &idem.Options{Retention: dated(t, by)})
		_, err := run(t.Context(), s.store, "order-1", does(s.ledger, "k", "v"))
		wantOnly(t, err, want)
		if n := s.faulty.Calls("Reserve"); n != 0 {
			t.Errorf("%v: %d reserves", by, n)
		}
		s.ledger.want(t, "k", 0)
	}
}

// TestR23_IssuedAtOfTheCall: the time of the call counts where it is given, declared
// or not, and the earlier one where the key says another.
func TestR23_IssuedAtOfTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, p := range []*expiry.Policy{dated(t, expiry.ByOption), keep(time.Hour, time.Hour)} {
			s := newSetup(t, &idem.Options{Retention: p})
			at := idem.IssuedAt(time.Now().Add(-2 * time.Hour))
			_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), at)
			wantOnly(t, err, idem.ErrKeyExpired)
			s.ledger.want(t, "k", 0)
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), idem.IssuedAt(time.Now()))
			wantRan(t, res, err, "v")
			res, err = run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), at)
			wantReplayed(t, res, err, "v")
		}
	})
}

// TestR23_CrashWhileALateKeyIsRefused: the process dies after it has reserved a late
// key and before it takes it back. The takeover must not run it.
func TestR23_CrashWhileALateKeyIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Retention: dated(t, expiry.ByUUIDv7), LeaseTTL: time.Second})
		late := uuidv7At(time.Now())
		time.Sleep(2 * time.Hour)
		r := backend.ReserveRequest{
			Ref:         backend.Ref{ID: backend.ID{Operation: testScope().Operation, Tenant: testScope().Tenant, Key: late}, Owner: [16]byte{1}},
			Fingerprint: nil, TTL: time.Second, KnownFor: time.Hour, OnAbandoned: backend.Rerun,
		}
		if _, err := s.mem.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		_, err := idem.Execute(t.Context(), s.store, testScope(), idem.Key(late), idem.NoFingerprint(), does(s.ledger, "late", "v"))
		wantOnly(t, err, idem.ErrKeyExpired)
		s.ledger.want(t, "late", 0)
	})
}

// TestR23_InTransactions: the reservation of a late key is rolled back.
func TestR23_InTransactions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTxSetup(t, &idem.Options{Retention: dated(t, expiry.ByOption)})
		ran := false
		_, err := idem.ExecuteTx(t.Context(), s.store, testScope(), "k", hashOf("h"), func(context.Context, *fakeTx) (string, error) {
			ran = true
			return "v", nil
		}, idem.IssuedAt(time.Now().Add(-2*time.Hour)))
		wantOnly(t, err, idem.ErrKeyExpired)
		if ran {
			t.Error("fn ran")
		}
		res, err := idem.ExecuteTx(t.Context(), s.store, testScope(), "k", hashOf("h"), func(context.Context, *fakeTx) (string, error) {
			return "v", nil
		}, idem.IssuedAt(time.Now()))
		wantRan(t, res, err, "v")
	})
}
