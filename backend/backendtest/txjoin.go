package backendtest

import (
	"context"
	"sync"

	"github.com/goidem/idem/backend"
)

const (
	ruleJoin   = "ExecuteIn runs inside a savepoint of the caller's transaction, undone on error or duplicate, so the caller's transaction stays usable; the result is provisional until the caller commits."
	ruleFinish = "Finish completes an attempt that was reserved with Reserve: work and the completion commit together. ErrLeaseLost: nothing was committed."
)

// joinChecks: R21.
func joinChecks[Tx any]() []txCheck[Tx] {
	// join runs one Join in a transaction of the caller, which then writes an
	// effect of its own and commits.
	join := func(k *txKit[Tx], r backend.ReserveRequest, work backend.Work[Tx]) (res backend.Reservation, err error) {
		k.t.Helper()
		b := k.open()
		txErr := k.h.InOwnTx(k.t, func(tx Tx) error {
			res, err = b.Join(k.ctx, tx, r, work)
			k.h.Effect(k.t, tx, "own "+k.effect())
			return nil
		})
		k.check(txErr == nil, "the caller's transaction did not stay usable: %v (Join: %v, %v)", txErr, res.Outcome, err)
		return res, err
	}
	own := func(k *txKit[Tx]) int { return k.h.Count(k.t, "own "+k.effect()) }
	checks := []txCheck[Tx]{
		{"R21/JoinCommitsWithTheCaller", ruleJoin, func(k *txKit[Tx]) {
			r := k.request(k.id())
			res, err := join(k, r, k.work(done("answer")))
			k.check(err == nil, "Join: %v", err)
			k.committed(r, res, done("answer"))
			k.count(1, "after the caller's commit")
			k.check(own(k) == 1, "the caller's own effect was committed %d times", own(k))
		}},
		{"R21/JoinRollsBackWithTheCaller", ruleJoin, func(k *txKit[Tx]) {
			b, r := k.open(), k.request(k.id())
			err := k.h.InOwnTx(k.t, func(tx Tx) error {
				res, err := b.Join(k.ctx, tx, r, k.work(done("answer")))
				k.check(err == nil && res.Outcome == backend.Acquired, "Join: %v, %v", res.Outcome, err)
				return errWork
			})
			k.check(err == errWork, "InOwnTx: %v", err)
			k.count(0, "after the caller's roll-back")
			k.absent(r.ID, "after the caller's roll-back")
			k.free(r.ID, "the caller's roll-back")
		}},
		{"R21/ErrorOfWorkLeavesTheCallersTransactionUsable", ruleJoin, func(k *txKit[Tx]) {
			r := k.request(k.id())
			_, err := join(k, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
				k.h.Effect(k.t, tx, k.effect())
				return backend.Completion{}, errWork
			})
			k.check(err == errWork, "Join returned %v; want the error of its work as it is", err)
			k.check(own(k) == 1, "the caller's own effect was committed %d times", own(k))
			if k.h.NoSavepoint {
				rec := k.get(r.ID)
				k.check(rec.State == backend.Uncertain, "without a savepoint work failed and the caller committed: %s; want an uncertain record", show(rec))
				return
			}
			k.count(0, "after work failed")
			k.free(r.ID, "work failed")
		}},
		{"R21/DuplicateLeavesTheCallersTransactionUsable", ruleJoin, func(k *txKit[Tx]) {
			for _, s := range situations() {
				k.in(s, func(k *txKit[Tx]) {
					r := k.request(k.id())
					was := s.make(k.kit, r)
					ran := false
					res, err := join(k, over(r, 0), k.forbidden(&ran))
					k.check(err == nil && !ran && res.Outcome == backend.Existing && res.Record.State == s.state, "over %s it was answered %v, %s, %v, work ran: %v; want existing", s.name, res.Outcome, show(res.Record), err, ran)
					k.unchanged(was, "a duplicate")
					if s.state != backend.Open {
						other := over(r, was.Fence)
						other.Fingerprint = digests("amount 999")
						res, err = join(k, other, k.forbidden(&ran))
						k.check(err == nil && !ran && res.Outcome == backend.Mismatch && len(res.Record.Body) == 0, "another fingerprint over %s was answered %v, %v, work ran: %v; want mismatch", s.name, res.Outcome, err, ran)
						k.unchanged(was, "a mismatch")
					}
					k.count(0, "afterwards")
					k.check(own(k) >= 1, "the caller's own effect was not committed")
				})
			}
		}},
		{"R21/JoinTakesOver", ruleTakeover, func(k *txKit[Tx]) {
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *txKit[Tx]) {
					r := k.request(k.id())
					was := s.make(k.kit, r)
					next := over(r, was.Fence)
					res, err := join(k, next, k.work(done("answer")))
					k.check(err == nil, "Join: %v", err)
					rec := k.committed(next, res, done("answer"))
					k.check(rec.Fence > was.Fence, "the fence went from %d to %d", was.Fence, rec.Fence)
					k.count(1, "afterwards")
				})
			}
		}},
		{"R21/SecondJoinInOneTransactionSeesTheFirst", ruleJoin, func(k *txKit[Tx]) {
			b, r, ran := k.open(), k.request(k.id()), false
			err := k.h.InOwnTx(k.t, func(tx Tx) error {
				res, err := b.Join(k.ctx, tx, r, k.work(done("answer")))
				k.check(err == nil && res.Outcome == backend.Acquired, "Join: %v, %v", res.Outcome, err)
				res, err = b.Join(k.ctx, tx, over(r, 0), k.forbidden(&ran))
				k.check(err == nil && !ran && res.Outcome == backend.Existing && string(res.Record.Body) == "answer", "the second Join of a key in one transaction was answered %v, %s, %v, work ran: %v", res.Outcome, show(res.Record), err, ran)
				other := k.request(k.key("other"))
				res, err = b.Join(k.ctx, tx, other, k.work(done("other")))
				k.check(err == nil && res.Outcome == backend.Acquired, "another key in the same transaction: %v, %v", res.Outcome, err)
				return nil
			})
			k.check(err == nil, "InOwnTx: %v", err)
			k.count(2, "afterwards")
		}},
		{"R21/UndoInTheCallersTransaction", ruleUndone, func(k *txKit[Tx]) {
			r := k.request(k.id())
			c := backend.Completion{State: backend.Failed, Body: []byte("declined"), ReplayFor: long, KnownFor: long, Undo: true}
			res, err := join(k, r, k.work(c))
			k.check(own(k) == 1, "the caller's own effect was committed %d times", own(k))
			if k.h.NoSavepoint {
				rec := k.get(r.ID)
				k.check(rec.State == backend.Uncertain || rec.State == backend.Failed && k.h.Count(k.t, k.effect()) == 0, "without a savepoint the effect could not be undone and the record is %s (Join: %v); want uncertain", show(rec), err)
				return
			}
			k.check(err == nil && res.Record.State == backend.Failed, "Join: %v, %s", err, show(res.Record))
			k.count(0, "after an outcome with Undo")
			k.unchanged(res.Record, "reading it")
		}},
		{"R21/InvalidRequestsLeaveTheCallersTransactionUsable", ruleLimits, func(k *txKit[Tx]) {
			bad, ran := k.request(k.id()), false
			bad.ID.Key = "nul \x00"
			_, err := join(k, bad, k.forbidden(&ran))
			k.wants(err, backend.ErrInvalidKey, "Join with an invalid key")
			k.check(!ran && own(k) == 1, "after an invalid Join work ran: %v, own effects: %d", ran, own(k))
		}},
	}
	for i, c := range checks {
		checks[i].run = func(k *txKit[Tx]) {
			k.need(k.h.InOwnTx != nil, "InOwnTx")
			c.run(k)
		}
	}
	return checks
}

// finishChecks: Finish, which is R12 with an effect.
func finishChecks[Tx any]() []txCheck[Tx] {
	return []txCheck[Tx]{
		{"R12/FinishCommitsEffectAndRecordTogether", ruleFinish, func(k *txKit[Tx]) {
			r := k.request(k.id())
			was := k.acquire(r)
			var seen backend.Reservation
			rec, err := k.open().Finish(k.ctx, r.Ref, func(_ context.Context, tx Tx, mine backend.Reservation) (backend.Completion, error) {
				seen = mine
				k.h.Effect(k.t, tx, k.effect())
				return done("answer"), nil
			})
			k.check(err == nil && rec.State == backend.Completed && string(rec.Body) == "answer" && rec.Fence == was.Fence, "Finish: %s, %v", show(rec), err)
			k.check(seen.Record.Ref == r.Ref && seen.Record.Fence == was.Fence, "work was shown %s; want the record of the attempt", show(seen.Record))
			k.unchanged(rec, "reading it through another handle")
			k.count(1, "after Finish")
		}},
		{"R12/FinishAfterTheLeaseIsAccepted", ruleComplete, func(k *txKit[Tx]) {
			r := k.request(k.id())
			k.abandon(r)
			rec, err := k.open().Finish(k.ctx, r.Ref, k.work(done("answer")))
			k.check(err == nil && rec.State == backend.Completed, "Finish after the lease, not taken over: %s, %v", show(rec), err)
			k.count(1, "after Finish")
		}},
		{"R12/FinishOfAnUncertainRecordIsAccepted", ruleComplete, func(k *txKit[Tx]) {
			r := k.request(k.id())
			k.acquire(r)
			k.settle(backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain})
			rec, err := k.open().Finish(k.ctx, r.Ref, k.work(done("answer")))
			k.check(err == nil && rec.State == backend.Completed, "Finish of an uncertain record by its own attempt: %s, %v", show(rec), err)
			k.count(1, "after Finish")
		}},
		{"R12/FinishAfterALossCommitsNothing", ruleFinish, func(k *txKit[Tx]) {
			lost := func(k *txKit[Tx], ref backend.Ref, why string) {
				k.t.Helper()
				_, err := k.open().Finish(k.ctx, ref, k.work(done("late")))
				k.wants(err, backend.ErrLeaseLost, "Finish "+why)
				k.count(0, "after Finish "+why)
			}
			for _, s := range situations() {
				k.in(s, func(k *txKit[Tx]) {
					was := s.make(k.kit, k.request(k.id()))
					lost(k, backend.Ref{ID: k.id(), Owner: token()}, "by a stranger over "+s.name)
					k.unchanged(was, "that Finish")
				})
			}
			k.each("after a takeover", func(k *txKit[Tx]) {
				r := k.request(k.id())
				was := k.abandon(r)
				rec := k.acquire(over(r, was.Fence))
				lost(k, r.Ref, "after a takeover")
				k.unchanged(rec, "that Finish")
			})
			k.each("after its release", func(k *txKit[Tx]) {
				r := k.request(k.id())
				open := k.opened(r)
				lost(k, r.Ref, "after its release")
				k.unchanged(open, "that Finish")
			})
			k.each("without a record", func(k *txKit[Tx]) {
				lost(k, backend.Ref{ID: k.id(), Owner: token()}, "without a record")
				k.absent(k.id(), "after that Finish")
			})
			k.each("after the record's window", func(k *txKit[Tx]) {
				r := k.request(k.id())
				r.TTL, r.KnownFor = k.unit, k.unit
				k.acquire(r)
				k.pass(2 * k.unit)
				lost(k, r.Ref, "after the abandoned record's window")
				k.absent(k.id(), "after that Finish")
			})
		}},
		{"R12/LeaseLostDuringWorkCommitsNothing", "A lost lease rolls that back.", func(k *txKit[Tx]) {
			// Only a store with one clock for all and one transaction at a time can
			// refuse the takeover instead; either way there is one owner.
			r := k.request(k.id())
			was := k.abandon(r)
			b := k.open()
			var takeover backend.Reservation
			var terr error
			tried := make(chan struct{})
			var once sync.Once
			started := false
			_, err := k.open().Finish(k.ctx, r.Ref, func(ctx context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
				k.h.Effect(k.t, tx, k.effect())
				once.Do(func() {
					started = true
					go func() {
						defer close(tried)
						takeover, terr = b.Reserve(k.ctx, over(r, was.Fence))
					}()
				})
				return done("late"), nil
			})
			k.check(started, "Finish after the lease, not taken over, did not run its work: %v", err)
			<-tried
			k.check(terr == nil, "Reserve beside Finish: %v", terr)
			took := takeover.Outcome == backend.Acquired
			k.check(took != (err == nil), "a takeover (%v) and Finish (%v) at the same time: both or neither succeeded", takeover.Outcome, err)
			if took {
				k.wants(err, backend.ErrLeaseLost, "Finish after a takeover")
				k.count(0, "after Finish lost its lease")
			} else {
				k.count(1, "after Finish")
			}
		}},
		{"R12/RepeatedFinishHasOneEffect", ruleAgain, func(k *txKit[Tx]) {
			r := k.request(k.id())
			k.acquire(r)
			first, err := k.open().Finish(k.ctx, r.Ref, k.work(done("answer")))
			k.check(err == nil, "Finish: %v", err)
			again, err := k.open().Finish(k.ctx, r.Ref, k.work(done("second")))
			k.check(err == nil, "a repeated Finish: %v", err)
			if d := diff(first, again, k.kit.h.Tick); d != "" {
				k.fail("a repeated Finish was answered with another record: %s", d)
			}
			k.unchanged(first, "a repeated Finish")
			k.count(1, "after a repeated Finish")
		}},
		{"R12/ErrorOfWorkLeavesTheAttempt", ruleFinish, func(k *txKit[Tx]) {
			r := k.request(k.id())
			was := k.acquire(r)
			_, err := k.open().Finish(k.ctx, r.Ref, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
				k.h.Effect(k.t, tx, k.effect())
				return backend.Completion{}, errWork
			})
			k.check(err == errWork, "Finish returned %v; want the error of its work as it is", err)
			k.count(0, "after work failed")
			k.unchanged(was, "a Finish whose work failed")
			rec, err := k.open().Finish(k.ctx, r.Ref, k.work(done("answer")))
			k.check(err == nil && rec.State == backend.Completed, "Finish after a failed one: %s, %v", show(rec), err)
			k.count(1, "after the second Finish")
		}},
		{"R12/FinishCanUndo", ruleUndone, func(k *txKit[Tx]) {
			for _, state := range []backend.State{backend.Failed, backend.Uncertain} {
				k.each(state.String(), func(k *txKit[Tx]) {
					r := k.request(k.id())
					k.acquire(r)
					rec, err := k.open().Finish(k.ctx, r.Ref, k.work(backend.Completion{State: state, Body: []byte("declined"), ReplayFor: long, KnownFor: long, Undo: true}))
					k.check(err == nil && rec.State == state, "Finish: %s, %v", show(rec), err)
					k.count(0, "after an outcome with Undo")
					k.unchanged(rec, "reading it")
				})
			}
		}},
	}
}
