package backendtest

import (
	"strings"

	"github.com/goidem/idem/backend"
)

const (
	ruleFenceSeen = "Resolve and Forget are compare-and-set on the fence that the operator saw; Forget refuses a live attempt unless forced."
	ruleResolve   = "Resolve settles an uncertain, abandoned or deadline-less record by a person's word."
)

// resolveChecks: R3 and R13, what a person may do.
func resolveChecks() []check {
	resolve := func(k *kit, r backend.ResolveRequest) (backend.Record, error) { return k.open().Resolve(k.ctx, r) }
	forget := func(k *kit, r backend.ForgetRequest) error { return k.open().Forget(k.ctx, r) }
	applied := func(was backend.Record) backend.ResolveRequest {
		return backend.ResolveRequest{ID: was.ID, Fence: was.Fence, Applied: true, Body: []byte("by hand"), ReplayFor: long, KnownFor: long, Evidence: "charge ch_17 exists, see ticket 4"}
	}
	uncertain := func(k *kit) (backend.ReserveRequest, backend.Record) {
		r := k.request(k.id())
		r.OnAbandoned = backend.Hold
		was := k.abandon(r)
		return r, k.reserve(over(r, was.Fence)).Record
	}
	return []check{
		{"R13/ResolveApplied", ruleResolve, func(k *kit) {
			r, was := uncertain(k)
			req := applied(was)
			rec, err := resolve(k, req)
			k.check(err == nil, "Resolve: %v", err)
			k.check(rec.State == backend.Completed && string(rec.Body) == "by hand" && rec.Evidence == req.Evidence && rec.Fence == was.Fence, "Resolve left %s, evidence %q", show(rec), rec.Evidence)
			k.check(string(rec.Fingerprint) == string(r.Fingerprint), "Resolve lost the fingerprint")
			k.unchanged(rec, "reading it")
			res := k.reserve(over(r, 0))
			k.check(res.Outcome == backend.Existing && string(res.Record.Body) == "by hand", "a duplicate was answered %v, %s", res.Outcome, show(res.Record))
			// The attempt's own completion must not pass for the person's.
			_, err = k.open().Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("late"), ReplayFor: long, KnownFor: long})
			k.wants(err, backend.ErrLeaseLost, "the attempt's own completion after Resolve")
			k.unchanged(rec, "a late completion after Resolve")
			again, err := resolve(k, req)
			k.check(err == nil, "a repeated Resolve: %v", err)
			k.check(diff(rec, again, k.h.Tick) == "", "a repeated Resolve changed the record: %s", diff(rec, again, k.h.Tick))
		}},
		{"R13/ResolveNotApplied", ruleResolve, func(k *kit) {
			r, was := uncertain(k)
			req := backend.ResolveRequest{ID: was.ID, Fence: was.Fence, Evidence: "no charge; host was replaced"}
			rec, err := resolve(k, req)
			k.check(err == nil, "Resolve: %v", err)
			k.check(rec.State == backend.Open && rec.Fence == was.Fence && len(rec.Fingerprint) == 0 && rec.Evidence == req.Evidence, "Resolve left %s, evidence %q; want an open record", show(rec), rec.Evidence)
			k.unchanged(rec, "reading it")
			k.refusedMoves(r.Ref, rec, "after Resolve said that its attempt did not apply")
			again, err := resolve(k, req)
			k.check(err == nil && diff(rec, again, k.h.Tick) == "", "a repeated Resolve: %v, %s", err, diff(rec, again, k.h.Tick))
			next := k.acquire(over(r, was.Fence))
			k.check(next.Attempt == was.Attempt+1 && next.Fence > was.Fence && !next.TookOver, "the attempt after Resolve is %s", show(next))
		}},
		{"R13/ResolveOfAnAbandonedAttempt", ruleResolve, func(k *kit) {
			for _, policy := range []backend.Abandoned{backend.Rerun, backend.Recover, backend.Hold} {
				k.each(policy.String(), func(k *kit) {
					r := k.request(k.id())
					r.OnAbandoned = policy
					was := k.abandon(r)
					rec, err := resolve(k, applied(was))
					k.check(err == nil && rec.State == backend.Completed, "Resolve of an abandoned attempt: %s, %v", show(rec), err)
				})
			}
		}},
		{"R13/ResolveRefusesALiveAttempt", ruleResolve, func(k *kit) {
			was := k.acquire(k.request(k.id()))
			_, err := resolve(k, applied(was))
			k.wants(err, backend.ErrInFlight, "Resolve of a live attempt")
			k.unchanged(was, "Resolve of a live attempt")
			req := applied(was)
			req.Applied = false
			_, err = resolve(k, req)
			k.wants(err, backend.ErrInFlight, "Resolve of a live attempt")
			k.unchanged(was, "Resolve of a live attempt")
		}},
		{"R13/ResolveOfASettledRecordIsStale", ruleResolve, func(k *kit) {
			for _, s := range situations() {
				if s.state == backend.InFlight || s.state == backend.Uncertain {
					continue
				}
				k.in(s, func(k *kit) {
					was := s.make(k, k.request(k.id()))
					for _, yes := range []bool{true, false} {
						if s.state == backend.Open && !yes {
							continue // that is what the record says already
						}
						req := applied(was)
						req.Applied = yes
						_, err := resolve(k, req)
						k.wants(err, backend.ErrStale, "Resolve of "+s.name)
						k.unchanged(was, "Resolve of "+s.name)
					}
				})
			}
		}},
		{"R03/ResolveComparesTheFence", ruleFenceSeen, func(k *kit) {
			_, was := uncertain(k)
			for _, fence := range []uint64{was.Fence + 1, was.Fence - 1, 0} {
				req := applied(was)
				req.Fence = fence
				_, err := resolve(k, req)
				k.wants(err, backend.ErrStale, "Resolve with another fence")
				req.Applied = false
				_, err = resolve(k, req)
				k.wants(err, backend.ErrStale, "Resolve with another fence")
				k.unchanged(was, "Resolve with another fence")
			}
		}},
		{"R03/ResolveOfAnOlderAttemptIsStale", ruleFenceSeen, func(k *kit) {
			r := k.request(k.id())
			seen := k.abandon(r) // the person looks at this one
			next := over(r, seen.Fence)
			next.TTL = k.unit
			k.acquire(next)
			k.pass(k.unit)
			was := k.get(r.ID)
			_, err := resolve(k, applied(seen))
			k.wants(err, backend.ErrStale, "Resolve of an attempt that another has taken over")
			k.unchanged(was, "that Resolve")
		}},
		{"R03/ForgetComparesTheFence", ruleFenceSeen, func(k *kit) {
			for _, s := range situations() {
				k.in(s, func(k *kit) {
					was := s.make(k, k.request(k.id()))
					for _, fence := range []uint64{was.Fence + 1, was.Fence - 1, 0} {
						for _, force := range []bool{false, true} {
							k.wants(forget(k, backend.ForgetRequest{ID: was.ID, Fence: fence, Force: force}), backend.ErrStale, "Forget of "+s.name+" with another fence")
							k.unchanged(was, "Forget with another fence")
						}
					}
					force := s.name == "a live attempt"
					if force {
						k.wants(forget(k, backend.ForgetRequest{ID: was.ID, Fence: was.Fence}), backend.ErrInFlight, "Forget of a live attempt")
						k.unchanged(was, "Forget of a live attempt")
					}
					err := forget(k, backend.ForgetRequest{ID: was.ID, Fence: was.Fence, Force: force})
					k.check(err == nil, "Forget of %s: %v", s.name, err)
					k.absent(was.ID, "after Forget of "+s.name)
					k.wants(forget(k, backend.ForgetRequest{ID: was.ID, Fence: was.Fence, Force: force}), backend.ErrNotFound, "a second Forget")
					k.acquire(k.request(was.ID))
				})
			}
		}},
		{"R03/OperatorsMovesOnNothing", "ErrNotFound: there is no such record, or its dedup window is over.", func(k *kit) {
			ghost := backend.Record{Ref: backend.Ref{ID: k.id()}, Fence: 3}
			_, err := resolve(k, applied(ghost))
			k.wants(err, backend.ErrNotFound, "Resolve without a record")
			k.wants(forget(k, backend.ForgetRequest{ID: ghost.ID, Fence: 3, Force: true}), backend.ErrNotFound, "Forget without a record")
			k.absent(ghost.ID, "after moves on nothing")
			was := k.expired(k.request(k.id()), "x")
			_, err = resolve(k, applied(was))
			k.wants(err, backend.ErrNotFound, "Resolve of an expired record")
			k.wants(forget(k, backend.ForgetRequest{ID: was.ID, Fence: was.Fence, Force: true}), backend.ErrNotFound, "Forget of an expired record")
			k.absent(was.ID, "after moves on an expired record")
		}},
		{"R13/ResolveIsChecked", "Request fields out of range are refused before anything is stored.", func(k *kit) {
			_, was := uncertain(k)
			for name, change := range map[string]func(r *backend.ResolveRequest){
				"no window":       func(r *backend.ResolveRequest) { r.KnownFor, r.ReplayFor = 0, 0 },
				"long evidence":   func(r *backend.ResolveRequest) { r.Evidence = strings.Repeat("e", backend.MaxEvidence+1) },
				"NUL in evidence": func(r *backend.ResolveRequest) { r.Evidence = "a\x00b" },
				"broken evidence": func(r *backend.ResolveRequest) { r.Evidence = "\xff" },
			} {
				req := applied(was)
				change(&req)
				_, err := resolve(k, req)
				k.wants(err, backend.ErrInvalidRequest, "Resolve with "+name)
				k.unchanged(was, "Resolve with "+name)
			}
			req := applied(was)
			req.Evidence = strings.Repeat("é", backend.MaxEvidence/2)
			rec, err := resolve(k, req)
			k.check(err == nil && rec.Evidence == req.Evidence, "Resolve with the longest evidence: %v", err)
		}},
	}
}

// refusedMoves is refused, over a record that an attempt still names but has lost.
func (k *kit) refusedMoves(ref backend.Ref, was backend.Record, when string) {
	k.t.Helper()
	for _, m := range moves() {
		err := m.do(k.ctx, k.open(), ref)
		if m.name == "Release" {
			k.check(err == nil, "Release %s: %v", when, err)
		} else {
			k.wants(err, backend.ErrLeaseLost, m.name+" "+when)
		}
		k.unchanged(was, m.name+" "+when)
	}
}
