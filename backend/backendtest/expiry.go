package backendtest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleWindows = "Windows count from completion, on the store's clock."
	ruleAbsent  = "An expired record reads as absent at once, swept or not."
	ruleReplay  = "After the replay window and inside the dedup window it happened, the answer is gone; results without a body replay throughout."
	ruleNoEnd   = "Held, recovering and uncertain records have no window until settled."
	ruleLeftEnd = "Abandoned records under Rerun count from the end of their lease."
	ruleSweep   = "A sweeper's delete checks state, expiry and fence again in the same atomic step. Live attempts, uncertain records and undelivered events are never swept."
)

// windowChecks: R22.
func windowChecks() []check {
	return []check{
		{"R22/WindowsCountFromCompletion", ruleWindows, func(k *kit) { // C21
			for _, state := range []backend.State{backend.Completed, backend.Failed} {
				k.each(state.String(), func(k *kit) {
					r := k.request(k.id())
					before := k.reserve(r).Now
					k.pass(3 * k.unit)
					done := k.settle(backend.CompleteRequest{Ref: r.Ref, State: state, Body: []byte("x"), ReplayFor: 2 * k.unit, KnownFor: 4 * k.unit})
					after := k.reserve(over(r, 0)).Now
					k.check(done.CompletedAt.Sub(before) >= 3*k.unit-2*k.h.Tick && done.CompletedAt.Sub(after) <= 2*k.h.Tick, "it was completed %v after the reserve and %v before now; want the moment of completion", done.CompletedAt.Sub(before), after.Sub(done.CompletedAt))
					k.within(done.ReplayUntil.Sub(done.CompletedAt), 2*k.unit, "the replay window")
					k.within(done.KnownUntil.Sub(done.CompletedAt), 4*k.unit, "the dedup window")
					k.sweep()
					k.unchanged(done, "a sweep right after completion")
					if k.exact() {
						k.advance(2*k.unit - k.margin())
						k.sweep()
						k.unchanged(done, "waiting until shortly before the end of the replay window")
						k.advance(2 * k.unit)
						k.sweep()
						k.check(k.get(r.ID).State == state, "shortly before the end of the dedup window the record is gone")
						k.advance(2 * k.margin())
					} else {
						k.pass(4 * k.unit)
					}
					k.absent(r.ID, "after the dedup window")
					k.obtain(over(r, 0))
				})
			}
		}},
		{"R22/FailureAfterTheLeaseLivesItsTime", ruleWindows, func(k *kit) { // C21 (c)
			r := k.request(k.id())
			r.KnownFor = 20 * k.unit
			k.abandon(r)
			k.pass(3 * k.unit)
			done := k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Failed, Body: []byte("no"), ReplayFor: 2 * k.unit, KnownFor: 2 * k.unit})
			k.sweep()
			k.unchanged(done, "a sweep right after a failure that came after the lease")
			k.pass(k.unit)
			k.unchanged(done, "half of its window")
			k.pass(k.unit)
			k.absent(r.ID, "after its window")
		}},
		{"R22/SettlingAnUncertainRecordStartsItsWindow", ruleWindows, func(k *kit) {
			r := k.request(k.id())
			k.acquire(r)
			k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain})
			k.pass(3 * k.unit)
			rec, err := k.open().Resolve(k.ctx, backend.ResolveRequest{ID: r.ID, Fence: k.get(r.ID).Fence, Applied: true, Body: []byte("x"), ReplayFor: 2 * k.unit, KnownFor: 2 * k.unit})
			k.check(err == nil, "Resolve: %v", err)
			k.within(rec.KnownUntil.Sub(rec.CompletedAt), 2*k.unit, "the dedup window")
			k.sweep()
			k.unchanged(rec, "a sweep right after Resolve")
			k.pass(2 * k.unit)
			k.absent(r.ID, "after its window")
		}},
		{"R22/AfterTheReplayWindowOnlyTheBodyIsGone", ruleReplay, func(k *kit) {
			for _, swept := range []bool{false, true} {
				k.each(fmt.Sprintf("swept %v", swept), func(k *kit) {
					r := k.request(k.id())
					k.acquire(r)
					was := k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("secret"), ReplayFor: k.unit, KnownFor: long})
					k.pass(k.unit)
					if swept {
						k.sweep()
					}
					want := was
					want.Body = nil
					k.unchanged(want, "the end of the replay window")
					for _, fence := range []uint64{0, was.Fence} {
						res := k.reserve(over(r, fence))
						k.check(res.Outcome == backend.Existing && res.Record.State == backend.Completed, "between the windows a reserve was answered %v, %s; want existing, completed", res.Outcome, show(res.Record))
						k.check(len(res.Record.Body) == 0, "after the replay window the body is still returned: %s", quote(res.Record.Body))
						k.check(!res.Now.Before(res.Record.ReplayUntil), "the answer does not show that the replay window is over")
					}
					other := over(r, 0)
					other.Fingerprint = digests("amount 999")
					k.mismatch(other, "a record after its replay window")
					for rec, err := range k.open().List(k.ctx, backend.Filter{}) {
						k.check(err == nil && len(rec.Body) == 0, "List after the replay window: %v, body %s", err, quote(rec.Body))
					}
				})
			}
		}},
		{"R22/ExpiredReadsAsAbsent", ruleAbsent, func(k *kit) {
			for _, swept := range []bool{false, true} {
				k.each(fmt.Sprintf("swept %v", swept), func(k *kit) {
					r := k.request(k.id())
					was := k.expired(r, "old answer")
					if swept {
						k.sweep()
					}
					k.absent(r.ID, "after the dedup window")
					for rec := range k.open().List(k.ctx, backend.Filter{}) {
						k.check(rec.ID != r.ID, "List shows a record whose dedup window is over: %s", show(rec))
					}
					_, err := k.open().Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, ReplayFor: long, KnownFor: long})
					k.wants(err, backend.ErrLeaseLost, "a copy of its completion after the dedup window")
					k.check(k.open().Release(k.ctx, r.Ref) == nil, "Release after the dedup window failed")
					k.absent(r.ID, "after late moves")
					res := k.reserve(over(r, 0))
					k.check(len(res.Record.Body) == 0, "a reserve after the dedup window is handed the old answer: %s", quote(res.Record.Body))
					if res.Outcome == backend.Acquired {
						return // removed by the store itself
					}
					rec := k.obtain(over(r, 0))
					k.check(rec.Attempt == 1 && !rec.TookOver, "the attempt after the dedup window is %s; want the first of a new intent", show(rec))
					k.check(!swept || rec.Fence != 0, "no fence after %v", was.Fence)
				})
			}
		}},
		{"R22/TakeOverOfAnExpiredRecordComparesTheFence", ruleTakeover, func(k *kit) {
			r := k.request(k.id())
			was := k.expired(r, "x")
			res := k.reserve(over(r, was.Fence+1))
			k.check(res.Outcome == backend.Existing || res.Outcome == backend.Gone, "a takeover of an expired record with another fence was answered %v", res.Outcome)
			k.absent(r.ID, "after that takeover")
		}},
		{"R22/AbandonedUnderRerunCountsFromTheLease", ruleLeftEnd, func(k *kit) {
			r := k.request(k.id())
			r.TTL, r.KnownFor = 2*k.unit, 2*k.unit
			rec := k.acquire(r)
			k.within(rec.KnownUntil.Sub(rec.LeaseUntil), r.KnownFor, "the time from the end of the lease to the end of the record")
			k.pass(2*k.unit + k.unit/2)
			k.sweep()
			k.unchanged(rec, "a sweep after the lease, inside the abandoned record's window,")
			k.pass(2 * k.unit)
			k.absent(r.ID, "after the abandoned record's window")
			next := k.obtain(over(r, 0))
			k.check(next.Attempt == 1 && !next.TookOver, "the attempt after the abandoned record's window is %s; want the first of a new intent", show(next))
		}},
		{"R22/HeldRecoveringAndUncertainHaveNoWindow", ruleNoEnd, func(k *kit) {
			var all []backend.Record
			for _, policy := range []backend.Abandoned{backend.Recover, backend.Hold} {
				r := k.request(k.key(policy.String()))
				r.TTL, r.KnownFor, r.OnAbandoned = k.unit, k.unit, policy
				rec := k.acquire(r)
				k.check(rec.KnownUntil.IsZero(), "under %v an attempt has a window: %s", policy, show(rec))
				all = append(all, rec)
			}
			r := k.request(k.key("uncertain"))
			r.TTL, r.KnownFor = k.unit, k.unit
			k.acquire(r)
			all = append(all, k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain, ReplayFor: k.unit, KnownFor: k.unit}))
			for range 4 {
				k.pass(k.unit)
				k.sweep()
				for _, was := range all {
					k.unchanged(was, "waiting past every window")
				}
			}
			if k.exact() {
				k.advance(365 * 24 * time.Hour)
				k.sweep()
				for _, was := range all {
					k.unchanged(was, "a year")
				}
			}
		}},
	}
}

// sweepChecks: R24.
func sweepChecks() []check {
	return []check{
		{"R24/SweepRemovesWhatIsDue", ruleSweep, func(k *kit) {
			done := k.expired(k.request(k.id()), "x")
			left := k.request(k.key("left"))
			left.TTL, left.KnownFor = k.unit, k.unit
			k.acquire(left)
			k.pass(2 * k.unit)
			removed := k.sweep()
			k.check(removed <= 2, "two records were due and %d were removed", removed)
			k.check(k.sweep() == 0, "a second sweep removed something again")
			for _, id := range []backend.ID{done.ID, left.ID} {
				k.absent(id, "after a sweep")
			}
			more, err := k.open().Expire(k.ctx, backend.ExpireRequest{Limit: 10})
			k.check(err == nil && !more.More, "a sweep of an empty store: %+v, %v", more, err)
		}},
		{"R24/SweepOfAnEmptyStore", ruleSweep, func(k *kit) {
			done, err := k.open().Expire(k.ctx, backend.ExpireRequest{})
			k.check(err == nil && done == backend.ExpireResult{}, "a sweep of a new store: %+v, %v", done, err)
		}},
		{"R24/SweepSparesEverythingThatIsNotDue", ruleSweep, func(k *kit) { // C14 (b)
			var all []backend.Record
			for _, s := range situations() {
				k.scope = s.name
				all = append(all, s.make(k, k.request(k.id())))
			}
			// A live attempt that is older than every window it names.
			r := k.request(k.key("renewed"))
			r.TTL, r.KnownFor = 4*k.unit, k.unit/4
			k.acquire(r)
			for range 4 {
				k.pass(k.unit)
				k.check(k.open().Renew(k.ctx, r.Ref, 4*k.unit) == nil, "Renew failed")
				k.sweep()
				k.check(k.get(r.ID).State == backend.InFlight, "a sweep removed a live attempt")
			}
			for _, was := range all {
				k.unchanged(was, "sweeping")
			}
		}},
		{"R24/SweepDropsBodiesAndKeepsRecords", ruleSweep, func(k *kit) {
			r := k.request(k.id())
			k.acquire(r)
			was := k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("x"), ReplayFor: k.unit, KnownFor: long})
			k.pass(k.unit)
			removed := k.sweep()
			k.check(removed == 0, "a sweep removed %d records inside their dedup window", removed)
			was.Body = nil
			k.unchanged(was, "a sweep after the replay window")
		}},
		{"R24/SweepWorksThroughABacklog", "A row found not due cannot block the head; one call removes about Limit records.", func(k *kit) { // C44
			const due, live = 60, 30
			b := k.open()
			for i := range due + live {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				r.OnAbandoned = backend.Hold // every third stays for good
				if i%3 != 0 {
					r.OnAbandoned, r.TTL, r.KnownFor = backend.Rerun, k.unit, k.unit
				}
				res, err := b.Reserve(k.ctx, r)
				k.check(err == nil && res.Outcome == backend.Acquired, "Reserve: %v, %v", res.Outcome, err)
			}
			k.pass(2 * k.unit)
			for round := 0; ; round++ {
				k.check(round < 100, "a sweep of %d records with limit 10 does not come to an end", due)
				done, err := k.open().Expire(k.ctx, backend.ExpireRequest{Limit: 10})
				k.check(err == nil, "Expire: %v", err)
				if !done.More {
					break
				}
			}
			seen := 0
			for _, err := range k.open().List(k.ctx, backend.Filter{}) {
				k.check(err == nil, "List: %v", err)
				seen++
			}
			k.check(seen == live, "after the sweep %d records are left; want %d", seen, live)
		}},
		{"R24/TwoSweepersShareTheWork", ruleSweep, func(k *kit) { // C14 (d)
			const due = 200
			b := k.open()
			for i := range due {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				r.TTL, r.KnownFor = k.unit, k.unit
				res, err := b.Reserve(k.ctx, r)
				k.check(err == nil && res.Outcome == backend.Acquired, "Reserve: %v, %v", res.Outcome, err)
			}
			k.pass(2 * k.unit)
			var wg sync.WaitGroup
			var mu sync.Mutex
			removed, errs := 0, []error(nil)
			for range 4 {
				b := k.open()
				wg.Go(func() {
					for range 200 {
						done, err := b.Expire(k.ctx, backend.ExpireRequest{Limit: 7})
						mu.Lock()
						removed += done.Removed
						errs = append(errs, err)
						mu.Unlock()
						if err != nil || !done.More {
							return
						}
					}
				})
			}
			wg.Wait()
			k.check(errors.Join(errs...) == nil, "sweepers beside each other: %v", errors.Join(errs...))
			removed += k.sweep()
			k.check(removed <= due, "%d records were due and sweepers reported %d removed", due, removed)
		}},
		{"R24/SweepRacesWithNewOwners", ruleSweep, func(k *kit) { // C14 (a)
			const rounds, keys = 5, 24
			for round := range rounds {
				ids := make([]backend.ID, keys)
				for i := range ids {
					ids[i] = k.key(fmt.Sprint("order-", round, "-", i))
					r := k.request(ids[i])
					r.TTL, r.KnownFor = k.unit, k.unit
					k.acquire(r)
				}
				k.pass(2 * k.unit)
				hs := k.handles(5)
				errs := make([]error, len(hs))
				var wg sync.WaitGroup
				for i, b := range hs {
					wg.Go(func() { errs[i] = k.sweepOrTake(b, i, ids) })
				}
				wg.Wait()
				k.check(errors.Join(errs...) == nil, "beside a sweeper: %v", errors.Join(errs...))
				for _, id := range ids {
					rec := k.get(id)
					k.check(rec.State == backend.Completed, "a record that came back to life beside a sweeper is %s", show(rec))
				}
			}
		}},
	}
}

// sweepOrTake is one of five that race: two sweep, three take a third of the keys
// each and complete them.
func (k *kit) sweepOrTake(b backend.Backend, i int, ids []backend.ID) error {
	if i < 2 {
		for range 4 {
			if _, err := b.Expire(k.ctx, backend.ExpireRequest{Limit: 10}); err != nil {
				return err
			}
		}
		return nil
	}
	var refs []backend.Ref
	for n := i - 2; n < len(ids); n += 3 {
		r := k.request(ids[n])
		res, err := k.take(b, r)
		if err != nil || res.Outcome != backend.Acquired {
			return fmt.Errorf("an expired key was not given out: %v, %w", res.Outcome, err)
		}
		refs = append(refs, r.Ref)
	}
	time.Sleep(3 * time.Millisecond) // really, so that a sweeper's stale delete arrives
	for _, ref := range refs {
		if _, err := b.Complete(k.ctx, backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: long, KnownFor: long}); err != nil {
			return fmt.Errorf("the owner of a key that came back to life lost it: %w", err)
		}
	}
	return nil
}
