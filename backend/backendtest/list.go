package backendtest

import (
	"context"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleList = "Filter: empty fields select everything; strings are compared as they are, without patterns."
	ruleHeld = "List holds no lock, transaction or connection between two yields."
)

// listChecks: List, and calls whose context is dead.
func listChecks() []check {
	keys := func(k *kit, f backend.Filter) map[backend.ID]backend.Record {
		k.t.Helper()
		found := make(map[backend.ID]backend.Record)
		for rec, err := range k.open().List(k.ctx, f) {
			k.check(err == nil, "List: %v", err)
			_, twice := found[rec.ID]
			k.check(!twice, "List shows %q twice", rec.ID)
			found[rec.ID] = rec
		}
		return found
	}
	return []check{
		{"R05/ListComparesScopesAsTheyAre", ruleList, func(k *kit) { // C24
			scopes := []string{"a", "ab", "a%", "a_", "a*", "A", "a?", "[a]", "a:", "a b", "%", "*", "_", "ba", "á"}
			b := k.open()
			for _, tenant := range scopes {
				for _, operation := range scopes {
					_, err := b.Reserve(k.ctx, k.request(backend.ID{Tenant: tenant, Operation: operation, Key: "k"}))
					k.check(err == nil, "Reserve: %v", err)
				}
			}
			for _, s := range scopes {
				for id := range keys(k, backend.Filter{Tenant: s}) {
					k.check(id.Tenant == s, "List of tenant %q shows tenant %q", s, id.Tenant)
				}
				for id := range keys(k, backend.Filter{Operation: s}) {
					k.check(id.Operation == s, "List of operation %q shows operation %q", s, id.Operation)
				}
				k.check(len(keys(k, backend.Filter{Tenant: s})) == len(scopes), "List of tenant %q shows %d records; want %d", s, len(keys(k, backend.Filter{Tenant: s})), len(scopes))
				k.check(len(keys(k, backend.Filter{Operation: s})) == len(scopes), "List of operation %q shows %d records; want %d", s, len(keys(k, backend.Filter{Operation: s})), len(scopes))
				k.check(len(keys(k, backend.Filter{Tenant: s, Operation: "a"})) == 1, "List of scope %q/a shows %d records; want 1", s, len(keys(k, backend.Filter{Tenant: s, Operation: "a"})))
			}
			k.check(len(keys(k, backend.Filter{})) == len(scopes)*len(scopes), "List of everything shows %d records; want %d", len(keys(k, backend.Filter{})), len(scopes)*len(scopes))
			k.check(len(keys(k, backend.Filter{Tenant: "a%b"})) == 0, "List of a tenant that is not there shows something")
		}},
		{"R05/ListFiltersByStateAndAge", ruleList, func(k *kit) {
			want := make(map[backend.State]int)
			var all []backend.Record
			for _, s := range situations() {
				k.scope = s.name
				all = append(all, s.make(k, k.request(k.id())))
				want[s.state]++
			}
			for state, n := range want {
				found := keys(k, backend.Filter{State: state})
				k.check(len(found) == n, "List of %v shows %d records; want %d", state, len(found), n)
				for _, rec := range found {
					k.check(rec.State == state, "List of %v shows %s", state, show(rec))
				}
			}
			found := keys(k, backend.Filter{})
			for _, was := range all {
				rec, ok := found[was.ID]
				k.check(ok, "List does not show %s", show(was))
				if d := diff(was, rec, k.h.Tick); d != "" {
					k.fail("List shows another record than Get: %s", d)
				}
			}
			k.scope = ""
			k.pass(6 * k.unit)
			young := k.acquire(k.request(k.key("young")))
			old := keys(k, backend.Filter{OlderThan: 4 * k.unit})
			_, has := old[young.ID]
			k.check(!has && len(old) == len(all), "List of attempts older than %v shows %d records, the young one: %v; want %d, false", 4*k.unit, len(old), has, len(all))
			k.check(len(keys(k, backend.Filter{OlderThan: 100 * k.unit})) == 0, "List of attempts older than %v shows something", 100*k.unit)
		}},
		{"R05/ListShowsEveryRecordOnce", ruleList, func(k *kit) {
			b := k.open()
			const n = 250
			for i := range n {
				res, err := b.Reserve(k.ctx, k.request(k.key(fmt.Sprint("order-", i))))
				k.check(err == nil && res.Outcome == backend.Acquired, "Reserve: %v, %v", res.Outcome, err)
			}
			k.check(len(keys(k, backend.Filter{})) == n, "List shows %d records; want %d", len(keys(k, backend.Filter{})), n)
			seen := 0
			for range k.open().List(k.ctx, backend.Filter{}) {
				if seen++; seen == 3 {
					break
				}
			}
			k.check(seen == 3, "List yielded %d records before it was stopped", seen)
			k.acquire(k.request(k.key("after a stopped list")))
		}},
		{"List/HoldsNothingBetweenYields", ruleHeld, func(k *kit) {
			const n = 40
			b := k.open()
			refs := make(map[backend.ID]backend.Record)
			for i := range n {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				res, err := b.Reserve(k.ctx, r)
				k.check(err == nil, "Reserve: %v", err)
				refs[r.ID] = res.Record
			}
			// Every move on every record, through the same handle and another one,
			// while the list stands still.
			for rec, err := range b.List(k.ctx, backend.Filter{}) {
				k.check(err == nil, "List, while records change: %v", err)
				own, ok := refs[rec.ID]
				if !ok {
					continue
				}
				delete(refs, rec.ID)
				ctx, cancel := context.WithTimeout(k.ctx, 5*time.Second)
				move := func(what string, err error) {
					k.t.Helper()
					k.check(err == nil, "%s between two yields of List: %v", what, err)
				}
				move("Renew", b.Renew(ctx, own.Ref, 2*long))
				_, err = b.Get(ctx, own.ID)
				move("Get", err)
				switch len(refs) % 3 {
				case 0:
					move("Release", b.Release(ctx, own.Ref))
				case 1:
					_, err = b.Complete(ctx, backend.CompleteRequest{Ref: own.Ref, State: backend.Completed, ReplayFor: long, KnownFor: long})
					move("Complete", err)
				case 2:
					move("Forget", b.Forget(ctx, backend.ForgetRequest{ID: own.ID, Fence: own.Fence, Force: true}))
				}
				_, err = k.open().Reserve(ctx, k.request(k.key(fmt.Sprint("new-", len(refs)))))
				move("Reserve through another handle", err)
				_, err = b.Expire(ctx, backend.ExpireRequest{})
				move("Expire", err)
				cancel()
			}
			k.check(len(refs) < n, "List showed none of the records that were there all the time")
		}},
		{"R25/DeadContextReservesNothing", "Store down at reserve: fn does not run. With a dead ctx nothing is reserved.", func(k *kit) { // C37
			cancelled, cancel := context.WithCancel(k.ctx)
			cancel()
			late, cancel := context.WithDeadline(k.ctx, time.Unix(1, 0))
			defer cancel()
			for name, ctx := range map[string]context.Context{"cancelled": cancelled, "past its deadline": late} {
				_, err := k.open().Reserve(ctx, k.request(k.id()))
				k.check(ended(err), "Reserve with a context that is %s: %v; want its error", name, err)
				k.absent(k.id(), "after a reserve with a dead context")
			}
		}},
		{"R25/DeadContextChangesNothing", "A backend returns soon after ctx ends; nothing is sent for a caller that is gone already.", func(k *kit) {
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			for _, s := range situations() {
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					for _, m := range moves() {
						k.check(ended(m.do(ctx, k.open(), r.Ref)), "%s with a dead context did not say so", m.name)
					}
					_, err := k.open().Reserve(ctx, over(r, was.Fence))
					k.check(ended(err), "a takeover with a dead context: %v", err)
					_, err = k.open().Resolve(ctx, backend.ResolveRequest{ID: r.ID, Fence: was.Fence})
					k.check(ended(err), "Resolve with a dead context: %v", err)
					k.check(ended(k.open().Forget(ctx, backend.ForgetRequest{ID: r.ID, Fence: was.Fence, Force: true})), "Forget with a dead context did not say so")
					_, err = k.open().Get(ctx, r.ID)
					k.check(ended(err), "Get with a dead context: %v", err)
					k.unchanged(was, "calls with a dead context")
				})
			}
			_, err := k.open().Expire(ctx, backend.ExpireRequest{})
			k.check(ended(err), "Expire with a dead context: %v", err)
			err = nil
			for _, e := range k.open().List(ctx, backend.Filter{}) {
				err = e
			}
			k.check(ended(err), "List with a dead context: %v", err)
		}},
	}
}
