package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// What reviewers with fresh eyes found. Each test failed before its fix.

// A wrapped Uncertain is still uncertain: taking it for an ordinary error would run
// the operation again.
func TestR11_WrappedUncertainCounts(t *testing.T) {
	for i, wrap := range []func(error) error{
		func(err error) error { return fmt.Errorf("charging: %w", err) },
		func(err error) error { return errors.Join(err, errors.New("and the connection did not close")) },
	} {
		s := newSetup(t, nil)
		boom := errors.New("answer lost")
		k := fmt.Sprint("k", i)
		_, err := run(t.Context(), s.store, k, func(context.Context) (string, error) { return "", wrap(idem.Uncertain(boom)) })
		if !errors.Is(err, idem.ErrUnresolved) || !errors.Is(err, boom) || idem.Advise(err) != idem.AdviceAsk {
			t.Errorf("got %v", err)
		}
		_, err = run(t.Context(), s.store, k, does(s.ledger, k, "again"))
		if !errors.Is(err, idem.ErrUnresolved) {
			t.Errorf("second call: %v", err)
		}
		s.ledger.want(t, k, 0)
	}
}

// The uncertainty of a nested call is that call's own: the outer key is free again.
func TestR11_NestedUncertaintyDoesNotSpread(t *testing.T) {
	s := newSetup(t, nil)
	_, err := run(t.Context(), s.store, "outer", func(ctx context.Context) (string, error) {
		res, err := run(ctx, s.store, "inner", func(context.Context) (string, error) {
			return "", fmt.Errorf("sent: %w", idem.Uncertain(errors.New("answer lost")))
		})
		return res.Value, err
	})
	if !errors.Is(err, idem.ErrUnresolved) {
		t.Errorf("got %v", err)
	}
	if rec := s.record("outer"); rec.State != backend.Open {
		t.Errorf("outer is %v, want open", rec.State)
	}
	if rec := s.record("inner"); rec.State != backend.Uncertain {
		t.Errorf("inner is %v, want uncertain", rec.State)
	}
}

// find is told about the attempt that it asks the world about.
func TestR13_FindKnowsTheAbandonedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		var derived idem.Key
		s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: -1, Err: errors.New("down")})
		recover := idem.RecoverWith(func(ctx context.Context) (string, bool, error) {
			if a := idem.AttemptFrom(ctx); a == nil || a.Number != 1 || a.DeriveKey("charge") != derived {
				t.Errorf("find saw %+v", a)
			}
			return "found", true, nil
		})
		_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
			derived = idem.AttemptFrom(ctx).DeriveKey("charge")
			return "charged", nil
		}, recover)
		if !errors.Is(err, idem.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		s.faulty.Heal()
		time.Sleep(time.Hour)
		res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "again"), recover)
		if err != nil || res.Value != "found" || !res.Replayed {
			t.Errorf("got %+v, %v", res, err)
		}
		s.ledger.want(t, "k", 0)
	})
}

// When the time for recording is over, the error says why it did not work, not
// that time is up.
func TestR10_TheLastRealErrorIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, nil)
		full := errors.New("no room")
		s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: 3, Err: full})
		s.faulty.Add(&backendtest.Fault{Method: "Complete", Times: -1, Block: make(chan struct{})})
		_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
		if !errors.Is(err, idem.ErrOutcomeUnknown) || !errors.Is(err, full) {
			t.Errorf("got %v", err)
		}
	})
}

// Twins with another fingerprint are asked for themselves when the first was
// refused: the key may be theirs. Twins of a success own their value.
func TestR29_TwinsOfTheRefused(t *testing.T) {
	s := newSetup(t, nil)
	scope := idem.Scope{Operation: "pay"}
	b := idem.FingerprintBytes([]byte("B"))
	if _, err := idem.Execute(t.Context(), s.store, scope, "k", b, func(context.Context) ([]byte, error) { return []byte("b"), nil }); err != nil {
		t.Fatal(err)
	}
	identify := func(item string) (idem.Key, idem.Fingerprint) {
		return "k", idem.FingerprintBytes([]byte(item))
	}
	fn := func(context.Context, string) ([]byte, error) { return nil, errors.New("ran") }
	got := idem.ExecuteAll(t.Context(), s.store, scope, []string{"A", "B", "B"}, identify, fn)
	if !errors.Is(got[0].Err, idem.ErrFingerprintMismatch) {
		t.Errorf("A: %+v", got[0])
	}
	for _, r := range got[1:] {
		if r.Err != nil || !r.Replayed || string(r.Value) != "b" {
			t.Errorf("B: %+v", r)
		}
	}

	same := func(string) (idem.Key, idem.Fingerprint) { return "k2", b }
	got = idem.ExecuteAll(t.Context(), s.store, scope, []string{"x", "y"}, same, func(context.Context, string) ([]byte, error) { return []byte("v"), nil })
	got[0].Value[0] = '!'
	if string(got[1].Value) != "v" || !got[1].Replayed {
		t.Errorf("twin: %+v", got[1])
	}
}

// panicCodec panics when it reads.
type panicCodec struct{ idem.Codec }

func (panicCodec) Name() string                         { return "panics" }
func (panicCodec) Decode(backend.ID, []byte, any) error { panic("bad bytes") }

// A decoder's panic is a result that cannot be decoded.
func TestR16_DecoderPanics(t *testing.T) {
	s := newSetup(t, &idem.Options{Codec: panicCodec{idem.JSON()}})
	if _, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v")); err != nil {
		t.Fatal(err)
	}
	_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
	if !errors.Is(err, idem.ErrCorruptRecord) {
		t.Errorf("got %v", err)
	}
	s.ledger.want(t, "k", 1)
}

// A second, different word on a key that a person has settled is not taken for a
// repetition of the first.
func TestResolveAgainDifferently(t *testing.T) {
	s := newSetup(t, nil)
	scope := idem.Scope{Tenant: "acme", Operation: "pay"}
	if _, err := idem.Execute(t.Context(), s.store, scope, "k", idem.NoFingerprint(), func(context.Context) (string, error) {
		return "", idem.Uncertain(errors.New("lost"))
	}); !errors.Is(err, idem.ErrUnresolved) {
		t.Fatal(err)
	}
	rec, err := s.store.Get(t.Context(), scope, "k")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		word idem.Resolution
		want error
	}{
		{idem.Applied("typo", "looked"), nil},
		{idem.Applied("typo", "looked"), nil},
		{idem.Applied("right", "looked again"), idem.ErrStale},
		{idem.NotApplied("no"), idem.ErrStale},
	} {
		if err := s.store.Resolve(t.Context(), scope, "k", rec.Fence, tt.word); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%+v: got %v, want %v", tt.word, err, tt.want)
		}
	}
}
