package backendtest

import (
	"math"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleExtends  = "Renew moves the end of the lease to ttl from now; it never brings it forward."
	ruleDeadline = "Reserve always writes a lease deadline. A record without one is held until Resolve or Forget: never expired, never free. No zero duration is read as \"for ever\" or \"already over\"."
)

// leaseChecks: renewal. R8's own part is the core's; this is what it relies on.
func leaseChecks() []check {
	return []check{
		{"R08/RenewMovesTheEndOfTheLease", ruleExtends, func(k *kit) {
			r := k.request(k.id())
			r.TTL = 2 * k.unit
			k.acquire(r)
			k.pass(k.unit)
			k.check(k.open().Renew(k.ctx, r.Ref, 4*k.unit) == nil, "Renew failed")
			now := k.reserve(over(r, 0)).Now
			rec := k.get(r.ID)
			slack := k.unit/2 + 2*k.h.Tick
			k.check((rec.LeaseUntil.Sub(now)-4*k.unit).Abs() <= slack, "after a renewal for %v the lease ends in %v", 4*k.unit, rec.LeaseUntil.Sub(now))
			k.pass(2 * k.unit)
			res := k.reserve(over(r, rec.Fence))
			k.check(res.Outcome == backend.Existing && res.Record.IsLive(res.Now), "past the first lease, inside the renewed one, a takeover was answered %v, %s", res.Outcome, show(res.Record))
			k.pass(2 * k.unit)
			k.acquire(over(r, rec.Fence))
		}},
		{"R08/RenewChangesNothingElse", ruleExtends, func(k *kit) {
			r := k.request(k.id())
			r.TTL = k.unit
			was := k.acquire(r)
			k.check(k.open().Renew(k.ctx, r.Ref, long) == nil, "Renew failed")
			rec := k.get(r.ID)
			k.check(rec.LeaseUntil.After(was.LeaseUntil), "a renewal did not extend the lease")
			rec.LeaseUntil, rec.KnownUntil = was.LeaseUntil, was.KnownUntil
			if d := diff(was, rec, k.h.Tick); d != "" {
				k.fail("a renewal changed more than the lease: %s", d)
			}
		}},
		{"R08/RenewNeverShortens", ruleExtends, func(k *kit) {
			r := k.request(k.id())
			was := k.acquire(r)
			k.check(k.open().Renew(k.ctx, r.Ref, k.unit) == nil, "Renew failed")
			k.unchanged(was, "a short renewal")
			k.pass(k.unit)
			res := k.reserve(over(r, was.Fence))
			k.check(res.Outcome == backend.Existing, "after a short renewal, inside the first lease, a takeover was answered %v", res.Outcome)
		}},
		{"R08/LateRenewalStealsNothing", ruleRenew, func(k *kit) { // C27
			r := k.request(k.id())
			was := k.abandon(r)
			next := over(r, was.Fence)
			rec := k.acquire(next)
			k.wants(k.open().Renew(k.ctx, r.Ref, long), backend.ErrLeaseLost, "a late renewal by the old owner")
			k.unchanged(rec, "a late renewal by the old owner")
			k.release(next.Ref)
			open := k.get(r.ID)
			k.wants(k.open().Renew(k.ctx, r.Ref, long), backend.ErrLeaseLost, "a late renewal by the old owner over an open record")
			k.wants(k.open().Renew(k.ctx, next.Ref, long), backend.ErrLeaseLost, "a late renewal by the last owner over its own open record")
			k.unchanged(open, "late renewals")
		}},
		{"R08/RenewAfterTheLeaseKeepsAnAttemptThatNobodyTook", ruleRenew, func(k *kit) {
			r := k.request(k.id())
			was := k.abandon(r)
			k.check(k.open().Renew(k.ctx, r.Ref, long) == nil, "Renew of an attempt in flight that nobody took over failed")
			res := k.reserve(over(r, was.Fence))
			k.check(res.Outcome == backend.Existing, "after that renewal a takeover was answered %v", res.Outcome)
		}},
		{"R08/RenewOfAnExpiredRecordIsLost", "An expired record reads as absent at once, swept or not.", func(k *kit) {
			r := k.request(k.id())
			r.TTL, r.KnownFor = k.unit, k.unit
			k.acquire(r)
			k.pass(2 * k.unit)
			k.wants(k.open().Renew(k.ctx, r.Ref, long), backend.ErrLeaseLost, "Renew past the abandoned record's window")
			k.absent(r.ID, "after that renewal")
		}},
		{"R08/RenewMovesTheAbandonedWindow", "Abandoned records under Rerun count from the end of their lease.", func(k *kit) {
			r := k.request(k.id())
			r.TTL, r.KnownFor = k.unit, 2*k.unit
			k.acquire(r)
			k.check(k.open().Renew(k.ctx, r.Ref, 4*k.unit) == nil, "Renew failed")
			rec := k.get(r.ID)
			k.within(rec.KnownUntil.Sub(rec.LeaseUntil), r.KnownFor, "the time from the renewed lease to the end of the record")
			k.pass(4 * k.unit)
			k.check(k.get(r.ID).State == backend.InFlight, "after the renewed lease the abandoned record is gone")
			k.pass(2 * k.unit)
			k.absent(r.ID, "after the abandoned record's window")
		}},
	}
}

// deadlineChecks: R14.
func deadlineChecks() []check {
	// plant puts an attempt in flight without a lease deadline, as a writer that
	// knew none would have left it.
	plant := func(k *kit, policy backend.Abandoned, known time.Time) (backend.ReserveRequest, backend.Record) {
		k.need(k.h.Put != nil, "Put")
		k.planted = true
		r := k.request(k.id())
		probe := k.acquire(k.request(k.key("probe")))
		rec := backend.Record{
			Ref: r.Ref, State: backend.InFlight, Fingerprint: r.Fingerprint, Fence: probe.Fence + 40, Attempt: 3,
			OnAbandoned: policy, ReservedAt: probe.ReservedAt, KnownUntil: known,
		}
		k.h.Put(k.t, rec)
		k.unchanged(rec, "planting the record")
		return r, rec
	}
	policies := []backend.Abandoned{backend.Rerun, backend.Recover, backend.Hold}
	return []check{
		{"R14/ReserveWritesADeadline", ruleDeadline, func(k *kit) {
			for _, policy := range policies {
				k.each(policy.String(), func(k *kit) {
					r := k.request(k.id())
					r.TTL, r.OnAbandoned = k.unit, policy
					res := k.reserve(r)
					k.within(res.Record.LeaseUntil.Sub(res.Now), r.TTL, "the lease by the store's clock")
					k.within(res.Record.ReservedAt.Sub(res.Now), 0, "the age of the attempt")
					k.pass(r.TTL)
					r = over(r, res.Record.Fence)
					r.Recovered = true
					if res = k.reserve(r); res.Outcome == backend.Acquired {
						k.within(res.Record.LeaseUntil.Sub(res.Now), r.TTL, "the lease after a takeover")
					}
				})
			}
		}},
		{"R14/MissingDeadlineIsNeverOver", ruleDeadline, func(k *kit) { // C37
			k.need(k.h.Put != nil, "Put")
			for _, policy := range policies {
				k.each(policy.String(), func(k *kit) {
					r, was := plant(k, policy, time.Time{})
					for range 2 {
						for _, fence := range []uint64{0, was.Fence} {
							next := over(r, fence)
							next.Recovered = true
							res := k.reserve(next)
							k.check(res.Outcome == backend.Existing && res.Record.State == backend.InFlight, "a reserve over an attempt without deadline was answered %v, %s; want existing, in flight", res.Outcome, show(res.Record))
							k.unchanged(was, "a reserve over an attempt without deadline")
						}
						k.sweep()
						k.unchanged(was, "a sweep")
						k.pass(k.unit)
					}
				})
			}
		}},
		{"R14/MissingDeadlineOutlivesAnyWindow", ruleDeadline, func(k *kit) {
			k.need(k.h.Put != nil, "Put")
			now := k.reserve(k.request(k.key("clock"))).Now
			r, was := plant(k, backend.Rerun, now.Add(k.unit))
			k.pass(k.unit)
			k.sweep()
			res := k.reserve(over(r, was.Fence))
			k.check(res.Outcome == backend.Existing && res.Record.State == backend.InFlight, "a reserve over an attempt without deadline was answered %v, %s; want existing, in flight", res.Outcome, show(res.Record))
			k.unchanged(was, "waiting")
		}},
		{"R14/MissingDeadlineEndsByItsOwnAttempt", ruleDeadline, func(k *kit) {
			r, was := plant(k, backend.Rerun, time.Time{})
			k.refused(backend.Ref{ID: was.ID, Owner: token()}, "a stranger")
			done := k.finish(r.Ref, "mine")
			k.check(done.State == backend.Completed, "its own completion was answered %s", show(done))
		}},
		{"R14/MissingDeadlineEndsByResolve", ruleDeadline, func(k *kit) {
			r, was := plant(k, backend.Rerun, time.Time{})
			rec, err := k.open().Resolve(k.ctx, backend.ResolveRequest{ID: was.ID, Fence: was.Fence, Evidence: "host is gone"})
			k.check(err == nil && rec.State == backend.Open, "Resolve of an attempt without deadline: %s, %v; want an open record", show(rec), err)
			k.acquire(over(r, was.Fence))
		}},
		{"R14/MissingDeadlineEndsByForget", ruleDeadline, func(k *kit) {
			r, was := plant(k, backend.Rerun, time.Time{})
			err := k.open().Forget(k.ctx, backend.ForgetRequest{ID: was.ID, Fence: was.Fence})
			k.wants(err, backend.ErrInFlight, "Forget of an attempt that may be alive")
			err = k.open().Forget(k.ctx, backend.ForgetRequest{ID: was.ID, Fence: was.Fence, Force: true})
			k.check(err == nil, "forced Forget of an attempt without deadline: %v", err)
			k.absent(was.ID, "after Forget")
			k.acquire(over(r, 0))
		}},
		{"R14/TheLongestDurationIsNotOver", ruleDeadline, func(k *kit) {
			r := k.request(k.id())
			r.TTL, r.KnownFor = math.MaxInt64, math.MaxInt64
			was := k.acquire(r)
			k.pass(k.unit)
			res := k.reserve(over(r, was.Fence))
			k.check(res.Outcome == backend.Existing && res.Record.IsLive(res.Now), "a lease of %v was answered %v, %s", r.TTL, res.Outcome, show(res.Record))
			k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("x"), ReplayFor: math.MaxInt64, KnownFor: math.MaxInt64})
			k.pass(k.unit)
			k.sweep()
			res = k.reserve(over(r, 0))
			k.check(res.Outcome == backend.Existing && string(res.Record.Body) == "x", "a record with windows of %v was answered %v, %s", r.TTL, res.Outcome, show(res.Record))
		}},
		{"R14/ZeroDurationsAreRefused", ruleDeadline, func(k *kit) {
			r := k.request(k.id())
			for _, d := range []time.Duration{0, -1, math.MinInt64} {
				zero := r
				zero.TTL = d
				_, err := k.open().Reserve(k.ctx, zero)
				k.wants(err, backend.ErrInvalidRequest, "a lease of "+d.String())
				zero = r
				zero.KnownFor = d
				_, err = k.open().Reserve(k.ctx, zero)
				k.wants(err, backend.ErrInvalidRequest, "a window of "+d.String())
			}
			k.absent(r.ID, "after invalid reserves")
			was := k.acquire(r)
			for _, d := range []time.Duration{0, -1} {
				k.wants(k.open().Renew(k.ctx, r.Ref, d), backend.ErrInvalidRequest, "a renewal for "+d.String())
				for _, w := range [][2]time.Duration{{d, long}, {long, d}, {d, d}} {
					_, err := k.open().Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, ReplayFor: w[0], KnownFor: w[1]})
					k.wants(err, backend.ErrInvalidRequest, "a completion with the windows "+w[0].String()+", "+w[1].String())
				}
				k.unchanged(was, "an invalid request")
			}
		}},
	}
}
