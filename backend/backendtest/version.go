package backendtest

import (
	"github.com/goidem/idem/backend"
)

const (
	ruleVersions = "A Fingerprint carries digests of all versions still supported, equal versions compare, no common one is a typed error."
	ruleUnknown  = "Unknown version: typed error, fn does not run."
	ruleOrder    = "Answers come in one order: invalid input, unknown version, corrupt, mismatch, uncertain, in flight, result (or ErrResultExpired), ErrKeyExpired."
)

// versionChecks: R28 and the order of answers of R7.
func versionChecks() []check {
	// unreadable insists that every call on a record that cannot be read says so.
	unreadable := func(k *kit, spoil func(k *kit, id backend.ID), want error) {
		for _, s := range situations() {
			k.in(s, func(k *kit) {
				r := k.request(k.id())
				was := s.make(k, r)
				k.planted = true
				spoil(k, r.ID)
				same, other := over(r, was.Fence), over(r, 0)
				other.Fingerprint = digests("amount 999")
				for name, req := range map[string]backend.ReserveRequest{"a takeover": same, "another fingerprint": other, "a copy of the reserve": r} {
					_, err := k.open().Reserve(k.ctx, req)
					k.wants(err, want, name+" over "+s.name)
				}
				for _, m := range moves() {
					k.wants(m.do(k.ctx, k.open(), r.Ref), want, m.name+" over "+s.name)
				}
				_, err := k.open().Get(k.ctx, r.ID)
				k.wants(err, want, "Get of "+s.name)
				_, err = k.open().Resolve(k.ctx, backend.ResolveRequest{ID: r.ID, Fence: was.Fence})
				k.wants(err, want, "Resolve of "+s.name)
				k.pass(k.unit)
				_, _ = k.open().Expire(k.ctx, backend.ExpireRequest{}) // may fail, must not delete
				_, err = k.open().Get(k.ctx, r.ID)
				k.wants(err, want, "Get of "+s.name+" after a sweep")
			})
		}
	}
	return []check{
		{"R28/FingerprintVersions", ruleVersions, func(k *kit) {
			v := func(request string, versions ...byte) []byte { return digests(request, versions...) }
			mixed := func(parts ...[]byte) (b []byte) {
				for _, p := range parts {
					b = append(b, p...)
				}
				return b
			}
			for _, c := range []struct {
				name          string
				stored, given []byte
				want          backend.Outcome // 0: typed error
			}{
				{"equal", v("a", 1), v("a", 1), backend.Existing},
				{"newer caller that still knows the old version", v("a", 1), v("a", 2, 1), backend.Existing},
				{"older caller, newer writer", v("a", 2, 1), v("a", 1), backend.Existing},
				{"both know both", v("a", 2, 1), v("a", 1, 2), backend.Existing},
				{"the newest common version decides, for equal", mixed(v("a", 1), v("b", 2)), mixed(v("x", 1), v("b", 2)), backend.Existing},
				{"the newest common version decides, for different", mixed(v("a", 1), v("b", 2)), mixed(v("a", 1), v("x", 2)), backend.Mismatch},
				{"the newest common version decides among three", mixed(v("a", 1), v("b", 2), v("c", 3)), mixed(v("b", 2), v("x", 1)), backend.Existing},
				{"different request, old version", v("a", 1), v("b", 2, 1), backend.Mismatch},
				{"no common version", v("a", 1), v("a", 2), 0},
				{"no common version, several", v("a", 1, 3), v("a", 2, 4), 0},
			} {
				k.each(c.name, func(k *kit) {
					r := k.request(k.id())
					r.Fingerprint = c.stored
					was := k.acquire(r)
					for range 2 { // in flight, then completed
						for _, fence := range []uint64{0, was.Fence} {
							next := over(r, fence)
							next.Fingerprint = c.given
							res, err := k.open().Reserve(k.ctx, next)
							if c.want == 0 {
								k.wants(err, backend.ErrUnknownVersion, "Reserve with no common fingerprint version")
							} else {
								k.check(err == nil && res.Outcome == c.want, "Reserve was answered %v, %v; want %v", res.Outcome, err, c.want)
							}
							k.unchanged(was, "comparing fingerprints")
						}
						was = k.finish(r.Ref, "secret")
					}
				})
			}
		}},
		{"R28/UnknownRecordVersion", ruleUnknown, func(k *kit) { // C46
			k.need(k.h.Future != nil, "Future")
			unreadable(k, func(k *kit, id backend.ID) { k.h.Future(k.t, id) }, backend.ErrUnknownVersion)
		}},
		{"R07/CorruptRecordIsNoAnswer", ruleOrder, func(k *kit) { // C31: damage is neither "in flight" nor "free"
			k.need(k.h.Damage != nil, "Damage")
			unreadable(k, func(k *kit, id backend.ID) { k.h.Damage(k.t, id) }, backend.ErrCorruptRecord)
		}},
		{"R07/MismatchComesBeforeUncertainInFlightAndResult", ruleOrder, func(k *kit) {
			for _, s := range situations() {
				if s.state == backend.Open {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					r.OnAbandoned = backend.Hold
					was := s.make(k, r)
					next := over(r, was.Fence)
					next.Fingerprint = digests("amount 999")
					k.mismatch(next, s.name)
					k.unchanged(was, "a mismatch under Hold")
				})
			}
		}},
		{"R07/UncertainComesBeforeInFlight", ruleOrder, func(k *kit) {
			r := k.request(k.id()) // with a lease that still runs
			k.acquire(r)
			k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain})
			res := k.reserve(over(r, 0))
			k.check(res.Outcome == backend.Existing && res.Record.State == backend.Uncertain, "a reserve over an uncertain record with a live lease was answered %v, %s", res.Outcome, show(res.Record))
		}},
		{"R07/GuaranteesAreStated", "Guarantees returns what was found out about the store when it was opened. It does no I/O.", func(k *kit) {
			g := k.open().Guarantees()
			k.check(g.ProcessCrash != backend.Unchecked || g.MachineCrash != backend.Unchecked || len(g.Findings) > 0, "Guarantees says nothing at all: %+v", g)
		}},
	}
}
