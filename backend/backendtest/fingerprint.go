package backendtest

import (
	"bytes"

	"github.com/goidem/idem/backend"
)

const (
	ruleMismatch = "The fingerprint is compared in every visible state. A mismatch executes nothing, changes nothing and never carries the stored result."
	ruleStays    = "The fingerprint stays with the record through completion and takeover."
	ruleUnbinds  = "Release unbinds the fingerprint: an open record takes any fingerprint."
	ruleNone     = "A record without a fingerprint matches only calls without one."
)

// fingerprintChecks: R2.
func fingerprintChecks() []check {
	return []check{
		{"R02/MismatchInEveryState", ruleMismatch, func(k *kit) {
			for _, s := range situations() {
				if s.state == backend.Open {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					for _, fence := range []uint64{0, was.Fence} {
						other := over(r, fence)
						other.Fingerprint = digests("amount 999")
						k.mismatch(other, s.name)
						k.unchanged(was, "a reserve with another fingerprint")
						other.Fingerprint = nil
						k.mismatch(other, s.name+", by a call without fingerprint")
						k.unchanged(was, "a reserve without fingerprint")
					}
				})
			}
		}},
		{"R02/MismatchNeverCarriesTheResult", ruleMismatch, func(k *kit) {
			r := k.request(k.id())
			secret := []byte("card 4111 1111 1111 1111")
			k.finish(k.acquire(r).Ref, string(secret))
			r.Owner, r.Fingerprint = token(), digests("amount 999")
			res := k.reserve(r)
			k.check(res.Outcome == backend.Mismatch, "another fingerprint was answered %v; want mismatch", res.Outcome)
			k.check(!bytes.Contains(res.Record.Body, secret) && len(res.Record.Body) == 0, "the mismatch carries a body: %s", quote(res.Record.Body))
		}},
		{"R02/FingerprintSurvivesCompletion", ruleStays, func(k *kit) { // C18
			for _, s := range situations() {
				if s.state != backend.Completed && s.state != backend.Failed && s.state != backend.Uncertain {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					k.check(bytes.Equal(was.Fingerprint, r.Fingerprint), "%s has lost the fingerprint of its request: %x", s.name, was.Fingerprint)
					r.Owner = token()
					res := k.reserve(r)
					k.check(res.Outcome == backend.Existing, "the same request over %s was answered %v; want existing", s.name, res.Outcome)
					other := over(r, 0)
					other.Fingerprint = digests("amount 999")
					k.mismatch(other, s.name)
				})
			}
		}},
		{"R02/FingerprintSurvivesRenewal", ruleStays, func(k *kit) {
			r := k.request(k.id())
			r.TTL = k.unit
			k.acquire(r)
			k.check(k.open().Renew(k.ctx, r.Ref, long) == nil, "Renew failed")
			other := over(r, 0)
			other.Fingerprint = digests("amount 999")
			k.mismatch(other, "a renewed attempt")
			same := k.reserve(over(r, 0))
			k.check(same.Outcome == backend.Existing, "the same request over a renewed attempt was answered %v; want existing", same.Outcome)
		}},
		{"R02/FingerprintSurvivesTakeOver", ruleStays, func(k *kit) {
			r := k.request(k.id())
			was := k.abandon(r)
			r = over(r, was.Fence)
			rec := k.acquire(r)
			k.check(bytes.Equal(rec.Fingerprint, r.Fingerprint), "after a takeover the record has the fingerprint %x", rec.Fingerprint)
			other := over(r, 0)
			other.Fingerprint = digests("amount 999")
			k.mismatch(other, "an attempt that took over")
			k.finish(r.Ref, "x")
			k.mismatch(other, "the completion of an attempt that took over")
		}},
		{"R02/FingerprintSurvivesHold", ruleStays, func(k *kit) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Hold
			was := k.abandon(r)
			k.reserve(over(r, was.Fence))
			other := over(r, 0)
			other.Fingerprint = digests("amount 999")
			k.mismatch(other, "a held record")
			same := k.reserve(over(r, 0))
			k.check(same.Outcome == backend.Existing && same.Record.State == backend.Uncertain, "the same request over a held record was answered %v, %s; want existing, uncertain", same.Outcome, show(same.Record))
		}},
		{"R02/ReleaseUnbindsTheFingerprint", ruleUnbinds, func(k *kit) {
			r := k.request(k.id())
			open := k.opened(r)
			k.check(len(open.Fingerprint) == 0, "an open record still has the fingerprint %x", open.Fingerprint)
			r = over(r, open.Fence)
			r.Fingerprint = digests("amount 999")
			rec := k.acquire(r)
			k.check(bytes.Equal(rec.Fingerprint, r.Fingerprint), "the new attempt has the fingerprint %x; want its own", rec.Fingerprint)
			k.release(r.Ref)
			r = over(r, rec.Fence)
			r.Fingerprint = nil
			rec = k.acquire(r)
			k.check(len(rec.Fingerprint) == 0, "an attempt without fingerprint has %x", rec.Fingerprint)
		}},
		{"R02/NoneMatchesOnlyNone", ruleNone, func(k *kit) {
			for _, s := range situations() {
				if s.state == backend.Open {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					r.Fingerprint = nil
					was := s.make(k, r)
					r.Owner = token()
					res := k.reserve(r)
					k.check(res.Outcome == backend.Existing, "a call without fingerprint over %s without one was answered %v; want existing", s.name, res.Outcome)
					r.Fingerprint = digests("amount 100")
					k.mismatch(r, s.name+" without fingerprint")
					r.Fingerprint, r.TakeOver = digests("amount 100"), was.Fence
					k.mismatch(r, s.name+" without fingerprint")
					k.unchanged(was, "a mismatch")
				})
			}
		}},
		{"R02/ExpiredRecordBindsNothing", "An expired record reads as absent at once, swept or not.", func(k *kit) {
			r := k.request(k.id())
			k.expired(r, "secret of another request")
			r.Owner, r.Fingerprint = token(), digests("amount 999")
			res := k.reserve(r)
			k.check(res.Outcome == backend.Existing || res.Outcome == backend.Acquired, "over an expired record another fingerprint was answered %v", res.Outcome)
			k.check(len(res.Record.Body) == 0, "the answer over an expired record carries its result: %s", quote(res.Record.Body))
			if res.Outcome == backend.Existing {
				rec := k.obtain(r)
				k.check(bytes.Equal(rec.Fingerprint, r.Fingerprint), "the new attempt has the fingerprint %x; want its own", rec.Fingerprint)
			}
		}},
	}
}

// mismatch insists that a reserve is refused for its fingerprint.
func (k *kit) mismatch(r backend.ReserveRequest, over string) {
	k.t.Helper()
	res := k.reserve(r)
	k.check(res.Outcome == backend.Mismatch, "another fingerprint over %s was answered %v; want mismatch", over, res.Outcome)
	k.check(len(res.Record.Body) == 0, "the mismatch over %s carries the stored result: %s", over, quote(res.Record.Body))
}
