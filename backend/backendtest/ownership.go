package backendtest

import (
	"context"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleCAS      = "Every move is compare-and-set on owner token and state."
	ruleRepeat   = "A repeated copy of a move that meets its own token in another state changes nothing and is answered from that state"
	ruleReserved = ruleRepeat + ": reserve is granted again only while that attempt is in flight, with its fence, without extending its lease."
	ruleAgain    = ruleRepeat + ": complete succeeds again if this token's completion stands."
	ruleRelease  = ruleRepeat + ": release succeeds when the token owns nothing."
	ruleRenew    = ruleRepeat + ": renew acts in flight only."
)

// moves are the moves of an attempt, by name.
func moves() []struct {
	name string
	do   func(ctx context.Context, b backend.Backend, ref backend.Ref) error
} {
	complete := func(s backend.State) func(ctx context.Context, b backend.Backend, ref backend.Ref) error {
		return func(ctx context.Context, b backend.Backend, ref backend.Ref) error {
			_, err := b.Complete(ctx, backend.CompleteRequest{Ref: ref, State: s, Body: []byte("late"), ReplayFor: long, KnownFor: long})
			return err
		}
	}
	return []struct {
		name string
		do   func(ctx context.Context, b backend.Backend, ref backend.Ref) error
	}{
		{"Complete", complete(backend.Completed)},
		{"Complete to failed", complete(backend.Failed)},
		{"Complete to uncertain", complete(backend.Uncertain)},
		{"Renew", func(ctx context.Context, b backend.Backend, ref backend.Ref) error { return b.Renew(ctx, ref, 3*long) }},
		{"Release", func(ctx context.Context, b backend.Backend, ref backend.Ref) error { return b.Release(ctx, ref) }},
	}
}

// refused tries every move with a token that owns nothing.
func (k *kit) refused(ref backend.Ref, who string) {
	k.t.Helper()
	was := k.get(ref.ID)
	for _, m := range moves() {
		err := m.do(k.ctx, k.open(), ref)
		if m.name == "Release" {
			k.check(err == nil, "Release by %s: %v; a token that owns nothing releases successfully", who, err)
		} else {
			k.wants(err, backend.ErrLeaseLost, m.name+" by "+who)
		}
		k.unchanged(was, m.name+" by "+who)
	}
}

// ownershipChecks: R3, moves with a token that does not own the key.
func ownershipChecks() []check {
	return []check{
		{"R03/StrangerOwnsNothing", ruleCAS, func(k *kit) {
			for _, s := range situations() {
				k.in(s, func(k *kit) {
					s.make(k, k.request(k.id()))
					k.refused(backend.Ref{ID: k.id(), Owner: token()}, "a token that never owned the key")
				})
			}
		}},
		{"R03/OldOwnerCannotTouchItsSuccessor", ruleCAS, func(k *kit) { // C05
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					next := over(r, was.Fence)
					k.acquire(next)
					k.refused(r.Ref, "the old owner after a takeover")
					k.finish(next.Ref, "B")
					k.refused(r.Ref, "the old owner after its successor has completed")
					res := k.reserve(over(r, 0))
					k.check(string(res.Record.Body) == "B", "the final replay is %s; want the new owner's", quote(res.Record.Body))
				})
			}
		}},
		{"R03/OldOwnerCannotTouchAnOpenRecordOfAnother", ruleCAS, func(k *kit) {
			r := k.request(k.id())
			was := k.abandon(r)
			next := over(r, was.Fence)
			k.acquire(next)
			k.release(next.Ref)
			k.refused(r.Ref, "the old owner after its successor has released")
		}},
		{"R03/TokensOfOneHolderAreKeptApart", ruleCAS, func(k *kit) { // C05: same process, same host, same request, same instant
			r := k.request(k.id())
			first := k.acquire(r)
			k.release(r.Ref)
			next := over(r, first.Fence)
			k.acquire(next)
			k.refused(r.Ref, "an earlier attempt of the same process at the same time")
		}},
		{"R03/MovesAreByKey", ruleCAS, func(k *kit) {
			r := k.request(k.id())
			rec := k.acquire(r)
			other := k.request(k.key("another key"))
			k.acquire(other)
			k.refused(backend.Ref{ID: other.ID, Owner: r.Owner}, "the owner of another key")
			k.unchanged(rec, "moves on another key")
		}},
		{"R03/MovesOnNothingCreateNothing", "Completion never creates a record; releasing an absent record succeeds.", func(k *kit) {
			for _, m := range moves() {
				ref := backend.Ref{ID: k.key(m.name), Owner: token()}
				err := m.do(k.ctx, k.open(), ref)
				if m.name == "Release" {
					k.check(err == nil, "Release of an absent record: %v", err)
				} else {
					k.wants(err, backend.ErrLeaseLost, m.name+" of an absent record")
				}
				k.absent(ref.ID, "after "+m.name+" of an absent record")
			}
		}},
	}
}

// repeatChecks: R3, copies of a move that was made already.
func repeatChecks() []check {
	return []check{
		{"R03/RepeatedReserveIsGrantedAgain", ruleReserved, func(k *kit) {
			r := k.request(k.id())
			r.TTL = 3 * k.unit
			first := k.acquire(r)
			k.pass(k.unit)
			again := k.acquire(r)
			if d := diff(first, again, k.h.Tick); d != "" {
				k.fail("the repeated reserve was granted with another record: %s", d)
			}
			k.unchanged(first, "a repeated reserve")
		}},
		{"R03/RepeatedTakeOverIsGrantedAgain", ruleReserved, func(k *kit) {
			r := k.request(k.id())
			was := k.abandon(r)
			r = over(r, was.Fence)
			r.TTL = 3 * k.unit
			first := k.acquire(r)
			k.pass(k.unit)
			again := k.acquire(r)
			if d := diff(first, again, k.h.Tick); d != "" {
				k.fail("the repeated takeover was granted with another record: %s", d)
			}
			k.unchanged(first, "a repeated takeover")
		}},
		{"R03/RepeatedReserveStartsNothingAnew", ruleReserved, func(k *kit) {
			for _, s := range situations() {
				if s.state == backend.InFlight {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					for _, fence := range []uint64{0, was.Fence} {
						r.TakeOver = fence
						res := k.reserve(r)
						k.check(res.Outcome == backend.Existing && res.Record.State == s.state, "a copy of the reserve that led to %s was answered %v, %s; want existing", s.name, res.Outcome, show(res.Record))
						k.unchanged(was, "a late copy of a reserve")
					}
				})
			}
		}},
		{"R03/RepeatedReserveAfterALossStartsNothing", ruleReserved, func(k *kit) {
			r := k.request(k.id())
			was := k.abandon(r)
			next := over(r, was.Fence)
			rec := k.acquire(next)
			for _, fence := range []uint64{0, was.Fence} {
				r.TakeOver = fence
				res := k.reserve(r)
				k.check(res.Outcome == backend.Existing, "a copy of the old owner's reserve was answered %v; want existing", res.Outcome)
				k.unchanged(rec, "a late copy of a reserve")
			}
		}},
		{"R03/RepeatedCompleteSucceeds", ruleAgain, func(k *kit) {
			for _, state := range []backend.State{backend.Completed, backend.Failed} {
				k.each(state.String(), func(k *kit) {
					r := k.request(k.id())
					k.acquire(r)
					c := backend.CompleteRequest{Ref: r.Ref, State: state, Body: []byte("first"), ReplayFor: long, KnownFor: long}
					first := k.settle(c)
					k.pass(k.unit)
					again := k.settle(c)
					if d := diff(first, again, k.h.Tick); d != "" {
						k.fail("the repeated completion was answered with another record: %s", d)
					}
					c.Body = []byte("second")
					k.settle(c)
					k.unchanged(first, "a repeated completion")
				})
			}
		}},
		{"R03/CompletedRecordsKeepTheTokenForTheDedupWindow", "Completed records keep the token for the dedup window.", func(k *kit) {
			r := k.request(k.id())
			k.acquire(r)
			c := backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("first"), ReplayFor: k.unit, KnownFor: long}
			k.settle(c)
			k.pass(k.unit)
			k.sweep()
			rec := k.settle(c)
			k.check(rec.State == backend.Completed && rec.Owner == r.Owner, "after the replay window a repeated completion was answered %s", show(rec))
		}},
		{"R03/RepeatedUncertainSucceeds", ruleAgain, func(k *kit) {
			r := k.request(k.id())
			k.acquire(r)
			c := backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain}
			first := k.settle(c)
			k.settle(c)
			k.unchanged(first, "a repeated completion to uncertain")
		}},
		{"R03/CompleteAfterReleaseIsLost", ruleCAS, func(k *kit) {
			r := k.request(k.id())
			open := k.opened(r)
			for _, m := range moves() {
				if m.name == "Release" {
					continue
				}
				k.wants(m.do(k.ctx, k.open(), r.Ref), backend.ErrLeaseLost, m.name+" after release")
				k.unchanged(open, m.name+" after release")
			}
		}},
		{"R03/RepeatedReleaseSucceeds", ruleRelease, func(k *kit) {
			r := k.request(k.id())
			open := k.opened(r)
			k.pass(k.unit)
			k.release(r.Ref)
			k.unchanged(open, "a repeated release")
		}},
		{"R03/ReleaseAfterCompletionChangesNothing", ruleRelease, func(k *kit) {
			for _, s := range situations() {
				if s.state != backend.Completed && s.state != backend.Failed {
					continue
				}
				k.in(s, func(k *kit) {
					was := s.make(k, k.request(k.id()))
					k.release(was.Ref)
					k.unchanged(was, "a release by the token of "+s.name)
				})
			}
		}},
		{"R03/ReleaseOfAnUncertainAttemptIsRefused", "Release: ErrLeaseLost: the key has turned uncertain meanwhile.", func(k *kit) {
			r := k.request(k.id())
			k.acquire(r)
			was := k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain})
			k.wants(k.open().Release(k.ctx, r.Ref), backend.ErrLeaseLost, "Release of an uncertain attempt")
			k.unchanged(was, "a release of an uncertain attempt")
		}},
		{"R03/ReleaseAfterTheLeaseOpens", "A token that owns the key in flight releases it; whether the lease is over is the core's to judge.", func(k *kit) {
			r := k.request(k.id())
			k.abandon(r)
			k.release(r.Ref)
			rec := k.get(r.ID)
			k.check(rec.State == backend.Open, "after a release there is %s; want an open record", show(rec))
		}},
		{"R03/RenewActsInFlightOnly", ruleRenew, func(k *kit) {
			for _, s := range situations() {
				if s.state == backend.InFlight {
					continue
				}
				k.in(s, func(k *kit) {
					r := k.request(k.id())
					was := s.make(k, r)
					k.wants(k.open().Renew(k.ctx, r.Ref, 3*long), backend.ErrLeaseLost, "Renew over "+s.name)
					k.unchanged(was, "a renewal over "+s.name)
				})
			}
		}},
		{"R03/ReleaseKeepsFenceAttemptAndToken", "Open: keeps fence, attempt number and last token for longer than any request can be delayed, ten minutes by default.", func(k *kit) {
			r := k.request(k.id())
			rec := k.acquire(r)
			k.release(r.Ref)
			open := k.get(r.ID)
			k.check(open.State == backend.Open && open.Fence == rec.Fence && open.Attempt == rec.Attempt && open.Owner == r.Owner, "the open record has fence %d, attempt %d, own token %v; want %d, %d, true", open.Fence, open.Attempt, open.Owner == r.Owner, rec.Fence, rec.Attempt)
			now := k.reserve(over(r, 0)).Now
			k.check(open.KnownUntil.Sub(now) > backend.OpenFor-time.Minute && open.KnownUntil.Sub(now) <= backend.OpenFor+2*k.h.Tick, "the open record is known for %v from now; want about %v", open.KnownUntil.Sub(now), backend.OpenFor)
			if k.exact() {
				k.advance(backend.OpenFor - k.unit)
				k.unchanged(open, "waiting, swept or not,")
				k.sweep()
				k.unchanged(open, "a sweep")
				k.advance(2 * k.unit)
				k.absent(r.ID, "after the time for which open records are kept")
				k.obtain(over(r, 0))
			}
		}},
	}
}
