package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// lossy is a store behind a proxy, with the client's options at their defaults: it
// sends again by itself what it got no reply to.
func lossy(t *testing.T) (*proxy, *Store, *idem.Store) {
	t.Helper()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: p.addr()})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, newPrefix())
	store, err := idem.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The scripts are known to the server, so that the next call is sent once.
	for _, err := range []error{errors.New("not now"), nil} {
		_, got := idem.Execute(t.Context(), store, pay, "warm-up", hash, func(context.Context) (string, error) { return "", err })
		if !errors.Is(got, err) {
			t.Fatal(got)
		}
		if err == nil {
			if ferr := store.Forget(t.Context(), pay, "warm-up", fenceOf(t, s, "warm-up"), nil); ferr != nil {
				t.Fatal(ferr)
			}
		}
	}
	return p, s, store
}

var (
	pay  = idem.Scope{Operation: "pay"}             // lint:const a fixture
	hash = idem.FingerprintBytes([]byte("100 EUR")) // lint:const a fixture
)

func fenceOf(t *testing.T, s *Store, key string) uint64 {
	t.Helper()
	rec, err := s.Get(t.Context(), backend.ID{Operation: "pay", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Fence
}

// TestCaseC01_LostReplies: a move whose reply is lost is sent again by the client and
// meets its own token.
func TestCaseC01_LostReplies(t *testing.T) {
	t.Parallel()
	p, s, store := lossy(t)
	ran := 0
	lost := func(text string) {
		t.Helper()
		p.lose(text)
		before := p.lost.Load()
		t.Cleanup(func() {
			if p.lost.Load() == before {
				t.Error("no reply was lost: the test has shown nothing")
			}
		})
	}

	t.Run("reserve", func(t *testing.T) {
		lost("px")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		res, err := idem.Execute(ctx, store, pay, "k1", hash, func(context.Context) (string, error) { ran++; return "done", nil })
		if err != nil || res.Replayed || ran != 1 {
			t.Fatalf("the winner was answered %+v, %v; fn ran %d times; want it to run once, in this call", res, err, ran)
		}
	})
	t.Run("complete", func(t *testing.T) {
		ran = 0
		lost(s.lua.complete.sha)
		fn := func(context.Context) (string, error) { ran++; return "done", nil }
		res, err := idem.Execute(t.Context(), store, pay, "k2", hash, fn)
		if err != nil || res.Replayed || res.Value != "done" {
			t.Fatalf("the call was answered %+v, %v; want its result", res, err)
		}
		res, err = idem.Execute(t.Context(), store, pay, "k2", hash, fn)
		if err != nil || !res.Replayed || ran != 1 {
			t.Fatalf("the retry was answered %+v, %v; fn ran %d times; want a replay", res, err, ran)
		}
	})
	t.Run("release", func(t *testing.T) {
		ran = 0
		lost(s.lua.release.sha)
		declined := errors.New("declined")
		if _, err := idem.Execute(t.Context(), store, pay, "k3", hash, func(context.Context) (string, error) { return "", declined }); !errors.Is(err, declined) {
			t.Fatal(err)
		}
		res, err := idem.Execute(t.Context(), store, pay, "k3", hash, func(context.Context) (string, error) { ran++; return "done", nil })
		if err != nil || res.Replayed || res.Attempt != 2 || ran != 1 {
			t.Fatalf("the next call was answered %+v, %v; fn ran %d times; want it to run at once, as attempt 2", res, err, ran)
		}
	})
	t.Run("renew", func(t *testing.T) {
		r := request("k4")
		if _, err := s.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := s.Renew(t.Context(), r.Ref, time.Hour); err != nil {
			t.Fatal(err)
		}
		lost(s.lua.renew.sha)
		if err := s.Renew(t.Context(), r.Ref, 2*time.Hour); err != nil {
			t.Fatalf("a renewal that was sent twice: %v", err)
		}
	})
	t.Run("take over", func(t *testing.T) {
		r := request("k5")
		res, err := s.Reserve(t.Context(), r)
		if err == nil {
			err = s.Release(t.Context(), r.Ref)
		}
		if err != nil {
			t.Fatal(err)
		}
		warm := request("k5")
		warm.TakeOver = res.Record.Fence
		if res, err = s.Reserve(t.Context(), warm); err != nil || res.Outcome != backend.Acquired {
			t.Fatal(res.Outcome, err)
		}
		if err := s.Release(t.Context(), warm.Ref); err != nil {
			t.Fatal(err)
		}
		lost(s.lua.swap.sha)
		next := request("k5")
		next.TakeOver = res.Record.Fence
		if res, err = s.Reserve(t.Context(), next); err != nil || res.Outcome != backend.Acquired || res.Record.Owner != next.Owner {
			t.Fatalf("a takeover that was sent twice was answered %v, %v; want acquired", res.Outcome, err)
		}
	})
	t.Run("forget", func(t *testing.T) {
		r := request("k6")
		res, err := s.Reserve(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		lost(s.lua.swap.sha)
		if err := s.Forget(t.Context(), backend.ForgetRequest{ID: r.ID, Fence: res.Record.Fence, Force: true}); err != nil {
			t.Fatalf("a deletion that was sent twice: %v", err)
		}
	})
}

// TestCaseC01_StalledReplies: a call returns when its context ends, without having run
// anything, and the key is usable when its lease is over.
func TestCaseC01_StalledReplies(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: p.addr()})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, newPrefix())
	lease := 2 * time.Second
	store, err := idem.New(s, &idem.Options{LeaseTTL: lease})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	fn := func(context.Context) (string, error) { ran++; return "done", nil }
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 300*time.Millisecond)
		},
		"cancel": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(300*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			ran = 0
			p.hang()
			ctx, cancel := end(t.Context())
			defer cancel()
			begun := time.Now()
			_, err := idem.Execute(ctx, store, pay, idem.Key("stalled-"+name), hash, fn)
			if took := time.Since(begun); err == nil || ran != 0 || took > 3*time.Second {
				t.Fatalf("a call without replies: error %v after %v, fn ran %d times; want an error soon after 300 ms and no run", err, took, ran)
			}
			p.heal()
			// What was sent may have been applied late. Polled, because the release of
			// the key may have got through as well.
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				res, err := idem.Execute(t.Context(), store, pay, idem.Key("stalled-"+name), hash, fn)
				if err == nil {
					if res.Replayed || ran != 1 {
						t.Fatalf("after the lease: %+v, fn ran %d times; want it to run once", res, ran)
					}
					return
				}
				if time.Now().After(end) {
					t.Fatalf("long after the lease the key is still dead: %v", err)
				}
			}
		})
	}
}

// TestStalledMovesAreUnknown: a write whose reply does not come is unknown, never
// done and never refused.
func TestStalledMovesAreUnknown(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: p.addr()})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, newPrefix())
	r := request("k")
	if _, err := s.Reserve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	p.hang()
	defer p.heal()
	moves := map[string]func(ctx context.Context) error{
		"reserve": func(ctx context.Context) error { _, err := s.Reserve(ctx, request("other")); return err },
		"reserve by script": func(ctx context.Context) error {
			r := request("another")
			r.OnAbandoned = backend.Hold
			_, err := s.Reserve(ctx, r)
			return err
		},
		"complete": func(ctx context.Context) error { _, err := s.Complete(ctx, completion(r.Ref, "x")); return err },
		"release":  func(ctx context.Context) error { return s.Release(ctx, r.Ref) },
		"renew":    func(ctx context.Context) error { return s.Renew(ctx, r.Ref, time.Hour) },
	}
	for name, move := range moves {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, backend.ErrLeaseLost)
			defer cancel()
			if err := move(ctx); !errors.Is(err, backend.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrLeaseLost) {
				t.Errorf("error %v; want an unknown outcome that names the deadline and not its cause", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, r.ID); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("Get: %v; want the deadline", err)
	}
}
