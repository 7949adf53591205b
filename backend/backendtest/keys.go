package backendtest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleKeys   = "Scope and key are encoded without ambiguity: no two different (tenant, operation, key) triples share a record."
	ruleLimits = "Limits are the same on every backend and checked before anything is stored: key 1-255 bytes, tenant 0-128, operation 1-128, valid UTF-8, no NUL."
)

// lookAlikes are identities that careless encodings confuse (C24).
func lookAlikes() [][2]backend.ID {
	id := func(tenant, operation, key string) backend.ID {
		return backend.ID{Tenant: tenant, Operation: operation, Key: key}
	}
	pairs := [][2]backend.ID{
		{id("a", "op", "k"), id("A", "op", "k")},
		{id("a", "op", "k"), id("a", "OP", "k")},
		{id("a", "op", "k"), id("a", "op", "K")},
		{id("a", "op", "k"), id("a", "op", "k ")},
		{id("a", "op", "k"), id("a", "op", " k")},
		{id("a", "op", "k"), id("a ", "op", "k")},
		{id("a", "op", "\u00e9"), id("a", "op", "e\u0301")},
		{id("\u00e9", "op", "k"), id("e\u0301", "op", "k")},
		{id("a", "op", "ß"), id("a", "op", "ss")},
		{id("a", "op", "k"), id("a", "op", "k\n")},
		{id("a", "op", "1"), id("a", "op", "01")},
		{id("a", "op", "k"), id("a", "op", "\u200bk")},
		{id("", "a", "bc"), id("a", "b", "c")},
		{id("", "op", "k"), id("op", "op", "k")},
		{id("a", "bc", "d"), id("ab", "c", "d")},
		{id("a", "b", "cd"), id("a", "bc", "d")},
		{id("a", "b", "c"), id("c", "b", "a")},
		{id("\x01", "b", "c"), id("", "\x01b", "c")},
		{id(strings.Repeat("a", 128), "b", "c"), id(strings.Repeat("a", 127), "b", "c")},
		{id("{a}", "b", "c"), id("a", "{b}", "c")},
	}
	for _, sep := range []string{":", "/", "|", ".", "-", "_", ",", ";", "#", "\\", "\n", "\x1f", "::", "%", "+", " ", "\x01", "{", "}"} {
		pairs = append(pairs,
			[2]backend.ID{id("a"+sep+"b", "op", "c"), id("a", "op", "b"+sep+"c")},
			[2]backend.ID{id("a"+sep+"op", "op", "c"), id("a", "op"+sep+"op", "c")},
			[2]backend.ID{id("t", "a"+sep+"b", "c"), id("t", "a", "b"+sep+"c")},
			[2]backend.ID{id("", "a"+sep+"b", "c"), id("a", "b", "c")})
	}
	return pairs
}

// keyChecks: R5 and the first place of R7.
func keyChecks() []check {
	return []check{
		{"R05/LookAlikesAreApart", ruleKeys, func(k *kit) { // C24
			b := k.open()
			all := make(map[backend.ID]backend.Ref)
			for _, pair := range lookAlikes() {
				for _, id := range pair {
					if _, ok := all[id]; ok {
						continue
					}
					r := k.request(id)
					res, err := b.Reserve(k.ctx, r)
					k.check(err == nil && res.Outcome == backend.Acquired, "%q shares a record with another identity: %v, %v", id, res.Outcome, err)
					all[id] = r.Ref
				}
			}
			for id, ref := range all {
				_, err := b.Complete(k.ctx, backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: fmt.Appendf(nil, "%q", id), ReplayFor: long, KnownFor: long})
				k.check(err == nil, "Complete of %q: %v", id, err)
			}
			b = k.open()
			for id := range all {
				rec, err := b.Get(k.ctx, id)
				k.check(err == nil && rec.ID == id && string(rec.Body) == fmt.Sprintf("%q", id), "%q replays %s of %q, %v", id, quote(rec.Body), rec.ID, err)
			}
			n := 0
			for rec, err := range b.List(k.ctx, backend.Filter{}) {
				k.check(err == nil, "List: %v", err)
				_, ok := all[rec.ID]
				k.check(ok, "List shows %q, which was never stored", rec.ID)
				n++
			}
			k.check(n == len(all), "List shows %d records; %d were stored", n, len(all))
		}},
		{"R05/EverythingWithinTheLimitsIsKept", ruleLimits, func(k *kit) { // C41
			b := k.open()
			rng := rand.New(rand.NewPCG(1, 2))
			random := func(n int) string {
				raw := make([]byte, n)
				for i := range raw {
					raw[i] = byte(rng.Uint32())
				}
				return base64.StdEncoding.EncodeToString(raw)[:n]
			}
			parts := []string{"x", strings.Repeat("x", 128), random(128), "line\nbreak", "tab\t", "🙂", "' OR 1=1 --", "a\\b", "%s", "*", "[a]", "\x7f", "\u2028", "x ", ".", ".."}
			ids := []backend.ID{{Operation: "op", Key: strings.Repeat("x", 255)}, {Operation: "op", Key: random(255)}, {Operation: "op", Key: strings.Repeat("é", 127)}}
			for _, p := range parts {
				ids = append(ids, backend.ID{Tenant: p, Operation: p, Key: p}, backend.ID{Operation: "op2", Key: p})
			}
			ids = append(ids, backend.ID{Tenant: random(128), Operation: random(128), Key: random(255)})
			for _, id := range ids {
				r := k.request(id)
				res, err := b.Reserve(k.ctx, r)
				k.check(err == nil && res.Outcome == backend.Acquired, "Reserve of %.40q: %v, %v", id, res.Outcome, err)
				_, err = b.Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte(id.Key), ReplayFor: long, KnownFor: long})
				k.check(err == nil, "Complete of %.40q: %v", id, err)
				rec, err := k.open().Get(k.ctx, id)
				k.check(err == nil && rec.ID == id && string(rec.Body) == id.Key, "Get of %.40q: %.40q, %v", id, rec.ID, err)
			}
		}},
		{"R05/EverythingBeyondTheLimitsIsRefused", ruleLimits, func(k *kit) { // C41
			b := k.open()
			good := backend.ID{Tenant: "acme", Operation: "op", Key: "secret-key"}
			bad := map[string]backend.ID{"zero": {}}
			with := func(name string, change func(id *backend.ID)) {
				id := good
				change(&id)
				bad[name] = id
			}
			with("empty key", func(id *backend.ID) { id.Key = "" })
			with("empty operation", func(id *backend.ID) { id.Operation = "" })
			for _, n := range []int{256, 2600, 2800, 32767, 32769} {
				with(fmt.Sprint("key of ", n), func(id *backend.ID) { id.Key = strings.Repeat("x", n) })
			}
			with("tenant of 129", func(id *backend.ID) { id.Tenant = strings.Repeat("x", 129) })
			with("operation of 129", func(id *backend.ID) { id.Operation = strings.Repeat("x", 129) })
			for name, s := range map[string]string{"NUL": "secret-key\x00", "not UTF-8": "secret-key\xff", "half a character": "secret-key\xc3", "surrogate": "secret-key\xed\xa0\x80"} {
				with(name+" in key", func(id *backend.ID) { id.Key = s })
				with(name+" in tenant", func(id *backend.ID) { id.Tenant = s })
				with(name+" in operation", func(id *backend.ID) { id.Operation = s })
			}
			for name, id := range bad {
				ref := backend.Ref{ID: id, Owner: token()}
				r := k.request(id)
				_, errReserve := b.Reserve(k.ctx, r)
				_, errComplete := b.Complete(k.ctx, backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: long, KnownFor: long})
				_, errGet := b.Get(k.ctx, id)
				_, errResolve := b.Resolve(k.ctx, backend.ResolveRequest{ID: id, Fence: 1})
				for move, err := range map[string]error{
					"Reserve": errReserve, "Complete": errComplete, "Get": errGet, "Resolve": errResolve,
					"Release": b.Release(k.ctx, ref), "Renew": b.Renew(k.ctx, ref, long), "Forget": b.Forget(k.ctx, backend.ForgetRequest{ID: id, Fence: 1}),
				} {
					k.wants(err, backend.ErrInvalidKey, move+" with "+name)
					k.check(!strings.Contains(err.Error(), "secret-key"), "the error of %s quotes the key: %v", move, err)
				}
			}
			k.empty("after invalid keys")
		}},
		{"R05/InvalidRequestsAreRefused", "Another field of a request is out of range: ErrInvalidRequest, nothing was stored.", func(k *kit) { // C41
			b := k.open()
			for name, change := range map[string]func(r *backend.ReserveRequest){
				"zero token":       func(r *backend.ReserveRequest) { r.Owner = [16]byte{} },
				"no policy":        func(r *backend.ReserveRequest) { r.OnAbandoned = 0 },
				"unknown policy":   func(r *backend.ReserveRequest) { r.OnAbandoned = backend.Hold + 1 },
				"raw fingerprint":  func(r *backend.ReserveRequest) { r.Fingerprint = make([]byte, 32) },
				"long fingerprint": func(r *backend.ReserveRequest) { r.Fingerprint = make([]byte, 1024) },
				"six digests":      func(r *backend.ReserveRequest) { r.Fingerprint = digests("x", 1, 2, 3, 4, 5, 6) },
				"NUL in host":      func(r *backend.ReserveRequest) { r.Holder.Host = "a\x00b" },
				"broken host":      func(r *backend.ReserveRequest) { r.Holder.Host = "\xff" },
				"long host":        func(r *backend.ReserveRequest) { r.Holder.Host = strings.Repeat("h", 256) },
				"zero lease":       func(r *backend.ReserveRequest) { r.TTL = 0 },
				"zero window":      func(r *backend.ReserveRequest) { r.KnownFor = 0 },
			} {
				r := k.request(k.id())
				change(&r)
				_, err := b.Reserve(k.ctx, r)
				k.wants(err, backend.ErrInvalidRequest, "Reserve with "+name)
			}
			k.empty("after invalid requests")
			longest := k.request(k.key("longest"))
			longest.Fingerprint = digests("x", 1, 2, 3, 4, 5)
			longest.Holder = backend.Holder{Host: strings.Repeat("h", 255), PID: 1 << 22, Started: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)}
			k.unchanged(k.acquire(longest), "reading the longest request")
			r := k.request(k.id())
			was := k.acquire(r)
			for name, c := range map[string]backend.CompleteRequest{
				"no state":           {Ref: r.Ref, ReplayFor: long, KnownFor: long},
				"in flight":          {Ref: r.Ref, State: backend.InFlight, ReplayFor: long, KnownFor: long},
				"open":               {Ref: r.Ref, State: backend.Open, ReplayFor: long, KnownFor: long},
				"replay over dedup":  {Ref: r.Ref, State: backend.Completed, ReplayFor: long + 1, KnownFor: long},
				"a result too large": {Ref: r.Ref, State: backend.Completed, Body: make([]byte, backend.MaxBody+1), ReplayFor: long, KnownFor: long},
				"a zero token":       {Ref: backend.Ref{ID: r.ID}, State: backend.Completed, ReplayFor: long, KnownFor: long},
			} {
				_, err := b.Complete(k.ctx, c)
				k.wants(err, backend.ErrInvalidRequest, "Complete with "+name)
				k.unchanged(was, "Complete with "+name)
			}
			none := backend.Ref{ID: r.ID}
			k.wants(b.Release(k.ctx, none), backend.ErrInvalidRequest, "Release with a zero token")
			k.wants(b.Renew(k.ctx, none, long), backend.ErrInvalidRequest, "Renew with a zero token")
			k.unchanged(was, "moves with a zero token")
		}},
		{"R05/TheLargestResultIsKept", "What one store accepts is accepted by all: results up to MaxBody bytes.", func(k *kit) {
			body := bytes.Repeat([]byte("0123456789abcdef"), backend.MaxBody/16)
			r := k.request(k.id())
			k.acquire(r)
			k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: body, ReplayFor: long, KnownFor: long})
			k.check(bytes.Equal(k.get(r.ID).Body, body), "the largest result came back as %d bytes", len(k.get(r.ID).Body))
		}},
		{"R07/InvalidInputComesFirst", "Answers come in one order: invalid input, unknown version, corrupt, mismatch, uncertain, in flight, result.", func(k *kit) {
			for _, s := range situations() {
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					r.Fingerprint, r.TTL = digests("amount 999"), 0
					_, err := k.open().Reserve(k.ctx, r)
					k.wants(err, backend.ErrInvalidRequest, "an invalid reserve over "+s.name)
					k.unchanged(was, "an invalid reserve")
				})
			}
		}},
	}
}

// empty insists that the store holds nothing.
func (k *kit) empty(when string) {
	k.t.Helper()
	for rec, err := range k.open().List(k.ctx, backend.Filter{}) {
		k.fail("%s the store holds %s, %v", when, show(rec), err)
	}
}

// ended reports whether an error is what a dead context should lead to.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown)
}
