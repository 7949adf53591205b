package backendtest

import (
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleCreates  = "A plain reserve only creates."
	ruleTakeover = "Reserving over an open, abandoned or expired record is compare-and-set on the observed fence and checks in that same step that the lease is over by the store's clock."
	ruleFence    = "The fence grows strictly with each attempt on a key while its record lives, open included: over an existing record it is observed + 1."
)

// situation is a record in some state, and how to get there.
type situation struct {
	name  string
	state backend.State
	free  bool // a takeover may succeed
	make  func(k *kit, r backend.ReserveRequest) backend.Record
}

// situations returns every form that an existing, visible record can have.
func situations() []situation {
	return []situation{
		{"a live attempt", backend.InFlight, false, (*kit).acquire},
		{"an abandoned attempt", backend.InFlight, true, (*kit).abandon},
		{"a completed record", backend.Completed, false, func(k *kit, r backend.ReserveRequest) backend.Record {
			return k.finish(k.acquire(r).Ref, "the answer")
		}},
		{"a failed record", backend.Failed, false, func(k *kit, r backend.ReserveRequest) backend.Record {
			return k.settle(backend.CompleteRequest{Ref: k.acquire(r).Ref, State: backend.Failed, Body: []byte("declined"), ReplayFor: long, KnownFor: long})
		}},
		{"an uncertain record", backend.Uncertain, false, func(k *kit, r backend.ReserveRequest) backend.Record {
			return k.settle(backend.CompleteRequest{Ref: k.acquire(r).Ref, State: backend.Uncertain})
		}},
		{"an open record", backend.Open, true, (*kit).opened},
	}
}

// abandon leaves an attempt whose lease is over.
func (k *kit) abandon(r backend.ReserveRequest) backend.Record {
	k.t.Helper()
	r.TTL = k.unit
	rec := k.acquire(r)
	k.pass(r.TTL)
	return rec
}

// opened leaves a released record.
func (k *kit) opened(r backend.ReserveRequest) backend.Record {
	k.t.Helper()
	k.release(k.acquire(r).Ref)
	rec := k.get(r.ID)
	k.check(rec.State == backend.Open, "after a release there is %s; want an open record, which keeps fence and token for delayed requests", show(rec))
	return rec
}

// expired leaves a completed record whose dedup window is over.
func (k *kit) expired(r backend.ReserveRequest, body string) backend.Record {
	k.t.Helper()
	rec := k.settle(backend.CompleteRequest{Ref: k.acquire(r).Ref, State: backend.Completed, Body: []byte(body), ReplayFor: k.unit, KnownFor: k.unit})
	k.pass(k.unit)
	return rec
}

// reserveChecks: R6, first half, and what a new record looks like.
func reserveChecks() []check {
	return []check{
		{"R06/PlainReserveCreates", ruleCreates, func(k *kit) {
			r := k.request(k.id())
			rec := k.acquire(r)
			k.check(rec.Attempt == 1 && !rec.TookOver, "the first attempt is number %d, took over: %v", rec.Attempt, rec.TookOver)
			k.check(string(rec.Fingerprint) == string(r.Fingerprint), "the record has another fingerprint than the request")
			k.check(rec.OnAbandoned == backend.Rerun, "the record has the policy %v; want the request's", rec.OnAbandoned)
			k.check(rec.Holder.Host == r.Holder.Host && rec.Holder.PID == r.Holder.PID && near(rec.Holder.Started, r.Holder.Started, k.h.Tick), "the record has the holder %v; want %v", rec.Holder, r.Holder)
			k.unchanged(rec, "reading through another handle")
		}},
		{"R06/PlainReserveOnlyCreates", ruleCreates, func(k *kit) {
			for _, s := range situations() {
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					r.Owner = token()
					res := k.reserve(r)
					k.check(res.Outcome == backend.Existing, "a plain reserve over %s was answered %v; want existing", s.name, res.Outcome)
					k.check(res.Record.State == s.state, "the answer over %s shows %s", s.name, show(res.Record))
					if d := diff(was, res.Record, k.h.Tick); d != "" {
						k.fail("the answer over %s differs from the record: %s", s.name, d)
					}
					k.unchanged(was, "a plain reserve over "+s.name)
				})
			}
		}},
		{"R06/ExpiredRecordIsNotTakenOverPlainlyAndUnseen", ruleCreates, func(k *kit) {
			r := k.request(k.id())
			was := k.expired(r, "old")
			r.Owner = token()
			// A store that has removed the record itself creates; one that still has
			// it shows its fence, so that a takeover can name it.
			res := k.reserve(r)
			if res.Outcome == backend.Existing {
				k.check(res.Record.Expired(res.Now) && res.Record.Fence == was.Fence, "over an expired record the answer shows %s; want the expired one", show(res.Record))
				k.obtain(r)
				return
			}
			k.check(res.Outcome == backend.Acquired, "over an expired record a reserve was answered %v", res.Outcome)
		}},
		{"R04/AttemptsAreCounted", "attempt: one ownership of a key: number, owner token, fence; numbered from 1 for one intent.", func(k *kit) {
			r := k.request(k.id())
			r.TTL = k.unit
			first := k.acquire(r)
			k.release(first.Ref)
			second := k.acquire(over(r, first.Fence))
			k.check(second.Attempt == 2 && !second.TookOver, "after a release the attempt has number %d, took over: %v; want 2, false", second.Attempt, second.TookOver)
			k.pass(r.TTL)
			third := k.acquire(over(r, second.Fence))
			k.check(third.Attempt == 3 && third.TookOver, "after an abandoned attempt the next has number %d, took over: %v; want 3, true", third.Attempt, third.TookOver)
			k.settle(backend.CompleteRequest{Ref: third.Ref, State: backend.Completed, ReplayFor: k.unit, KnownFor: k.unit})
			k.pass(k.unit)
			r.Owner = token()
			fresh := k.obtain(r)
			k.check(fresh.Attempt == 1 && !fresh.TookOver, "after the dedup window the attempt has number %d, took over: %v; want 1, false: it is a new intent", fresh.Attempt, fresh.TookOver)
		}},
		{"R04/FenceGrowsWithEachAttempt", ruleFence, func(k *kit) {
			r := k.request(k.id())
			r.TTL = k.unit
			fence := k.acquire(r).Fence
			for range 5 {
				k.release(r.Ref)
				r = over(r, fence)
				rec := k.acquire(r)
				k.check(rec.Fence > fence, "after a release the fence went from %d to %d", fence, rec.Fence)
				k.pass(r.TTL)
				r = over(r, rec.Fence)
				next := k.acquire(r)
				k.check(next.Fence > rec.Fence, "over an abandoned attempt the fence went from %d to %d", rec.Fence, next.Fence)
				fence = next.Fence
			}
		}},
		{"R04/FenceIsKeptThroughReleaseAndCompletion", ruleFence, func(k *kit) {
			r := k.request(k.id())
			rec := k.acquire(r)
			k.release(r.Ref)
			k.check(k.get(r.ID).Fence == rec.Fence, "release moved the fence from %d to %d", rec.Fence, k.get(r.ID).Fence)
			r = over(r, rec.Fence)
			rec = k.acquire(r)
			done := k.finish(r.Ref, "x")
			k.check(done.Fence == rec.Fence && k.get(r.ID).Fence == rec.Fence, "completion moved the fence from %d to %d", rec.Fence, done.Fence)
		}},
		{"R04/FenceGrowsAfterCleanUp", "fence: number that grows with every attempt on a key, also across clean-up; for downstream fencing.", func(k *kit) {
			k.need(k.h.FenceOutlivesRecord, "FenceOutlivesRecord")
			r := k.request(k.id())
			was := k.expired(r, "x")
			k.sweep()
			r.Owner = token()
			rec := k.obtain(r)
			k.check(rec.Fence > was.Fence, "after clean-up the fence went from %d to %d", was.Fence, rec.Fence)
			k.finish(r.Ref, "y")
			k.check(k.open().Forget(k.ctx, backend.ForgetRequest{ID: r.ID, Fence: rec.Fence}) == nil, "Forget failed")
			r.Owner = token()
			next := k.obtain(r)
			k.check(next.Fence > rec.Fence, "after Forget the fence went from %d to %d", rec.Fence, next.Fence)
		}},
	}
}

// takeoverChecks: R6, second half.
func takeoverChecks() []check {
	return []check{
		{"R06/TakeOverOfFreeRecords", ruleTakeover, func(k *kit) {
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					rec := k.acquire(over(r, was.Fence))
					k.check(rec.Fence > was.Fence, "the fence went from %d to %d", was.Fence, rec.Fence)
					k.unchanged(rec, "reading through another handle")
				})
			}
		}},
		{"R06/TakeOverChecksTheState", ruleTakeover, func(k *kit) {
			for _, s := range situations() {
				if s.free {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					res := k.reserve(over(r, was.Fence))
					k.check(res.Outcome == backend.Existing && res.Record.State == s.state, "a takeover of %s was answered %v, %s; want existing", s.name, res.Outcome, show(res.Record))
					k.unchanged(was, "a takeover of "+s.name)
				})
			}
		}},
		{"R06/TakeOverComparesTheFence", ruleTakeover, func(k *kit) {
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					for _, fence := range []uint64{was.Fence + 1, was.Fence + 1000, was.Fence - 1} {
						if fence == 0 {
							continue
						}
						res := k.reserve(over(r, fence))
						k.check(res.Outcome == backend.Existing, "a takeover of %s that names fence %d instead of %d was answered %v; want existing", s.name, fence, was.Fence, res.Outcome)
						k.unchanged(was, "a takeover with another fence")
					}
				})
			}
		}},
		{"R06/TakeOverChecksTheLease", ruleTakeover, func(k *kit) {
			r := k.request(k.id())
			r.TTL = k.unit
			rec := k.acquire(r)
			if k.exact() {
				k.advance(r.TTL - k.margin())
				res := k.reserve(over(r, rec.Fence))
				k.check(res.Outcome == backend.Existing, "shortly before the end of the lease a takeover was answered %v; want existing", res.Outcome)
				k.unchanged(rec, "a takeover before the end of the lease")
			}
			k.pass(r.TTL)
			next := k.acquire(over(r, rec.Fence))
			k.check(next.TookOver, "a takeover of an abandoned attempt does not say so")
		}},
		{"R06/TakeOverSeesARenewalInBetween", ruleTakeover, func(k *kit) {
			r := k.request(k.id())
			rec := k.abandon(r)
			res := k.reserve(over(r, 0)) // the caller looks: it is abandoned
			k.check(res.Outcome == backend.Existing && res.Record.IsAbandoned(res.Now), "after the lease the record is not abandoned by the store's clock: %s at %v", show(res.Record), res.Now)
			err := k.open().Renew(k.ctx, r.Ref, long) // the owner comes back
			k.check(err == nil, "Renew before anybody took over: %v", err)
			res = k.reserve(over(r, rec.Fence))
			k.check(res.Outcome == backend.Existing, "a takeover after the owner's renewal was answered %v; want existing", res.Outcome)
			k.finish(r.Ref, "the owner's")
		}},
		{"R06/TakeOverOfNothingCreatesNothing", "Gone: TakeOver named a fence, but there is no record any more. Reserve plainly.", func(k *kit) {
			res := k.reserve(over(k.request(k.id()), 7))
			k.check(res.Outcome == backend.Gone, "a takeover where there is no record was answered %v; want gone", res.Outcome)
			k.absent(k.id(), "after a takeover of nothing")
		}},
		{"R06/SecondTakeOverOfTheSameFenceFails", ruleTakeover, func(k *kit) {
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					winner := k.acquire(over(r, was.Fence))
					res := k.reserve(over(r, was.Fence))
					k.check(res.Outcome == backend.Existing, "the second takeover of fence %d was answered %v; want existing", was.Fence, res.Outcome)
					k.unchanged(winner, "the second takeover")
					// Not even once the new owner has released: the fence is another.
					k.release(winner.Ref)
					open := k.get(r.ID)
					res = k.reserve(over(r, was.Fence))
					k.check(res.Outcome == backend.Existing, "a takeover of the old fence %d after a release was answered %v; want existing", was.Fence, res.Outcome)
					k.unchanged(open, "a takeover with an old fence")
				})
			}
		}},
	}
}

// in runs one situation in a subtest with a store of its own.
func (k *kit) in(s situation, run func(k *kit)) {
	k.each(s.name, run)
}

// each runs a part of a check in a nested subtest, on another key of the same
// store, with its own deadline for failures.
func (k *kit) each(name string, run func(k *kit)) {
	k.t.Helper()
	k.t.Run(name, func(t *testing.T) {
		part := *k
		part.t = t
		part.scope = name
		part.nested = true
		run(&part)
		k.planted = k.planted || part.planted
	})
	if k.try.void != "" {
		k.giveUp(k.try.void)
	}
}

// sweep removes all that is due.
func (k *kit) sweep() (removed int) {
	k.t.Helper()
	for range 1000 {
		done, err := k.open().Expire(k.ctx, backend.ExpireRequest{})
		k.check(err == nil, "Expire: %v", err)
		removed += done.Removed
		if !done.More {
			return removed
		}
	}
	k.fail("Expire still says that more is due after 1000 rounds")
	return 0
}

// within insists that d is what was asked for, as exactly as the store can say.
func (k *kit) within(d, want time.Duration, what string) {
	k.t.Helper()
	k.check((d-want).Abs() <= 2*k.h.Tick, "%s is %v; want %v (within %v)", what, d, want, 2*k.h.Tick)
}
