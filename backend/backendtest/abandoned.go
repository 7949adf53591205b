package backendtest

import (
	"fmt"

	"github.com/goidem/idem/backend"
)

const (
	rulePolicy = "An abandoned attempt is taken over by policy, which is stored with the reservation; the stricter of the stored and the caller's wins (Hold > Recover > Rerun)."
	ruleHold   = "Hold: the key turns uncertain, idem starts no second fn, callers get ErrUnresolved until Resolve."
	ruleAsk    = "Recover: ask first, then take over by compare-and-set; without an answer the key stays as it was."
)

// abandonedChecks: R13, what happens to an attempt whose lease is over.
func abandonedChecks() []check {
	policies := []backend.Abandoned{backend.Rerun, backend.Recover, backend.Hold}
	return []check{
		{"R13/TheStricterPolicyWins", rulePolicy, func(k *kit) {
			for _, stored := range policies {
				for _, callers := range policies {
					for _, recovered := range []bool{false, true} {
						k.each(fmt.Sprintf("stored %v, caller %v, recovered %v", stored, callers, recovered), func(k *kit) {
							r := k.request(k.id())
							r.OnAbandoned = stored
							was := k.abandon(r)
							r = over(r, was.Fence)
							r.OnAbandoned, r.Recovered = callers, recovered
							res := k.reserve(r)
							switch strict := max(stored, callers); {
							case strict == backend.Hold:
								k.check(res.Outcome == backend.Existing && res.Record.State == backend.Uncertain, "it was answered %v, %s; want existing, uncertain", res.Outcome, show(res.Record))
							case strict == backend.Recover && !recovered:
								k.check(res.Outcome == backend.Existing && res.Record.State == backend.InFlight, "it was answered %v, %s; want existing, in flight", res.Outcome, show(res.Record))
								k.unchanged(was, "a takeover without an answer from RecoverWith")
							default:
								k.check(res.Outcome == backend.Acquired && res.Record.TookOver, "it was answered %v, %s; want acquired by takeover", res.Outcome, show(res.Record))
								k.check(res.Record.OnAbandoned == strict, "the new attempt has the policy %v; want %v, the stricter", res.Record.OnAbandoned, strict)
							}
						})
					}
				}
			}
		}},
		{"R13/HeldRecordStaysUntilResolved", ruleHold, func(k *kit) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Hold
			was := k.abandon(r)
			k.unchanged(was, "waiting") // nothing turns by itself
			res := k.reserve(over(r, was.Fence))
			held := res.Record
			k.check(held.State == backend.Uncertain && held.Fence == was.Fence && held.Owner == was.Owner && held.Attempt == was.Attempt, "the held record is %s; want uncertain with fence, attempt and token of the abandoned attempt", show(held))
			k.check(string(held.Fingerprint) == string(was.Fingerprint) && held.Holder.Host == was.Holder.Host, "the held record has lost fingerprint or holder: a person must judge it")
			k.unchanged(held, "reading it")
			for range 3 {
				k.pass(k.unit)
				k.sweep()
				for _, fence := range []uint64{0, held.Fence} {
					next := over(r, fence)
					next.Recovered, next.OnAbandoned = true, backend.Rerun
					res := k.reserve(next)
					k.check(res.Outcome == backend.Existing && res.Record.State == backend.Uncertain, "a reserve over a held record was answered %v, %s; want existing, uncertain", res.Outcome, show(res.Record))
				}
				k.unchanged(held, "waiting, sweeping and reserving")
			}
		}},
		{"R13/HoldOfARerunRecordHasNoWindow", "Held, recovering and uncertain records have no window until settled.", func(k *kit) {
			r := k.request(k.id())
			r.KnownFor = 2 * k.unit
			was := k.abandon(r)
			next := over(r, was.Fence)
			next.OnAbandoned = backend.Hold
			held := k.reserve(next).Record
			k.check(held.State == backend.Uncertain && held.KnownUntil.IsZero(), "the held record is %s; want uncertain without an end", show(held))
			k.pass(2 * k.unit)
			k.sweep()
			k.unchanged(held, "the end of the window that it had under Rerun")
		}},
		{"R13/LateCompletionSettlesAHeldRecord", "Its own late completion settles an uncertain key.", func(k *kit) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Hold
			was := k.abandon(r)
			k.reserve(over(r, was.Fence))
			done := k.finish(r.Ref, "after all")
			k.check(done.State == backend.Completed && string(done.Body) == "after all" && !done.KnownUntil.IsZero(), "the late completion left %s", show(done))
			k.unchanged(done, "reading it")
		}},
		{"R13/OnlyAbandonedAttemptsAreHeld", ruleHold, func(k *kit) {
			for _, policy := range []backend.Abandoned{backend.Recover, backend.Hold} {
				k.each(policy.String(), func(k *kit) {
					r := k.request(k.id())
					r.OnAbandoned = policy
					live := k.acquire(r)
					res := k.reserve(over(r, live.Fence))
					k.check(res.Outcome == backend.Existing, "a takeover of a live attempt was answered %v", res.Outcome)
					k.unchanged(live, "a takeover of a live attempt")
					k.release(r.Ref)
					next := over(r, live.Fence)
					next.OnAbandoned = backend.Rerun
					rec := k.acquire(next)
					k.check(rec.OnAbandoned == backend.Rerun && !rec.TookOver, "a released record passed on its policy %v (took over: %v); only an abandoned attempt does", rec.OnAbandoned, rec.TookOver)
				})
			}
		}},
		{"R13/PlainReserveHoldsNothing", ruleCreates, func(k *kit) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Hold
			was := k.abandon(r)
			res := k.reserve(over(r, 0))
			k.check(res.Outcome == backend.Existing && res.Record.State == backend.InFlight, "a plain reserve over an abandoned attempt was answered %v, %s", res.Outcome, show(res.Record))
			k.unchanged(was, "a plain reserve over an abandoned attempt under Hold")
		}},
		{"R13/TheInheritedPolicyHoldsForTheNextTakeOver", rulePolicy, func(k *kit) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Recover
			was := k.abandon(r)
			next := over(r, was.Fence)
			next.OnAbandoned, next.Recovered, next.TTL = backend.Rerun, true, k.unit
			rec := k.acquire(next)
			k.check(rec.KnownUntil.IsZero(), "an attempt under Recover has a window: %s", show(rec))
			k.pass(k.unit)
			last := over(r, rec.Fence)
			last.OnAbandoned = backend.Rerun
			res := k.reserve(last)
			k.check(res.Outcome == backend.Existing && res.Record.State == backend.InFlight, "a takeover without an answer was answered %v, %s", res.Outcome, show(res.Record))
			last.Recovered = true
			k.acquire(last)
		}},
		{"R13/RecoverComparesTheFence", ruleAsk, func(k *kit) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Recover
			was := k.abandon(r)
			a, b := over(r, was.Fence), over(r, was.Fence)
			a.Recovered, b.Recovered = true, true
			rec := k.acquire(a)
			res := k.reserve(b)
			k.check(res.Outcome == backend.Existing, "the second of two callers that had both asked was answered %v", res.Outcome)
			k.unchanged(rec, "the second takeover")
		}},
	}
}
