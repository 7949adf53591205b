package redis

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// Window drops repeats in high volumes: it remembers for a while which keys have
// been claimed, and nothing else. It is weaker than a [Store], and cheaper: a claim
// is one SET NX of some 20 bytes, and a repeat that this process has seen before
// costs no network call at all.
//
// What it does not give:
//
//   - A claim says that somebody has begun, not that it happened. A process that dies
//     after its claim takes the operation with it: every repeat is dropped until the
//     claim ends, and nobody runs it. There is no completion, no lease and no takeover.
//   - No result is kept. A repeat learns that it is one and nothing more.
//   - No fingerprint is kept. The same key with another request is a repeat.
//   - After the TTL the same key is new. There is no listing and no resolving.
//   - A claim is as durable as the server, and no more; see [Window.Guarantees].
//
// Use it where dropping too much now and then is better than working twice: counting
// events, sending a notification, warming a cache. Where the operation must happen,
// use a Store.
//
// Methods are safe for concurrent use. A Window is no backend.Backend.
type Window struct {
	client redis.UniversalClient
	prefix string
	ttl    int64 // milliseconds
	front  *front
	clock  func() int64
	found  backend.Guarantees
}

// WindowOptions change how a Window works. The zero value and nil are the defaults.
type WindowOptions struct {
	// Prefix begins the name of every key that the window writes. It may be that of a
	// Store: their keys differ. Empty means DefaultPrefix. Windows that shall not see
	// each other's claims need different prefixes.
	Prefix string
	// TTL is how long a claim stands, rounded up to milliseconds. 0 means a day.
	TTL time.Duration
	// FrontEntries is how many claimed keys the process remembers, about 32 bytes each.
	// The memory is taken at once. 0 means 65536; negative turns the front off.
	FrontEntries int
	// AcceptEviction is the maxmemory-policy of a server that may evict claims before
	// their time. Such a server is refused unless its policy is named here.
	AcceptEviction string
}

// The defaults and limits of WindowOptions.
const (
	defaultWindowTTL    = 24 * time.Hour
	defaultFrontEntries = 1 << 16
	maxFrontEntries     = 1 << 26
)

// windowMark stands between the prefix and the rest of a window's key. No key of a
// Store has a closing brace there: a prefix may not have one, and a sum has none.
// Without an opening brace it steers nothing in a Cluster.
const windowMark = "w}"

// A claim's value is a byte, which says whether it can be taken back, and its token.
const (
	claimFinal     = 'f'
	claimRevocable = 'r'
	claimSize      = 1 + 16
)

// NewWindow returns a window on client, which stays the caller's to close. It asks
// and refuses servers as [New] does.
func NewWindow(ctx context.Context, client redis.UniversalClient, o *WindowOptions) (*Window, error) {
	if o == nil {
		o = &WindowOptions{}
	}
	w := &Window{client: client, prefix: o.Prefix, clock: stopwatch()}
	if w.prefix == "" {
		w.prefix = DefaultPrefix
	}
	if len(w.prefix) > maxPrefix || strings.ContainsAny(w.prefix, "{}\x00") {
		return nil, fmt.Errorf("%w: a key prefix of %d bytes; it must have at most %d and neither braces nor NUL", backend.ErrInvalidRequest, len(w.prefix), maxPrefix)
	}
	w.prefix += windowMark
	ttl := o.TTL
	switch {
	case ttl < 0:
		return nil, fmt.Errorf("%w: a window of %v; it must be positive, or 0 for a day", backend.ErrInvalidRequest, ttl)
	case ttl == 0:
		ttl = defaultWindowTTL
	}
	w.ttl = int64((min(ttl, longestSpan) + time.Millisecond - 1) / time.Millisecond)
	switch n := o.FrontEntries; {
	case n > maxFrontEntries:
		return nil, fmt.Errorf("%w: %d FrontEntries; at most %d", backend.ErrInvalidRequest, n, maxFrontEntries)
	case n == 0:
		w.front = newFront(defaultFrontEntries)
	case n > 0:
		w.front = newFront(n)
	}
	switch c := client.(type) {
	case nil:
		return nil, fmt.Errorf("%w: no redis client", backend.ErrInvalidRequest)
	case *redis.Ring:
		return nil, fmt.Errorf("%w: a redis Ring loses sight of claims when a server does not answer; use a Cluster, Sentinel or one server", backend.ErrInvalidRequest)
	case *redis.ClusterClient:
		if c.Options().ReadOnly {
			return nil, fmt.Errorf("%w: the redis client reads from replicas, which lag behind; unset ReadOnly, RouteByLatency and RouteRandomly", backend.ErrInvalidRequest)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g, _, err := probe(ctx, client, terms{acceptEviction: o.AcceptEviction})
	if err != nil {
		return nil, err
	}
	g.Findings = append([]backend.Finding{{
		Setting: "redis.Window", Value: "claim only", Want: "",
		Text: "a claim says that somebody has begun, not that it happened: a crash after the claim loses the operation; no result is kept",
	}}, g.Findings...)
	w.found = g
	return w, nil
}

// Guarantees returns what was found out about the server when the window was made.
// The grades say what becomes of claims; a lost claim lets an operation run again.
// That claims survive does not mean that their operations do: the first finding says
// what a claim is.
func (w *Window) Guarantees() backend.Guarantees {
	g := w.found
	g.Findings = append([]backend.Finding(nil), g.Findings...)
	return g
}

// Claim reports whether it is the first to claim id within the window. The claim is
// final: nobody can take it back, so repeats are answered from memory.
//
// An error that matches backend.ErrOutcomeUnknown leaves open whether the key is
// claimed now; if so, every further Claim says that it is not the first. Who cannot
// live with that uses [Window.ClaimAs].
func (w *Window) Claim(ctx context.Context, id backend.ID) (first bool, err error) {
	if err := id.Validate(); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	sum, sent := id.Sum(), w.clock()
	if w.front.has(&sum, sent) {
		return false, nil
	}
	var mine [claimSize]byte
	mine[0] = claimFinal
	_, _ = rand.Read(mine[1:]) // never fails
	return w.claim(ctx, sum, sent, mine[:])
}

// ClaimAs is Claim for an owner who may want to take the claim back with
// [Window.Unclaim]. ref.Owner must be 16 random bytes made for this operation. The
// same ref is the first as often as it asks, which settles an outcome that was
// unknown. Repeats of such a claim always ask the server.
func (w *Window) ClaimAs(ctx context.Context, ref backend.Ref) (first bool, err error) {
	if err := ref.Validate(); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	sum, sent := ref.ID.Sum(), w.clock()
	if w.front.has(&sum, sent) {
		return false, nil
	}
	return w.claim(ctx, sum, sent, revocable(&ref))
}

// revocable returns the value of a claim that can be taken back.
func revocable(ref *backend.Ref) []byte {
	return append(append(make([]byte, 0, claimSize), claimRevocable), ref.Owner[:]...)
}

// claim asks the server. What is remembered of an own claim counts from before it was
// sent, so it ends no later than the claim does.
func (w *Window) claim(ctx context.Context, sum [16]byte, sent int64, mine []byte) (first bool, err error) {
	key := w.key(&sum)
	set := redis.NewStringCmd(ctx, "set", key, mine, "nx", "get", "px", w.ttl)
	if err := (direct{client: w.client}).do(ctx, set); err != nil {
		return false, writeFault(ctx, err)
	}
	found, err := set.Bytes()
	switch {
	case err == redis.Nil:
		found = mine
	case err != nil:
		return false, writeFault(ctx, err)
	case len(found) != claimSize || found[0] != claimFinal && found[0] != claimRevocable:
		return false, fmt.Errorf("%w: a claim's key holds something else", backend.ErrCorruptRecord)
	}
	// The client sends a command again when its reply was lost, and that copy meets
	// the first one's claim: the token tells whose it is.
	first = bytes.Equal(found, mine)
	if w.front == nil || found[0] != claimFinal {
		return first, nil
	}
	if first {
		w.front.add(&sum, sent, sent+w.ttl*int64(time.Millisecond))
	} else {
		w.learn(ctx, &sum, key, found)
	}
	return first, nil
}

// learn remembers somebody else's claim. How long it stands is asked for here and not
// with every claim, because most claims are first ones. A failure costs the next
// repeat a call, nothing else.
func (w *Window) learn(ctx context.Context, sum *[16]byte, key string, value []byte) {
	sent := w.clock()
	left := evalCmd(ctx, "eval", leftLua, []string{key}, []any{value})
	if err := (direct{client: w.client}).do(ctx, left); err != nil {
		return
	}
	if ms, err := left.Int64(); err == nil && ms > 0 {
		w.front.add(sum, sent, sent+ms*int64(time.Millisecond))
	}
}

// leftLua tells how long a claim stands if it is still the very one: a revocable one
// may have taken its place, which must not be remembered.
const leftLua = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PTTL', KEYS[1]) end return 0`

// Unclaim takes back a claim of [Window.ClaimAs] whose operation has failed before it
// had any effect, so that the next caller is the first again. A claim that is not
// ref's, or has ended, stays as it is, and that is no error.
//
// An error that matches backend.ErrOutcomeUnknown: the claim may still stand; the
// same Unclaim again is safe.
func (w *Window) Unclaim(ctx context.Context, ref backend.Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	sum := ref.ID.Sum()
	cmd := evalCmd(ctx, "eval", unclaimLua, []string{w.key(&sum)}, []any{revocable(&ref)})
	if err := (direct{client: w.client}).do(ctx, cmd); err != nil {
		return writeFault(ctx, err)
	}
	if err := cmd.Err(); err != nil {
		return writeFault(ctx, err)
	}
	return nil
}

// unclaimLua deletes a claim if it is the very one. It is short enough to be sent as
// it is, and its use is rare.
const unclaimLua = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// key returns the name of a claim's key.
func (w *Window) key(sum *[16]byte) string {
	buf := make([]byte, 0, maxPrefix+len(windowMark)+sumLength)
	return string(base64.RawURLEncoding.AppendEncode(append(buf, w.prefix...), sum[:]))
}
