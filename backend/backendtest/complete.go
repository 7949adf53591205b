package backendtest

import (
	"bytes"
	"strings"

	"github.com/goidem/idem/backend"
)

const (
	ruleComplete = "A completion is accepted only while the record still names its token, in flight or uncertain, lease run out or not. Completion never creates a record. Otherwise ErrLeaseLost, and nothing changes."
	ruleResults  = "nil, empty and zero results are results. A replay equals the first answer: bytes for raw results."
)

// completeChecks: R12 and R15.
func completeChecks() []check {
	complete := func(k *kit, r backend.CompleteRequest) error {
		_, err := k.open().Complete(k.ctx, r)
		return err
	}
	request := func(ref backend.Ref) backend.CompleteRequest {
		return backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: []byte("late"), ReplayFor: long, KnownFor: long}
	}
	return []check{
		{"R12/CompleteSettlesTheRecord", ruleComplete, func(k *kit) {
			for _, state := range []backend.State{backend.Completed, backend.Failed} {
				k.each(state.String(), func(k *kit) {
					r := k.request(k.id())
					rec := k.acquire(r)
					done := k.settle(backend.CompleteRequest{Ref: r.Ref, State: state, Body: []byte("answer"), ReplayFor: long, KnownFor: 2 * long})
					k.check(done.State == state && string(done.Body) == "answer", "Complete returned %s with body %s", show(done), quote(done.Body))
					k.check(done.Owner == r.Owner && done.Fence == rec.Fence && done.Attempt == rec.Attempt, "completion changed token, fence or attempt: %s", show(done))
					k.check(done.Holder == backend.Holder{}, "a completed record still names the holder %v", done.Holder)
					k.check(done.LeaseUntil.IsZero(), "a completed record still has a lease until %v", done.LeaseUntil)
					k.unchanged(done, "reading a completion through another handle")
					r.Owner = token()
					res := k.reserve(r)
					k.check(res.Outcome == backend.Existing && res.Record.State == state && string(res.Record.Body) == "answer", "a duplicate was answered %v, %s with body %s", res.Outcome, show(res.Record), quote(res.Record.Body))
				})
			}
		}},
		{"R12/CompleteAfterTheLeaseIsAccepted", ruleComplete, func(k *kit) {
			for _, policy := range []backend.Abandoned{backend.Rerun, backend.Recover, backend.Hold} {
				k.each(policy.String(), func(k *kit) {
					r := k.request(k.id())
					r.OnAbandoned = policy
					k.abandon(r)
					done := k.finish(r.Ref, "late but mine")
					k.check(done.State == backend.Completed, "a completion after the lease, not taken over, was answered %s", show(done))
				})
			}
		}},
		{"R12/CompleteOfAnUncertainRecordIsAccepted", ruleComplete, func(k *kit) {
			r := k.request(k.id())
			k.acquire(r)
			k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain})
			done := k.finish(r.Ref, "known after all")
			k.check(done.State == backend.Completed && string(done.Body) == "known after all", "the attempt's own completion of an uncertain record was answered %s", show(done))
			k.unchanged(done, "reading it")
		}},
		{"R12/CompleteNeverCreates", ruleComplete, func(k *kit) { // C40
			ref := backend.Ref{ID: k.id(), Owner: token()}
			k.wants(complete(k, request(ref)), backend.ErrLeaseLost, "Complete without a record")
			k.absent(ref.ID, "after a completion without a record")
			r := k.request(ref.ID)
			rec := k.acquire(r)
			k.check(k.open().Forget(k.ctx, backend.ForgetRequest{ID: r.ID, Fence: rec.Fence, Force: true}) == nil, "Forget failed")
			k.wants(complete(k, request(r.Ref)), backend.ErrLeaseLost, "Complete after Forget")
			k.absent(ref.ID, "after a completion of a forgotten record")
		}},
		{"R12/CompleteOfAnExpiredRecordIsLost", ruleComplete, func(k *kit) {
			r := k.request(k.id())
			r.TTL, r.KnownFor = k.unit, k.unit
			k.acquire(r)
			k.pass(2 * k.unit)
			for _, swept := range []string{"unswept", "swept"} {
				k.wants(complete(k, request(r.Ref)), backend.ErrLeaseLost, "Complete past the abandoned record's window, "+swept)
				k.absent(r.ID, "after that completion, "+swept+",")
				k.sweep()
			}
			k.expired(k.request(k.key("done")), "x")
			done := backend.Ref{ID: k.key("done"), Owner: token()}
			k.wants(complete(k, request(done)), backend.ErrLeaseLost, "Complete of an expired record by a stranger")
			k.absent(done.ID, "after that completion")
		}},
		{"R12/CompleteByAStrangerChangesNothing", ruleComplete, func(k *kit) {
			for _, s := range situations() {
				k.in(s, func(k *kit) {
					was := s.make(k, k.request(k.id()))
					k.wants(complete(k, request(backend.Ref{ID: was.ID, Owner: token()})), backend.ErrLeaseLost, "Complete by a stranger over "+s.name)
					k.unchanged(was, "a completion by a stranger")
				})
			}
		}},
		{"R12/CompleteAfterTakeOverIsLost", ruleComplete, func(k *kit) {
			r := k.request(k.id())
			was := k.abandon(r)
			rec := k.acquire(over(r, was.Fence))
			k.wants(complete(k, request(r.Ref)), backend.ErrLeaseLost, "Complete after a takeover")
			k.unchanged(rec, "a completion by the old owner")
		}},
		{"R12/CompleteToUncertainKeepsTheRecord", "Uncertain: nobody but its own late attempt or a person can say whether the operation took effect. It has no window: it stays until it is settled.", func(k *kit) {
			r := k.request(k.id())
			r.TTL = k.unit
			rec := k.acquire(r)
			done := k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain, Body: []byte("what is known")})
			k.check(done.State == backend.Uncertain && done.Owner == r.Owner && done.Fence == rec.Fence, "Complete to uncertain returned %s", show(done))
			k.check(string(done.Fingerprint) == string(r.Fingerprint), "the uncertain record has lost its fingerprint")
			k.check(done.CompletedAt.IsZero() && done.KnownUntil.IsZero(), "the uncertain record has a window: %s", show(done))
			k.unchanged(done, "reading it")
		}},
		{"R15/EmptyResultsAreResults", ruleResults, func(k *kit) { // C31
			bodies := map[string][]byte{"nil": nil, "empty": {}, "zero byte": {0}, "null": []byte("null"), "false": []byte("false"), "zero": []byte("0"), "empty string": []byte(`""`)}
			for name, body := range bodies {
				for _, state := range []backend.State{backend.Completed, backend.Failed} {
					k.each(name+" "+state.String(), func(k *kit) {
						r := k.request(k.id())
						k.acquire(r)
						k.settle(backend.CompleteRequest{Ref: r.Ref, State: state, Body: body, ReplayFor: long, KnownFor: long})
						for _, fence := range []uint64{0, k.get(r.ID).Fence} {
							res := k.reserve(over(r, fence))
							k.check(res.Outcome == backend.Existing && res.Record.State == state, "a duplicate of a call whose result is %q was answered %v, %s; want existing, %v", body, res.Outcome, show(res.Record), state)
							k.check(bytes.Equal(res.Record.Body, body), "the replay of %q is %q", body, res.Record.Body)
						}
						k.sweep()
						k.check(k.get(r.ID).State == state, "a sweep removed a record whose result is %q", body)
					})
				}
			}
		}},
		{"R15/BytesComeBackAsTheyWere", ruleResults, func(k *kit) {
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			bodies := map[string][]byte{
				"every byte": all, "text": []byte("élan\r\n\x00 \\x41 'quoted' \"$1\" %s"), "not UTF-8": {0xff, 0xfe, 0xc0},
				"64 KiB": bytes.Repeat(all, 256), "1 MiB": bytes.Repeat(all, 4096), "spaces": []byte("  x  "), "zeros": make([]byte, 4096),
			}
			for name, body := range bodies {
				k.each(name, func(k *kit) {
					r := k.request(k.id())
					k.acquire(r)
					done := k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: body, ReplayFor: long, KnownFor: long})
					k.check(bytes.Equal(done.Body, body), "Complete returned %s", quote(done.Body))
					k.check(bytes.Equal(k.get(r.ID).Body, body), "Get returned %s", quote(k.get(r.ID).Body))
					r.Owner = token()
					k.check(bytes.Equal(k.reserve(r).Record.Body, body), "the replay is %s", quote(k.reserve(r).Record.Body))
				})
			}
		}},
		{"R15/ResultsStayWithTheirKeys", ruleResults, func(k *kit) {
			refs := make([]backend.Ref, 20)
			for i := range refs {
				r := k.request(k.key(strings.Repeat("k", i+1)))
				k.acquire(r)
				refs[i] = r.Ref
			}
			for i, ref := range refs {
				k.finish(ref, strings.Repeat("b", i))
			}
			for i, ref := range refs {
				k.check(len(k.get(ref.ID).Body) == i, "key %d replays the result of key %d", i, len(k.get(ref.ID).Body))
			}
		}},
	}
}
