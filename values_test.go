package idem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

// replays runs fn for key once and again through a fresh handle, and checks that
// the second answer is a replay of want.
func replays[T any](t *testing.T, o *idem.Options, v, want T) {
	t.Helper()
	t.Run(fmt.Sprintf("%T", v), func(t *testing.T) {
		t.Helper()
		s := newSetup(t, o)
		res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", v))
		if err != nil || res.Replayed || !reflect.DeepEqual(res.Value, v) {
			t.Errorf("first answer %#v (replayed: %v), %v; want %#v", res.Value, res.Replayed, err, v)
		}
		res, err = run(t.Context(), s.open(o), "k", does(s.ledger, "k", v))
		if err != nil || !res.Replayed || !reflect.DeepEqual(res.Value, want) {
			t.Errorf("second answer %#v (replayed: %v), %v; want %#v", res.Value, res.Replayed, err, want)
		}
		s.ledger.want(t, "k", 1)
	})
}

type receipt struct {
	Number string
	Cents  int64
	Lines  []string
}

// Nil, empty and zero results are results (R15).
func TestCaseC31_EmptyResultIsAResult(t *testing.T) {
	for _, codec := range []idem.Codec{idem.JSON(), idem.Gob(), idem.Raw(), encrypted(t, idem.JSON(), 1)} {
		t.Run(codec.Name(), func(t *testing.T) {
			o := &idem.Options{Codec: codec}
			replays[any](t, o, nil, nil)
			replays(t, o, struct{}{}, struct{}{})
			replays(t, o, []byte(nil), []byte(nil))
			if codec.Name() != "gob" {
				replays(t, o, []byte{}, []byte{})
			} else {
				replays(t, o, []byte{}, nil) // what gob makes of it
			}
			replays(t, o, []byte("null"), []byte("null"))
			replays(t, o, "", "")
			replays(t, o, "null", "null")
			if codec.Name() == "raw" {
				return
			}
			replays(t, o, receipt{}, receipt{})
			replays(t, o, &receipt{Number: "1"}, &receipt{Number: "1"})
			replays(t, o, 0, 0)
			replays(t, o, false, false)
			if codec.Name() == "gob" {
				return // gob has no form for a nil pointer, see R16
			}
			replays[*receipt](t, o, nil, nil)
			replays[[]string](t, o, nil, nil)
			replays(t, o, []string{}, []string{})
			replays(t, o, map[string]int{}, map[string]int{})
		})
	}
	t.Run("NoResult", func(t *testing.T) {
		s := newSetup(t, nil)
		for i := range 2 {
			res, err := run(t.Context(), s.store, "k", idem.NoResult(func(context.Context) error { s.ledger.add("k"); return nil }))
			if err != nil || res.Replayed != (i == 1) {
				t.Errorf("call %d: %+v, %v", i, res, err)
			}
		}
		s.ledger.want(t, "k", 1)
	})
}

// A completed record whose payload is gone has an error of its own: it is not in
// flight, and fn does not run.
func TestCaseC31_DamagedRecord(t *testing.T) {
	damages := map[string]func(*backend.Record){
		"no body":          func(r *backend.Record) { r.Body = nil },
		"empty body":       func(r *backend.Record) { r.Body = []byte{} },
		"one byte":         func(r *backend.Record) { r.Body = r.Body[:1] },
		"no codec":         func(r *backend.Record) { r.Body = r.Body[:2] },
		"codec cut":        func(r *backend.Record) { r.Body = r.Body[:4] },
		"result cut":       func(r *backend.Record) { r.Body = r.Body[:len(r.Body)-2] },
		"unknown kind":     func(r *backend.Record) { r.Body[1] = '?' },
		"unknown codec":    func(r *backend.Record) { r.Body[3] = 'X' },
		"state turned":     func(r *backend.Record) { r.State = backend.Failed },
		"failed with none": func(r *backend.Record) { r.State, r.Body = backend.Failed, []byte{1, 'n'} },
		"completed failed": func(r *backend.Record) { r.Body = append([]byte{1, 'c'}, "code"...) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			db, log := newFakeDB(), &ledger{}
			store, err := idem.New(db, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = run(t.Context(), store, "k", does(log, "k", receipt{Number: "secret-1"}))
			if err != nil {
				t.Fatal(err)
			}
			db.damage("k", damage)
			res, err := run(t.Context(), store, "k", does(log, "k", receipt{}))
			wantOnly(t, err, idem.ErrCorruptRecord)
			if !reflect.DeepEqual(res.Value, receipt{}) || strings.Contains(err.Error(), "secret") {
				t.Errorf("value %+v, error %v: part of a broken result got out", res.Value, err)
			}
			if idem.Advise(err) != idem.AdviceAsk {
				t.Errorf("advice %v, want to ask a person", idem.Advise(err))
			}
			log.want(t, "k", 1)
			if _, err := idem.Lookup[receipt](t.Context(), store, testScope(), "k"); !errors.Is(err, idem.ErrCorruptRecord) {
				t.Errorf("Lookup: %v", err)
			}
			if rec, err := store.Get(t.Context(), testScope(), "k"); err != nil || rec.Fence == 0 {
				t.Errorf("Get must show even this record: %+v, %v", rec, err)
			}
		})
	}
}

// What the store cannot keep is completed without a result (R16).
func TestR16_ResultNotStorable(t *testing.T) {
	big := strings.Repeat("x", backend.MaxBody)
	for name, fn := range map[string]func(context.Context) (any, error){
		"too large":   func(context.Context) (any, error) { return big, nil },
		"not JSON":    func(context.Context) (any, error) { return make(chan int), nil },
		"codec panic": func(context.Context) (any, error) { return panickyMarshaler{}, nil },
		"infinity":    func(context.Context) (any, error) { return math.Inf(1), nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, nil)
			res, err := run(t.Context(), s.store, "k", func(ctx context.Context) (any, error) { s.ledger.add("k"); return fn(ctx) })
			if err != nil || res.Value == nil || res.Replayed {
				t.Errorf("the first caller gets %v, %v; want its value", res.Replayed, err)
			}
			res, err = run(t.Context(), s.open(nil), "k", func(ctx context.Context) (any, error) { s.ledger.add("k"); return fn(ctx) })
			wantOnly(t, err, idem.ErrResultUnavailable)
			if res.Value != nil || idem.Advise(err) != idem.AdviceStop {
				t.Errorf("value %v, advice %v", res.Value, idem.Advise(err))
			}
			if rec := s.record("k"); rec.State != backend.Completed {
				t.Errorf("state %v, want completed", rec.State)
			}
			s.ledger.want(t, "k", 1)
		})
	}
	t.Run("largest that fits", func(t *testing.T) {
		s := newSetup(t, &idem.Options{Codec: idem.Raw()})
		for size, want := range map[int]error{backend.MaxBody - 6: nil, backend.MaxBody - 5: idem.ErrResultUnavailable} {
			name := fmt.Sprint(size)
			for range 2 {
				res, err := run(t.Context(), s.store, name, does(s.ledger, name, make([]byte, size)))
				if err == nil && len(res.Value) != size || res.Replayed && !errors.Is(err, want) {
					t.Errorf("%d bytes: %d, %v", size, len(res.Value), err)
				}
			}
			s.ledger.want(t, name, 1)
		}
	})
	t.Run("nil pointer in gob", func(t *testing.T) {
		s := newSetup(t, &idem.Options{Codec: idem.Gob()})
		_, err := run(t.Context(), s.store, "k", does[*receipt](s.ledger, "k", nil))
		if err != nil {
			t.Error(err)
		}
		_, err = run(t.Context(), s.store, "k", does[*receipt](s.ledger, "k", nil))
		wantOnly(t, err, idem.ErrResultUnavailable)
	})
	t.Run("other type on replay", func(t *testing.T) {
		s := newSetup(t, nil)
		_, _ = run(t.Context(), s.store, "k", does(s.ledger, "k", "secret"))
		_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", 7))
		wantOnly(t, err, idem.ErrCorruptRecord)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error carries the result: %v", err)
		}
		s.ledger.want(t, "k", 1)
	})
}

type panickyMarshaler struct{}

func (panickyMarshaler) MarshalJSON() ([]byte, error) { panic("marshal") }

// An interface as the result type: what went in must come out, or something the
// codec makes of it, and never a record that nobody can read any more.
func TestR15_InterfaceResults(t *testing.T) {
	for name, v := range map[string]any{"bytes": []byte("raw"), "string": "s", "nil bytes": []byte(nil), "struct{}": struct{}{}, "map": map[string]any{"a": "b"}} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, nil)
			for range 2 {
				if _, err := run(t.Context(), s.store, "k", does(s.ledger, "k", v)); err != nil {
					t.Error(err)
				}
			}
			s.ledger.want(t, "k", 1)
		})
	}
}

// Results without a body are replayed for the whole dedup window (R22).
func TestR22_NoBodyReplaysThroughout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, &idem.Options{Retention: keep(time.Minute, time.Hour)})
		_, _ = run(t.Context(), s.store, "body", does(s.ledger, "body", "v"))
		_, _ = run(t.Context(), s.store, "none", does(s.ledger, "none", struct{}{}))
		_, _ = run(t.Context(), s.store, "nil", does[any](s.ledger, "nil", nil))
		for _, key := range []string{"resolved none", "resolved nil"} {
			_, _ = run(t.Context(), s.store, key, fails(s.ledger, key, idem.Uncertain(nil)))
		}
		if err := s.store.Resolve(t.Context(), testScope(), "resolved none", s.record("resolved none").Fence, idem.Applied(struct{}{}, "seen")); err != nil {
			t.Fatal(err)
		}
		if err := s.store.Resolve(t.Context(), testScope(), "resolved nil", s.record("resolved nil").Fence, idem.Applied(nil, "seen")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			time.Sleep(30 * time.Minute)
			if _, err := s.mem.Expire(t.Context(), backend.ExpireRequest{}); err != nil {
				t.Fatal(err)
			}
			if time.Since(s.record("body").CompletedAt) >= time.Hour {
				break
			}
			res, err := run(t.Context(), s.store, "body", does(s.ledger, "body", "v"))
			wantOnly(t, err, idem.ErrResultExpired)
			if idem.Advise(err) != idem.AdviceStop || res.Value != "" {
				t.Errorf("advice %v, value %q", idem.Advise(err), res.Value)
			}
			for _, key := range []string{"none", "resolved none", "resolved nil"} {
				res, err := run(t.Context(), s.store, key, does(s.ledger, key, struct{}{}))
				wantReplayed(t, res, err, struct{}{})
			}
			any, err := run(t.Context(), s.store, "nil", does[any](s.ledger, "nil", nil))
			wantReplayed(t, any, err, nil)
		}
		s.ledger.want(t, "body", 1)
		s.ledger.want(t, "none", 1)
	})
}

// A missing deadline is not one that is over (R14), and a dead context reserves
// nothing.
func TestCaseC37_Deadlines(t *testing.T) {
	t.Run("zero options", func(t *testing.T) {
		for _, o := range []*idem.Options{nil, {}} {
			s := newSetup(t, o)
			_, err := run(t.Context(), s.store, "k", func(ctx context.Context) (string, error) {
				_, err := run(context.Background(), s.open(o), "k", does(s.ledger, "k", "x"))
				wantOnly(t, err, idem.ErrInFlight)
				left := time.Until(idem.AttemptFrom(ctx).LeaseUntil())
				if left < idem.DefaultLeaseTTL*8/10 || left > idem.DefaultLeaseTTL {
					t.Errorf("the lease has %v left", left)
				}
				return "v", nil
			})
			if err != nil {
				t.Error(err)
			}
			rec := s.record("k")
			if rec.ReplayUntil.Sub(rec.CompletedAt) != idem.DefaultReplay || rec.KnownUntil.Sub(rec.CompletedAt) != idem.DefaultDedup || rec.OnAbandoned != idem.Rerun {
				t.Errorf("record %+v, want the documented defaults", rec)
			}
			s.ledger.want(t, "k", 0)
		}
	})
	t.Run("context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, nil)
			for _, left := range []time.Duration{0, -time.Second, -time.Hour} {
				ctx, cancel := context.WithTimeout(t.Context(), left)
				_, err := run(ctx, s.store, "k", does(s.ledger, "k", "v"))
				wantOnly(t, err, idem.ErrUnavailable)
				wantErr(t, err, context.DeadlineExceeded)
				cancel()
			}
			if n := s.faulty.Calls("Reserve"); n != 0 {
				t.Errorf("%d reserves with a dead context", n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			res, err := run(ctx, s.store, "k", func(ctx context.Context) (string, error) {
				_, err := run(context.Background(), s.open(nil), "k", does(s.ledger, "k", "x"))
				wantOnly(t, err, idem.ErrInFlight)
				<-ctx.Done()
				_, err = run(context.Background(), s.open(nil), "k", does(s.ledger, "k", "x"))
				wantOnly(t, err, idem.ErrInFlight)
				return "v", nil
			})
			wantRan(t, res, err, "v")
			s.ledger.want(t, "k", 0)
		})
	})
	t.Run("options", func(t *testing.T) {
		b := memory.New(nil)
		for name, o := range map[string]*idem.Options{
			"negative lease": {LeaseTTL: -1},
			"tiny lease":     {LeaseTTL: time.Millisecond},
			"negative wait":  {Wait: -1},
			"recover policy": {OnAbandoned: backend.Recover},
			"unknown policy": {OnAbandoned: 9},
			"nameless codec": {Codec: namedCodec{idem.JSON(), ""}},
			"long name":      {Codec: namedCodec{idem.JSON(), strings.Repeat("x", 256)}},
		} {
			if _, err := idem.New(b, o); !errors.Is(err, idem.ErrInvalidOption) {
				t.Errorf("%s: %v, want ErrInvalidOption", name, err)
			}
		}
		if _, err := idem.New(nil, nil); !errors.Is(err, idem.ErrInvalidOption) {
			t.Errorf("no backend: %v", err)
		}
		if _, err := idem.NewTx[*fakeTx](nil, nil); !errors.Is(err, idem.ErrInvalidOption) {
			t.Errorf("no transactional backend: %v", err)
		}
		if _, err := idem.NewTx[*fakeTx](newFakeDB(), &idem.Options{LeaseTTL: -1}); !errors.Is(err, idem.ErrInvalidOption) {
			t.Errorf("NewTx with a negative lease: %v", err)
		}
		_, err := idem.New(b, &idem.Options{Require: backend.Guarantees{MachineCrash: backend.Survives}})
		if !errors.Is(err, idem.ErrGuarantee) || !strings.Contains(err.Error(), "storage is memory") {
			t.Errorf("guarantee: %v", err)
		}
	})
	t.Run("call options", func(t *testing.T) {
		s := newSetup(t, nil)
		for name, opt := range map[string]idem.CallOption{
			"zero lease":     idem.LeaseTTL(0),
			"negative lease": idem.LeaseTTL(-time.Second),
			"negative wait":  idem.Wait(-1),
			"no policy":      idem.OnAbandoned(0),
			"recover":        idem.OnAbandoned(backend.Recover),
			"nil find":       idem.RecoverWith[string](nil),
			"other type":     idem.RecoverWith(func(context.Context) (int, bool, error) { return 0, false, nil }),
		} {
			_, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"), opt)
			if !errors.Is(err, idem.ErrInvalidOption) {
				t.Errorf("%s: %v, want ErrInvalidOption", name, err)
			}
		}
		if n := s.faulty.Calls("Reserve"); n != 0 {
			t.Errorf("%d reserves by calls that make no sense", n)
		}
		var none func(context.Context) (string, error)
		_, err := run(t.Context(), s.store, "k", none)
		wantOnly(t, err, idem.ErrInvalidOption)
		_, err = idem.Execute(t.Context(), nil, testScope(), "k", hashOf("h"), does(s.ledger, "k", "v"))
		wantOnly(t, err, idem.ErrInvalidOption)
		s.ledger.want(t, "k", 0)
	})
	t.Run("lease longer than retention", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, &idem.Options{LeaseTTL: time.Hour, Retention: keep(time.Second, time.Second)})
			_, err := run(t.Context(), s.store, "k", func(context.Context) (string, error) {
				time.Sleep(59 * time.Minute)
				_, err := run(context.Background(), s.open(nil), "k", does(s.ledger, "k", "x"))
				wantOnly(t, err, idem.ErrInFlight)
				return "v", nil
			})
			if err != nil {
				t.Error(err)
			}
			s.abandon("dead", time.Hour, backend.Rerun)
			time.Sleep(59 * time.Minute)
			_, err = run(t.Context(), s.store, "dead", does(s.ledger, "dead", "x"))
			wantOnly(t, err, idem.ErrInFlight)
		})
	})
	t.Run("longest durations", func(t *testing.T) {
		s := newSetup(t, &idem.Options{LeaseTTL: math.MaxInt64, Wait: math.MaxInt64, Retention: keep(expiry.MaxWindow, expiry.MaxWindow)})
		for i := range 2 {
			res, err := run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			if err != nil || res.Replayed != (i == 1) {
				t.Errorf("call %d: %+v, %v", i, res, err)
			}
		}
	})
	t.Run("record without a deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db, log := newFakeDB(), &ledger{}
			store, _ := idem.New(db, nil)
			rec, err := db.Reserve(t.Context(), backend.ReserveRequest{
				Ref: backend.Ref{ID: testID("k"), Owner: [16]byte{1}}, Fingerprint: storedHash(t, hashOf("h1")), TTL: time.Second, KnownFor: time.Second, OnAbandoned: idem.Rerun,
			})
			if err != nil {
				t.Fatal(err)
			}
			db.damage("k", func(r *backend.Record) { r.LeaseUntil = time.Time{} })
			for range 3 {
				_, err = run(t.Context(), store, "k", does(log, "k", "x"), idem.Wait(time.Second))
				wantOnly(t, err, idem.ErrInFlight)
				if after := idem.RetryAfter(err); after < time.Second || after > time.Hour {
					t.Errorf("retry after %v", after)
				}
				time.Sleep(1000 * time.Hour)
			}
			log.want(t, "k", 0)
			if err := store.Resolve(t.Context(), testScope(), "k", rec.Record.Fence, idem.NotApplied("checked by hand")); err != nil {
				t.Fatal(err)
			}
			res, err := run(t.Context(), store, "k", does(log, "k", "v"))
			wantRan(t, res, err, "v")
		})
	})
}

type namedCodec struct {
	idem.Codec
	name string
}

func (c namedCodec) Name() string { return c.name }

// The limits are checked before anything is stored, with one typed error.
func TestCaseC41_Limits(t *testing.T) {
	s := newSetup(t, nil)
	random := make([]byte, 32<<10)
	for i := range random {
		random[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[(i*i*31+i*7)%64]
	}
	for _, n := range []int{0, 1, 254, 255, 256, 2600, 2800, 32767, 32768} {
		for _, k := range []string{strings.Repeat("x", n), string(random[:n])} {
			scope := idem.Scope{Operation: fmt.Sprintf("op-%v", k == strings.Repeat("x", n))}
			res, err := idem.Execute(t.Context(), s.store, scope, idem.Key(k), idem.NoFingerprint(), does(s.ledger, scope.Operation+k, k))
			if 1 <= n && n <= 255 {
				wantRan(t, res, err, k)
				continue
			}
			wantOnly(t, err, idem.ErrInvalidKey)
			if n > 0 && strings.Contains(err.Error(), k) {
				t.Error("the error quotes the key")
			}
			s.ledger.want(t, scope.Operation+k, 0)
		}
	}
	for _, tt := range []struct {
		scope idem.Scope
		key   string
		ok    bool
	}{
		{idem.Scope{Operation: "o"}, "line\nbreak", true},
		{idem.Scope{Operation: "o"}, "\U0001F4B8", true},
		{idem.Scope{Operation: "o"}, "a\x00b", false},
		{idem.Scope{Operation: "o"}, "\xff", false},
		{idem.Scope{}, "k", false},
		{idem.Scope{Tenant: "t"}, "k", false},
		{idem.Scope{Operation: strings.Repeat("o", 128), Tenant: strings.Repeat("t", 128)}, "k", true},
		{idem.Scope{Operation: strings.Repeat("o", 129)}, "k", false},
		{idem.Scope{Operation: "o", Tenant: strings.Repeat("t", 129)}, "k", false},
		{idem.Scope{Operation: "o\x00"}, "k", false},
		{idem.Scope{Operation: "o", Tenant: "\xc3"}, "k", false},
	} {
		reserves := s.faulty.Calls("Reserve")
		_, err := idem.Execute(t.Context(), s.store, tt.scope, idem.Key(tt.key), hashOf("h"), does(s.ledger, tt.key, tt.key))
		if tt.ok && err != nil {
			t.Errorf("%+v %q: %v", tt.scope, tt.key, err)
		}
		if !tt.ok {
			wantOnly(t, err, idem.ErrInvalidKey)
			if idem.Advise(err) != idem.AdviceChange || s.faulty.Calls("Reserve") != reserves {
				t.Errorf("%+v %q: advice %v", tt.scope, tt.key, idem.Advise(err))
			}
			_, lookup := idem.Lookup[string](t.Context(), s.store, tt.scope, idem.Key(tt.key))
			for _, err := range []error{
				lookup,
				s.store.Forget(t.Context(), tt.scope, idem.Key(tt.key), 1, nil),
				s.store.Resolve(t.Context(), tt.scope, idem.Key(tt.key), 1, idem.NotApplied("x")),
			} {
				wantOnly(t, err, idem.ErrInvalidKey)
			}
		}
	}
	for _, n := range []int{0, 32, 1024} {
		k := fmt.Sprintf("hash of %d bytes", n)
		res, err := idem.Execute(t.Context(), s.store, testScope(), idem.Key(k), idem.FingerprintBytes(random[:n]), does(s.ledger, k, k))
		wantRan(t, res, err, k)
	}
	for _, n := range []int{0, 1 << 20} {
		k := fmt.Sprintf("result of %d bytes", n)
		for range 2 {
			res, err := run(t.Context(), s.store, k, does(s.ledger, k, bytes.Repeat([]byte{7}, n)))
			if err != nil || len(res.Value) != n {
				t.Errorf("%s: %d bytes, %v", k, len(res.Value), err)
			}
		}
		s.ledger.want(t, k, 1)
	}
}

// Bytes belong to the caller, on both sides (R27).
func TestR27_NothingAliases(t *testing.T) {
	s := newSetup(t, nil)
	value := []byte("value")
	request := []byte("request")
	call := func() (idem.Result[[]byte], error) {
		return idem.Execute(t.Context(), s.store, testScope(), "k", idem.FingerprintBytes([]byte("request")), does(s.ledger, "k", value))
	}
	if _, err := idem.Execute(t.Context(), s.store, testScope(), "k", idem.FingerprintBytes(request), does(s.ledger, "k", value)); err != nil {
		t.Fatal(err)
	}
	copy(value, "VALUE")
	copy(request, "REQUEST")
	for range 3 {
		res, err := call()
		if err != nil || string(res.Value) != "value" {
			t.Errorf("replay %q, %v", res.Value, err)
		}
		clear(res.Value)
		_ = append(res.Value, "overrun"...)
		rec, err := s.store.Get(t.Context(), testScope(), "k")
		if err != nil || string(rec.Result) != "value" || rec.Codec != "json" {
			t.Errorf("Get %+v, %v", rec, err)
		}
		clear(rec.Result)
		for rec := range s.store.List(t.Context(), idem.Filter{}) {
			clear(rec.Result)
		}
	}
	s.ledger.want(t, "k", 1)
}

func encrypted(t testing.TB, inner idem.Codec, keys ...byte) idem.Codec {
	t.Helper()
	all := make([][32]byte, len(keys))
	for i, k := range keys {
		all[i] = [32]byte{31: k}
	}
	c, err := idem.Encrypted(inner, all...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCodecEncrypted(t *testing.T) {
	db := newFakeDB()
	log := &ledger{}
	open := func(c idem.Codec) *idem.Store {
		store, err := idem.New(db, &idem.Options{Codec: c})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	old := open(encrypted(t, idem.JSON(), 1))
	_, err := run(t.Context(), old, "k", does(log, "k", "plain-secret"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(t.Context(), old, "failed", fails(log, "failed", idem.Permanent("card_declined", errors.New("limit of card 4711"))))
	wantErr(t, err, &idem.FailedError{Code: "card_declined"})
	for key, secret := range map[string]string{"k": "plain-secret", "failed": "4711"} {
		if body := db.record(key).Body; bytes.Contains(body, []byte(secret)) || bytes.Contains(body, []byte("card_declined")) {
			t.Errorf("%s is stored in the clear: %q", key, body)
		}
	}

	t.Run("rotation", func(t *testing.T) {
		rotated := open(encrypted(t, idem.JSON(), 2, 1))
		res, err := run(t.Context(), rotated, "k", does(log, "k", ""))
		wantReplayed(t, res, err, "plain-secret")
		_, err = run(t.Context(), rotated, "failed", does(log, "failed", ""))
		if err == nil || err.Error() != "idem: failed: card_declined: limit of card 4711" {
			t.Errorf("failure replayed as %v", err)
		}
		_, _ = run(t.Context(), rotated, "new", does(log, "new", "v"))
		res, err = run(t.Context(), open(encrypted(t, idem.JSON(), 2)), "new", does(log, "new", ""))
		wantReplayed(t, res, err, "v")
	})
	t.Run("wrong key", func(t *testing.T) {
		for _, key := range []string{"k", "failed"} {
			_, err := run(t.Context(), open(encrypted(t, idem.JSON(), 9)), key, does(log, key, ""))
			wantOnly(t, err, idem.ErrCorruptRecord)
		}
	})
	t.Run("moved to another key", func(t *testing.T) {
		_, _ = run(t.Context(), old, "other", does(log, "other", "mine"))
		body := db.record("k").Body
		db.damage("other", func(r *backend.Record) { r.Body = body })
		res, err := run(t.Context(), old, "other", does(log, "other", ""))
		wantOnly(t, err, idem.ErrCorruptRecord)
		if res.Value != "" {
			t.Errorf("value %q", res.Value)
		}
	})
	t.Run("tampered", func(t *testing.T) {
		for i := range len(db.record("k").Body) - 15 {
			_, _ = run(t.Context(), old, fmt.Sprint(i), does(log, "t", "v"))
			db.damage(fmt.Sprint(i), func(r *backend.Record) { r.Body[min(15+i, len(r.Body)-1)] ^= 1 })
			_, err := run(t.Context(), old, fmt.Sprint(i), does(log, "t", ""))
			if !errors.Is(err, idem.ErrCorruptRecord) && !errors.Is(err, idem.ErrUnknownVersion) {
				t.Errorf("byte %d changed: %v", i, err)
			}
		}
	})
	t.Run("newer format", func(t *testing.T) {
		_, _ = run(t.Context(), old, "newer", does(log, "newer", "v"))
		db.damage("newer", func(r *backend.Record) { r.Body[3+len("aesgcm+json")] = 2 })
		_, err := run(t.Context(), old, "newer", does(log, "newer", ""))
		wantErr(t, err, idem.ErrUnknownVersion)
		db.damage("newer", func(r *backend.Record) { r.Body = r.Body[:3+len("aesgcm+json")+2] })
		_, err = run(t.Context(), old, "newer", does(log, "newer", ""))
		wantOnly(t, err, idem.ErrCorruptRecord)
	})
	t.Run("constructor", func(t *testing.T) {
		for name, make := range map[string]func() (idem.Codec, error){
			"no codec": func() (idem.Codec, error) { return idem.Encrypted(nil, [32]byte{1}) },
			"no key":   func() (idem.Codec, error) { return idem.Encrypted(idem.JSON()) },
			"zero key": func() (idem.Codec, error) { return idem.Encrypted(idem.JSON(), [32]byte{}) },
			"twice":    func() (idem.Codec, error) { return idem.Encrypted(idem.JSON(), [32]byte{1}, [32]byte{2}, [32]byte{1}) },
		} {
			if _, err := make(); !errors.Is(err, idem.ErrInvalidOption) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("unencodable stays unavailable", func(t *testing.T) {
		_, err := run(t.Context(), old, "chan", does(log, "chan", make(chan int)))
		if err != nil {
			t.Error(err)
		}
		_, err = run(t.Context(), old, "chan", does(log, "chan", make(chan int)))
		wantOnly(t, err, idem.ErrResultUnavailable)
	})
}

func TestCodecRawRefusesOtherTypes(t *testing.T) {
	s := newSetup(t, &idem.Options{Codec: idem.Raw()})
	res, err := run(t.Context(), s.store, "bytes", does(s.ledger, "bytes", []byte{0, 255}))
	if err != nil || !bytes.Equal(res.Value, []byte{0, 255}) {
		t.Error(res, err)
	}
	if body := s.record("bytes").Body; !bytes.HasSuffix(body, []byte{0, 255}) {
		t.Errorf("stored as %q", body)
	}
	_, err = run(t.Context(), s.store, "int", does(s.ledger, "int", 7))
	if err != nil {
		t.Error(err)
	}
	_, err = run(t.Context(), s.store, "int", does(s.ledger, "int", 7))
	wantOnly(t, err, idem.ErrResultUnavailable)
	_, err = run(t.Context(), s.store, "bytes", does(s.ledger, "bytes", 7))
	wantOnly(t, err, idem.ErrCorruptRecord)

	// Failures have a form of their own, whatever the codec takes.
	for range 2 {
		_, err = run(t.Context(), s.store, "failed", fails(s.ledger, "failed", idem.Permanent("declined", errors.New("text"))))
		wantErr(t, err, &idem.FailedError{Code: "declined"})
	}
	s.ledger.want(t, "failed", 1)
}

// A store whose codec was changed still reads what it wrote before.
func TestCodecChangedBetweenRuns(t *testing.T) {
	codecs := []idem.Codec{idem.JSON(), idem.Gob(), encrypted(t, idem.JSON(), 1)}
	for _, before := range codecs {
		for _, after := range codecs {
			s := newSetup(t, &idem.Options{Codec: before})
			_, _ = run(t.Context(), s.store, "k", does(s.ledger, "k", "v"))
			_, failed := run(t.Context(), s.store, "failed", fails(s.ledger, "failed", idem.Permanent("c", errors.New("m"))))
			next := s.open(&idem.Options{Codec: after})
			res, err := run(t.Context(), next, "k", does(s.ledger, "k", "x"))
			_, ferr := run(t.Context(), next, "failed", does(s.ledger, "failed", "x"))
			if before != after && strings.HasPrefix(before.Name(), "aesgcm") {
				wantOnly(t, err, idem.ErrCorruptRecord) // no key any more
				wantOnly(t, ferr, idem.ErrCorruptRecord)
			} else {
				wantReplayed(t, res, err, "v")
				if ferr == nil || ferr.Error() != failed.Error() {
					t.Errorf("%s to %s: failure %v, want %v", before.Name(), after.Name(), ferr, failed)
				}
			}
			s.ledger.want(t, "k", 1)
		}
	}
}

// No text of a stored result or failure gets into an error through a decoder.
func TestErrorsCarryNoStoredText(t *testing.T) {
	for name, fn := range map[string]func(context.Context) (string, error){
		"result":  func(context.Context) (string, error) { return "v", nil },
		"failure": func(context.Context) (string, error) { return "", idem.Permanent("code", errors.New("v")) },
	} {
		s := newSetup(t, &idem.Options{Codec: namedCodec{idem.JSON(), "chatty"}})
		_, _ = run(t.Context(), s.store, "k", fn)
		_, err := run(t.Context(), s.open(&idem.Options{Codec: chattyCodec{}}), "k", fn)
		wantErr(t, err, idem.ErrCorruptRecord)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error repeats what the decoder said about the data: %v", name, err)
		}
	}
}

// chattyCodec quotes the data in its errors, as encoding/json does.
type chattyCodec struct{}

func (chattyCodec) Name() string                           { return "chatty" }
func (chattyCodec) Encode(backend.ID, any) ([]byte, error) { return nil, errors.New("secret") }
func (chattyCodec) Decode(backend.ID, []byte, any) error   { return errors.New("bad text: secret") }

func TestFingerprintJSON(t *testing.T) {
	raw := func(s string) idem.Fingerprint { return idem.FingerprintJSON(json.RawMessage(s)) }
	same := func(what string, a, b idem.Fingerprint) {
		t.Helper()
		if a.Err() != nil || b.Err() != nil || a != b {
			t.Errorf("%s: must be one request (%v, %v)", what, a.Err(), b.Err())
		}
	}
	differ := func(what string, a, b idem.Fingerprint) {
		t.Helper()
		if a.Err() != nil || b.Err() != nil || a == b {
			t.Errorf("%s: must be two requests (%v, %v)", what, a.Err(), b.Err())
		}
	}
	same("member order", raw(`{"a":1,"b":{"c":2,"d":3}}`), raw(`{"b":{"d":3,"c":2},"a":1}`))
	same("white space", raw(`{"a":[1,2]}`), raw(" {\n\t\"a\" : [ 1 , 2 ] } "))
	same("escapes", raw(`"\u0041\/\n"`), raw(`"A/\u000a"`))
	same("HTML", raw(`"<&>"`), raw(`"\u003c\u0026\u003e"`))
	same("a map and its document", idem.FingerprintJSON(map[string]any{"z": 1, "a": []int{2}}), raw(`{"a":[2],"z":1}`))
	same("a struct and its document", idem.FingerprintJSON(receipt{"n", 5, nil}), raw(`{"Number":"n","Cents":5,"Lines":null}`))
	same("bytes", idem.FingerprintJSON([]byte("x")), raw(`"eA=="`))
	same("nil", idem.FingerprintJSON(nil), raw(`null`))
	differ("array order", raw(`[1,2]`), raw(`[2,1]`))
	differ("large numbers", raw(`9007199254740993`), raw(`9007199254740992`))
	differ("larger numbers", raw(`{"cents":123456789012345678901234567890}`), raw(`{"cents":123456789012345678901234567891}`))
	differ("small fractions", raw(`0.1000000000000000055511151231257827`), raw(`0.1`))
	differ("uint64", idem.FingerprintJSON(uint64(math.MaxUint64)), idem.FingerprintJSON(uint64(math.MaxUint64-1)))
	differ("null and absent", raw(`{"a":null}`), raw(`{}`))
	differ("string and number", raw(`"1"`), raw(`1`))
	differ("NFC and NFD", raw(`"é"`), raw(`"e\u0301"`))
	differ("JSON and bytes", raw(`1`), idem.FingerprintBytes([]byte(`1`)))

	for name, v := range map[string]any{
		"duplicate members":        json.RawMessage(`{"a":1,"a":2}`),
		"nested duplicate members": json.RawMessage(`[{"x":{"a":1,"\u0061":2}}]`),
		"invalid UTF-8":            json.RawMessage("\"\xff\""),
		"invalid UTF-8 in Go":      "secret\xff",
		"lone surrogate":           json.RawMessage(`"\ud800"`),
		"no JSON":                  json.RawMessage(`{"a":`),
		"two documents":            json.RawMessage(`1 2`),
		"empty document":           json.RawMessage(``),
		"channel":                  make(chan int),
		"NaN":                      math.NaN(),
	} {
		f := idem.FingerprintJSON(v)
		if err := f.Err(); !errors.Is(err, idem.ErrInvalidOption) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v, want ErrInvalidOption without the value", name, err)
		}
		s := newSetup(t, nil)
		_, err := idem.Execute(t.Context(), s.store, testScope(), "k", f, does(s.ledger, "k", "v"))
		wantOnly(t, err, idem.ErrInvalidOption)
		if s.ledger.want(t, "k", 0); s.faulty.Calls("Reserve") != 0 {
			t.Errorf("%s: the store was asked", name)
		}
	}
}

func TestFingerprintBytes(t *testing.T) {
	b := func(parts ...string) idem.Fingerprint {
		all := make([][]byte, len(parts))
		for i, p := range parts {
			all[i] = []byte(p)
		}
		return idem.FingerprintBytes(all...)
	}
	lists := [][]string{{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {"a\x00bc"}, {strings.Repeat("x", 1<<16)}}
	for i, x := range lists {
		for j, y := range lists {
			if (b(x...) == b(y...)) != (i == j) {
				t.Errorf("%.20q and %.20q", x, y)
			}
		}
	}
	if (idem.Fingerprint{}).Err() == nil || idem.NoFingerprint().Err() != nil {
		t.Error("the zero fingerprint must be refused, none on purpose accepted")
	}
}

func TestJoinKey(t *testing.T) {
	lists := [][]string{{"a", "b"}, {"a/b"}, {"a%2Fb"}, {"a%", "2Fb"}, {"a%25", "b"}, {"a", "", "b"}, {"a", "b", ""}, {"", "a", "b"}, {"", ""}, {"%"}, {"/"}, {"//"}, {"a", "B"}, {""}}
	for i, x := range lists {
		for j, y := range lists {
			if (idem.JoinKey(x...) == idem.JoinKey(y...)) != (i == j) {
				t.Errorf("%q and %q: %q", x, y, idem.JoinKey(x...))
			}
		}
	}
	if got := idem.JoinKey("acme", "2026/11", "100%"); got != "acme/2026%2F11/100%25" {
		t.Errorf("the form has changed: %q", got)
	}
}

func FuzzJoinKey(f *testing.F) {
	f.Add("a", "b", "a/b", "")
	f.Add("%2F", "/", "%", "2F/")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		if (idem.JoinKey(a, b) == idem.JoinKey(c, d)) != (a == c && b == d) {
			t.Errorf("(%q, %q) and (%q, %q)", a, b, c, d)
		}
		if idem.JoinKey(a, b) == idem.JoinKey(c) {
			t.Errorf("(%q, %q) and (%q)", a, b, c)
		}
	})
}
