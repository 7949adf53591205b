package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// counter is a hook that counts the commands which go to the network.
type counter struct{ sent atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.sent.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// newWindow returns a window with a client of its own, and the count of what the
// window sends.
func newWindow(tb testing.TB, addr string, o WindowOptions) (*Window, *counter) {
	tb.Helper()
	client := newClient(tb, addr)
	w, err := NewWindow(tb.Context(), client, &o)
	if err != nil {
		tb.Fatal(err)
	}
	c := new(counter)
	client.AddHook(c)
	return w, c
}

func wantFirst(tb testing.TB, w *Window, key string, want bool) {
	tb.Helper()
	first, err := w.Claim(tb.Context(), backend.ID{Operation: "pay", Key: key})
	if err != nil || first != want {
		tb.Errorf("Claim(%q) = %t, %v; want %t", key, first, err, want)
	}
}

func refTo(key string) backend.Ref {
	return backend.Ref{ID: backend.ID{Operation: "pay", Key: key}, Owner: token()}
}

func TestWindowAnswersRepeatsFromMemory(t *testing.T) {
	t.Parallel()
	addr, prefix := testdb.Redis(t).Addr(), newPrefix()
	a, sentA := newWindow(t, addr, WindowOptions{Prefix: prefix})
	b, sentB := newWindow(t, addr, WindowOptions{Prefix: prefix})
	off, sentOff := newWindow(t, addr, WindowOptions{Prefix: prefix, FrontEntries: -1})

	wantFirst(t, a, "k", true)
	if got := sentA.sent.Load(); got != 1 {
		t.Errorf("a first claim took %d commands, want 1", got)
	}
	for range 100 {
		wantFirst(t, a, "k", false)
	}
	if got := sentA.sent.Load(); got != 1 {
		t.Errorf("repeats in the claiming process took %d commands, want none", got-1)
	}
	wantFirst(t, b, "k", false)
	asked := sentB.sent.Load()
	for range 100 {
		wantFirst(t, b, "k", false)
	}
	if got := sentB.sent.Load(); asked == 0 || got != asked {
		t.Errorf("repeats of another process's claim took %d commands after %d for the first; want none", got-asked, asked)
	}
	for range 10 {
		wantFirst(t, off, "k", false)
	}
	if got := sentOff.sent.Load(); got != 10 {
		t.Errorf("ten repeats without a front took %d commands, want 10", got)
	}
	// A first claim is never answered from memory.
	for i := range 50 {
		wantFirst(t, a, fmt.Sprint("new", i), true)
	}
	if got := sentA.sent.Load(); got != 51 {
		t.Errorf("%d commands for 51 first claims", got)
	}
}

// TestWindowMemoryEndsNoLaterThanTheClaim: with the window's own clock moved.
func TestWindowMemoryEndsNoLaterThanTheClaim(t *testing.T) {
	t.Parallel()
	addr, prefix := testdb.Redis(t).Addr(), newPrefix()
	var skew atomic.Int64
	o := WindowOptions{Prefix: prefix, TTL: time.Hour}
	a, sentA := newWindow(t, addr, o)
	b, sentB := newWindow(t, addr, o)
	for _, w := range []*Window{a, b} {
		clock := w.clock
		w.clock = func() int64 { return clock() + skew.Load() }
	}
	wantFirst(t, a, "k", true)
	// Half of the claim is over by the time that b sees it.
	sum := sumOf("k")
	if err := a.client.PExpire(t.Context(), a.key(&sum), 30*time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	wantFirst(t, b, "k", false)
	for _, c := range []struct {
		skew       time.Duration
		askA, askB bool
	}{
		{29 * time.Minute, false, false},
		{31 * time.Minute, false, true}, // and b is told again that half an hour is left
		{59 * time.Minute, false, false},
		{62 * time.Minute, true, true},
	} {
		skew.Store(int64(c.skew))
		beforeA, beforeB := sentA.sent.Load(), sentB.sent.Load()
		wantFirst(t, a, "k", false) // the server's clock has not moved: it still stands
		wantFirst(t, b, "k", false)
		if got := sentA.sent.Load() > beforeA; got != c.askA {
			t.Errorf("after %v: the claimer asked the server: %t, want %t", c.skew, got, c.askA)
		}
		if got := sentB.sent.Load() > beforeB; got != c.askB {
			t.Errorf("after %v: the other asked the server: %t, want %t", c.skew, got, c.askB)
		}
	}
}

func TestWindowEnds(t *testing.T) {
	t.Parallel()
	addr := testdb.Redis(t).Addr()
	const ttl = 300 * time.Millisecond
	w, _ := newWindow(t, addr, WindowOptions{Prefix: newPrefix(), TTL: ttl})
	began := time.Now()
	wantFirst(t, w, "k", true)
	for {
		first, err := w.Claim(t.Context(), backend.ID{Operation: "pay", Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if first {
			// Redis ends a key by its wall clock, in whole milliseconds.
			if took < ttl-2*time.Millisecond {
				t.Errorf("first again after %v, before the window of %v is over", took, ttl)
			}
			return
		}
		if took > time.Minute {
			t.Fatalf("still claimed after %v", took)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestCaseC01_WindowLostReply: a claim whose reply is lost is sent again by the client and
// meets its own token; the winner is told that it has won.
func TestCaseC01_WindowLostReply(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: p.addr()}) // options at their defaults
	t.Cleanup(func() { _ = client.Close() })
	prefix := newPrefix()
	w, err := NewWindow(t.Context(), client, &WindowOptions{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	p.lose("px")
	wantFirst(t, w, "k1", true)
	ref := refTo("k2")
	p.lose("px")
	if first, err := w.ClaimAs(t.Context(), ref); err != nil || !first {
		t.Errorf("ClaimAs = %t, %v; want it to be the first", first, err)
	}
	p.lose("DEL")
	if err := w.Unclaim(t.Context(), ref); err != nil {
		t.Errorf("an Unclaim that was sent twice: %v", err)
	}
	if p.lost.Load() != 3 {
		t.Fatalf("%d replies were lost, want 3: the test has shown nothing", p.lost.Load())
	}
	wantFirst(t, w, "k1", false)
	wantFirst(t, w, "k2", true)
}

func TestWindowUnknownOutcome(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := newClient(t, p.addr())
	w, err := NewWindow(t.Context(), client, &WindowOptions{Prefix: newPrefix()})
	if err != nil {
		t.Fatal(err)
	}
	p.hang()
	ref := refTo("k")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if first, err := w.ClaimAs(ctx, ref); first || !errors.Is(err, backend.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer in time: %t, %v; want the outcome unknown", first, err)
	}
	if first, err := w.ClaimAs(ctx, ref); first || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("a context that was over before: %t, %v; want its error alone", first, err)
	}
	p.heal()
	// The same ref learns the truth, whether or not its first claim arrived.
	if first, err := w.ClaimAs(t.Context(), ref); !first || err != nil {
		t.Errorf("the same ref again: %t, %v; want it to be the first", first, err)
	}
	wantFirst(t, w, "k", false)
}

func TestWindowUnclaim(t *testing.T) {
	t.Parallel()
	addr, prefix := testdb.Redis(t).Addr(), newPrefix()
	a, _ := newWindow(t, addr, WindowOptions{Prefix: prefix})
	b, _ := newWindow(t, addr, WindowOptions{Prefix: prefix})
	ref, other := refTo("k"), refTo("k")
	claimAs := func(w *Window, ref backend.Ref, want bool) {
		t.Helper()
		if first, err := w.ClaimAs(t.Context(), ref); err != nil || first != want {
			t.Errorf("ClaimAs = %t, %v; want %t", first, err, want)
		}
	}
	unclaim := func(w *Window, ref backend.Ref) {
		t.Helper()
		if err := w.Unclaim(t.Context(), ref); err != nil {
			t.Errorf("Unclaim: %v", err)
		}
	}
	claimAs(a, ref, true)
	claimAs(a, ref, true)
	claimAs(b, ref, true) // the same owner
	claimAs(b, other, false)
	wantFirst(t, b, "k", false)
	unclaim(b, other) // owns nothing
	wantFirst(t, b, "k", false)
	unclaim(a, ref)
	// The other process has seen the claim and must not remember it: the operation
	// would be lost.
	claimAs(b, other, true)
	claimAs(a, ref, false)
	unclaim(a, ref)
	claimAs(a, ref, false)
	unclaim(b, other)
	wantFirst(t, a, "k", true)
	// A final claim stays, even for who guesses that it is theirs.
	unclaim(a, ref)
	unclaim(b, other)
	claimAs(b, other, false)
	claimAs(a, ref, false)
}

// TestWindowLearnsOnlyWhatItSaw: between a claim that is seen and the question how
// long it stands, a revocable one may have taken its place.
func TestWindowLearnsOnlyWhatItSaw(t *testing.T) {
	t.Parallel()
	w, _ := newWindow(t, testdb.Redis(t).Addr(), WindowOptions{Prefix: newPrefix()})
	ref := refTo("k")
	if first, err := w.ClaimAs(t.Context(), ref); !first || err != nil {
		t.Fatal(first, err)
	}
	sum := ref.ID.Sum()
	gone := append([]byte{claimFinal}, make([]byte, 16)...)
	w.learn(t.Context(), &sum, w.key(&sum), gone)
	if err := w.Unclaim(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	wantFirst(t, w, "k", true)
}

// TestWindowOneFirst: of all callers in all processes one is the first.
func TestWindowOneFirst(t *testing.T) {
	t.Parallel()
	addr, prefix := testdb.Redis(t).Addr(), newPrefix()
	const keys, callers = 100, 8
	var firsts [keys]atomic.Int64
	var wg sync.WaitGroup
	for g := range 2 {
		w, _ := newWindow(t, addr, WindowOptions{Prefix: prefix, FrontEntries: 16 + 1000*g})
		for range callers {
			wg.Go(func() {
				for i := range 3 * keys {
					id := backend.ID{Operation: "pay", Key: fmt.Sprint(i % keys)}
					first, err := w.Claim(t.Context(), id)
					if err != nil {
						t.Error(err)
						return
					}
					if first {
						firsts[i%keys].Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	for i := range firsts {
		if got := firsts[i].Load(); got != 1 {
			t.Errorf("key %d had %d first claims", i, got)
		}
	}
}

// TestWindowBesideStore: with one prefix, neither sees the other's keys.
func TestWindowBesideStore(t *testing.T) {
	t.Parallel()
	client, prefix := newClient(t, testdb.Redis(t).Addr()), newPrefix()
	s := newStore(t, client, prefix)
	w, err := NewWindow(t.Context(), client, &WindowOptions{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	r := request("k")
	wantFirst(t, w, "k", true)
	if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
		t.Errorf("the store's reserve of a key that the window knows: %+v, %v", res, err)
	}
	if _, err := s.Complete(t.Context(), completion(r.Ref, "done")); err != nil {
		t.Error(err)
	}
	wantFirst(t, w, "k", false)
	n := 0
	for _, err := range s.List(t.Context(), backend.Filter{}) {
		if err != nil {
			t.Error(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("the store lists %d records, want its own one", n)
	}
}

// TestCaseC32_WindowOnCluster: no key steers its slot, and keys spread over all masters.
func TestCaseC32_WindowOnCluster(t *testing.T) {
	t.Parallel()
	addrs := testdb.StartCluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
	defer client.Close()
	w, err := NewWindow(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"order:{1}:{2}", "{}", "}{", "user{a", "{a}{b}", strings.Repeat("{", 250)} {
		wantFirst(t, w, key, true)
		wantFirst(t, w, key, false)
		ref := refTo(key + "?")
		if first, err := w.ClaimAs(t.Context(), ref); !first || err != nil {
			t.Errorf("ClaimAs: %t, %v", first, err)
		}
		if err := w.Unclaim(t.Context(), ref); err != nil {
			t.Error(err)
		}
		wantFirst(t, w, key+"?", true)
	}
	for i := range 300 {
		wantFirst(t, w, fmt.Sprint("{same}", i), true)
	}
	err = client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		n, err := node.DBSize(ctx).Result()
		if n < 50 {
			t.Errorf("a master of three has %d of 312 keys", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWindowRefusals(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t)
	client := newClient(t, srv.Addr())
	for name, o := range map[string]*WindowOptions{
		"a negative window": {TTL: -1},
		"braces":            {Prefix: "a{b}"},
		"a long prefix":     {Prefix: strings.Repeat("x", 200)},
		"a huge front":      {FrontEntries: 1 << 30},
	} {
		if _, err := NewWindow(t.Context(), client, o); !errors.Is(err, backend.ErrInvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewWindow(t.Context(), nil, nil); !errors.Is(err, backend.ErrInvalidRequest) {
		t.Errorf("no client: %v", err)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": srv.Addr()}})
	if _, err := NewWindow(t.Context(), ring, nil); !errors.Is(err, backend.ErrInvalidRequest) {
		t.Errorf("a Ring: %v", err)
	}
	_ = ring.Close()
	w, err := NewWindow(t.Context(), client, &WindowOptions{TTL: 1})
	if err != nil || w.ttl != 1 {
		t.Errorf("a window of a nanosecond: %+v, %v; want it rounded up to a millisecond", w, err)
	}
	if w, err = NewWindow(t.Context(), client, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Claim(t.Context(), backend.ID{Operation: "pay"}); !errors.Is(err, backend.ErrInvalidKey) {
		t.Errorf("an empty key: %v", err)
	}
	if _, err := w.ClaimAs(t.Context(), backend.Ref{ID: backend.ID{Operation: "pay", Key: "k"}}); !errors.Is(err, backend.ErrInvalidRequest) {
		t.Errorf("no owner: %v", err)
	}
	sum := sumOf("odd")
	for _, odd := range []string{"", "x", strings.Repeat("z", claimSize)} {
		if err := client.Set(t.Context(), w.key(&sum), odd, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if first, err := w.Claim(t.Context(), backend.ID{Operation: "pay", Key: "odd"}); first || !errors.Is(err, backend.ErrCorruptRecord) {
			t.Errorf("a key that holds %q: %t, %v", odd, first, err)
		}
	}
	srv.Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	var refused *EvictionError
	if _, err := NewWindow(t.Context(), client, nil); !errors.As(err, &refused) {
		t.Errorf("an evicting server: %v", err)
	}
	if w, err = NewWindow(t.Context(), client, &WindowOptions{AcceptEviction: "allkeys-lru"}); err != nil {
		t.Fatalf("an evicting server, accepted by name: %v", err)
	}
	g := w.Guarantees()
	if g.Atomic || !g.Shared || !g.ServerClock || len(g.Findings) == 0 || !strings.Contains(g.Findings[0].Text, "not that it happened") {
		t.Errorf("guarantees %+v; want the weaker promise named first", g)
	}
	g.Findings[0].Text = "changed"
	if w.Guarantees().Findings[0].Text == "changed" {
		t.Error("a caller can change what the window says of itself")
	}
	srv.Stop()
	if first, err := w.Claim(t.Context(), backend.ID{Operation: "pay", Key: "down"}); first || err == nil || strings.Contains(err.Error(), "down") || strings.Contains(err.Error(), srv.Addr()) {
		t.Errorf("a server that is down: %t, %v; want an error without key and address", first, err)
	}
}

func TestWindowRepeatAllocatesNothing(t *testing.T) {
	w, _ := newWindow(t, testdb.Redis(t).Addr(), WindowOptions{Prefix: newPrefix()})
	id := backend.ID{Tenant: "acme", Operation: "pay", Key: "123e4567-e89b-12d3-a456-426614174000"}
	if first, err := w.Claim(t.Context(), id); !first || err != nil {
		t.Fatal(first, err)
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() { _, _ = w.Claim(ctx, id) }); n != 0 {
		t.Errorf("a repeat allocates %v times, want none", n)
	}
}
