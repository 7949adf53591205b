package backendtest

import (
	"context"
	"errors"

	"github.com/goidem/idem/backend"
)

const (
	ruleTogether = "Record and effect commit together or not at all."
	ruleUndone   = "On Permanent or Uncertain the effect is rolled back and only the outcome is stored."
	ruleNotRun   = "Any other outcome than Acquired means that work did not run or was rolled back."
)

var errWork = errors.New("the work failed")

// transactChecks: R17.
func transactChecks[Tx any]() []txCheck[Tx] {
	return []txCheck[Tx]{
		{"R17/EffectAndRecordCommitTogether", ruleTogether, func(k *txKit[Tx]) {
			for _, c := range []backend.Completion{done("answer"), done(""), {State: backend.Failed, Body: []byte("no"), ReplayFor: long, KnownFor: 2 * long}} {
				k.each(c.State.String()+" "+string(c.Body), func(k *txKit[Tx]) {
					r := k.request(k.id())
					rec := k.committed(r, k.transact(r, k.work(c)), c)
					k.count(1, "after a commit")
					k.check(rec.Attempt == 1 && rec.Fence > 0 && string(rec.Fingerprint) == string(r.Fingerprint), "the record is %s, fingerprint %x", show(rec), rec.Fingerprint)
					k.within(rec.KnownUntil.Sub(rec.CompletedAt), c.KnownFor, "the dedup window")
					k.within(rec.ReplayUntil.Sub(rec.CompletedAt), c.ReplayFor, "the replay window")
				})
			}
		}},
		{"R17/ErrorOfWorkRollsBackBoth", ruleTogether, func(k *txKit[Tx]) {
			r := k.request(k.id())
			_, err := k.open().Transact(k.ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
				k.h.Effect(k.t, tx, k.effect())
				return backend.Completion{}, errWork
			})
			k.check(err == errWork, "Transact returned %v; want the error of its work as it is", err)
			k.count(0, "after work failed")
			k.free(r.ID, "work failed")
		}},
		{"R17/ErrorOfWorkLeavesWhatWasThere", ruleTogether, func(k *txKit[Tx]) {
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *txKit[Tx]) {
					r := k.request(k.id())
					was := s.make(k.kit, r)
					_, err := k.open().Transact(k.ctx, over(r, was.Fence), func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
						k.h.Effect(k.t, tx, k.effect())
						return backend.Completion{}, errWork
					})
					k.check(err == errWork, "Transact returned %v; want the error of its work", err)
					k.count(0, "after work failed")
					k.unchanged(was, "a takeover of "+s.name+" that was rolled back")
				})
			}
		}},
		{"R17/PanicOfWorkRollsBackBoth", "A panic or Goexit goes on up unchanged.", func(k *txKit[Tx]) {
			r := k.request(k.id())
			func() {
				defer func() {
					v := recover()
					k.check(v == any(errWork), "the panic of work came up as %v", v)
				}()
				_, err := k.open().Transact(k.ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
					k.h.Effect(k.t, tx, k.effect())
					panic(errWork)
				})
				k.fail("the panic of work was swallowed; Transact returned %v", err)
			}()
			k.count(0, "after work panicked")
			k.free(r.ID, "work panicked")
		}},
		{"R17/GoexitOfWorkRollsBackBoth", "A panic or Goexit goes on up unchanged.", func(k *txKit[Tx]) {
			r := k.request(k.id())
			b, ended, returned := k.open(), make(chan struct{}), false
			go func() {
				defer close(ended)
				_, _ = b.Transact(k.ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
					k.h.Effect(k.t, tx, k.effect())
					exit()
					return done("unreachable"), nil
				})
				returned = true
			}()
			<-ended
			k.check(!returned, "Transact returned although its work ended the goroutine")
			k.count(0, "after work ended its goroutine")
			k.free(r.ID, "work ended its goroutine")
		}},
		{"R17/UndoStoresOnlyTheOutcome", ruleUndone, func(k *txKit[Tx]) {
			for _, state := range []backend.State{backend.Failed, backend.Uncertain} {
				k.each(state.String(), func(k *txKit[Tx]) {
					r := k.request(k.id())
					c := backend.Completion{State: state, Body: []byte("declined"), ReplayFor: long, KnownFor: long, Undo: true}
					res := k.transact(r, k.work(c))
					k.check(res.Outcome == backend.Acquired && res.Record.State == state, "it was answered %v, %s; want acquired, %v", res.Outcome, show(res.Record), state)
					k.unchanged(res.Record, "reading it through another handle")
					k.count(0, "after an outcome with Undo")
					ran := false
					res = k.transact(over(r, 0), k.forbidden(&ran))
					k.check(!ran && res.Outcome == backend.Existing && res.Record.State == state, "a duplicate was answered %v, %s, its work ran: %v", res.Outcome, show(res.Record), ran)
					k.count(0, "after a duplicate")
				})
			}
		}},
		{"R17/UncertainWithoutUndoKeepsTheEffect", ruleTogether, func(k *txKit[Tx]) {
			r := k.request(k.id())
			res := k.transact(r, k.work(backend.Completion{State: backend.Uncertain}))
			k.check(res.Record.State == backend.Uncertain, "it was answered %v, %s", res.Outcome, show(res.Record))
			k.count(1, "after an uncertain outcome without Undo")
		}},
		{"R17/WorkSeesItsReservation", "The reservation that work gets is the one that Transact acquired.", func(k *txKit[Tx]) {
			r := k.request(k.id())
			was := k.abandon(r)
			r = over(r, was.Fence)
			var seen backend.Reservation
			res := k.transact(r, func(_ context.Context, tx Tx, mine backend.Reservation) (backend.Completion, error) {
				seen = mine
				return done("x"), nil
			})
			rec := k.committed(r, res, done("x"))
			k.check(seen.Outcome == backend.Acquired && seen.Record.Ref == r.Ref && seen.Record.Fence == rec.Fence && seen.Record.Attempt == 2 && seen.Record.TookOver && !seen.Now.IsZero(),
				"work was shown %v, %s; the attempt is %s", seen.Outcome, show(seen.Record), show(rec))
			k.check(rec.Fence > was.Fence, "the fence went from %d to %d", was.Fence, rec.Fence)
		}},
		{"R17/InvalidOutcomeRollsBackBoth", "A completion out of range is ErrInvalidRequest; nothing was stored.", func(k *txKit[Tx]) {
			for name, c := range map[string]backend.Completion{
				"no state":  {ReplayFor: long, KnownFor: long},
				"in flight": {State: backend.InFlight, ReplayFor: long, KnownFor: long},
				"no window": {State: backend.Completed},
				"too large": {State: backend.Completed, Body: make([]byte, backend.MaxBody+1), ReplayFor: long, KnownFor: long},
			} {
				k.each(name, func(k *txKit[Tx]) {
					r := k.request(k.id())
					_, err := k.open().Transact(k.ctx, r, k.work(c))
					k.wants(err, backend.ErrInvalidRequest, "Transact with the outcome "+name)
					k.count(0, "after an invalid outcome")
					k.free(r.ID, "an invalid outcome")
				})
			}
		}},
		{"R17/DuplicateRunsNothing", ruleNotRun, func(k *txKit[Tx]) {
			r := k.request(k.id())
			rec := k.committed(r, k.transact(r, k.work(done("answer"))), done("answer"))
			for _, again := range []backend.ReserveRequest{r, over(r, 0), over(r, rec.Fence)} {
				ran := false
				res := k.transact(again, k.forbidden(&ran))
				k.check(!ran && res.Outcome == backend.Existing && string(res.Record.Body) == "answer", "a duplicate was answered %v, %s, its work ran: %v", res.Outcome, show(res.Record), ran)
				k.unchanged(rec, "a duplicate")
			}
			k.count(1, "after duplicates")
		}},
		{"R17/NothingRunsOverARecordThatIsNotFree", ruleNotRun, func(k *txKit[Tx]) {
			for _, s := range situations() {
				k.in(s, func(k *txKit[Tx]) {
					r := k.request(k.id())
					was := s.make(k.kit, r)
					plain, wrong, other := over(r, 0), over(r, was.Fence+1), over(r, was.Fence)
					other.Fingerprint = digests("amount 999")
					tries := map[string]backend.ReserveRequest{"plainly": plain, "with another fence": wrong}
					if s.state != backend.Open {
						tries["with another fingerprint"] = other
					}
					if !s.free {
						tries["with its fence"] = over(r, was.Fence)
					}
					for how, try := range tries {
						ran := false
						res := k.transact(try, k.forbidden(&ran))
						want := backend.Existing
						if how == "with another fingerprint" {
							want = backend.Mismatch
							k.check(len(res.Record.Body) == 0, "a mismatch carries the stored result")
						}
						k.check(!ran && res.Outcome == want, "over %s, %s, it was answered %v, work ran: %v; want %v", s.name, how, res.Outcome, ran, want)
						k.unchanged(was, "a Transact "+how)
					}
					k.count(0, "afterwards")
				})
			}
		}},
		{"R17/TakeOverInATransaction", ruleTakeover, func(k *txKit[Tx]) {
			for _, s := range situations() {
				if !s.free {
					continue
				}
				k.in(s, func(k *txKit[Tx]) {
					r := k.request(k.id())
					was := s.make(k.kit, r)
					next := over(r, was.Fence)
					rec := k.committed(next, k.transact(next, k.work(done("x"))), done("x"))
					k.check(rec.Fence > was.Fence && rec.Attempt == was.Attempt+1, "the attempt after %s is %s", show(was), show(rec))
					k.count(1, "after a takeover")
					k.refused(r.Ref, "the old owner")
				})
			}
			k.each("an expired record", func(k *txKit[Tx]) {
				r := k.request(k.id())
				k.expired(r, "old")
				r.Owner = token()
				rec := k.committed(r, k.through(r, k.work(done("new"))), done("new"))
				k.check(rec.Attempt == 1, "the attempt over an expired record is %s", show(rec))
				k.count(1, "after an expired record")
			})
			k.each("nothing", func(k *txKit[Tx]) {
				ran := false
				res := k.transact(over(k.request(k.id()), 7), k.forbidden(&ran))
				k.check(!ran && res.Outcome == backend.Gone, "a takeover of nothing was answered %v, work ran: %v; want gone", res.Outcome, ran)
				k.absent(k.id(), "after a takeover of nothing")
			})
		}},
		{"R17/HoldIsStoredWithoutWork", ruleHold, func(k *txKit[Tx]) {
			r := k.request(k.id())
			r.OnAbandoned = backend.Hold
			was := k.abandon(r)
			ran := false
			res := k.transact(over(r, was.Fence), k.forbidden(&ran))
			k.check(!ran && res.Outcome == backend.Existing && res.Record.State == backend.Uncertain, "it was answered %v, %s, work ran: %v; want existing, uncertain", res.Outcome, show(res.Record), ran)
			k.check(k.get(r.ID).State == backend.Uncertain, "the hold was not stored: %s", show(k.get(r.ID)))
			k.count(0, "afterwards")
		}},
		{"R17/LimitsHoldInTransactions", ruleLimits, func(k *txKit[Tx]) {
			ran := false
			bad := k.request(k.id())
			bad.ID.Key = ""
			_, err := k.open().Transact(k.ctx, bad, k.forbidden(&ran))
			k.wants(err, backend.ErrInvalidKey, "Transact without a key")
			bad = k.request(k.id())
			bad.TTL = 0
			_, err = k.open().Transact(k.ctx, bad, k.forbidden(&ran))
			k.wants(err, backend.ErrInvalidRequest, "Transact with a zero lease")
			_, err = k.open().Finish(k.ctx, backend.Ref{ID: k.id()}, k.forbidden(&ran))
			k.wants(err, backend.ErrInvalidRequest, "Finish with a zero token")
			k.check(!ran, "work ran although the request is invalid")
			k.empty("after invalid requests")
		}},
		{"R27/BytesInTransactionsAreCopied", ruleBytes, func(k *txKit[Tx]) {
			b, r, body := k.open(), k.request(k.id()), []byte("answer")
			c := done("")
			c.Body = body
			res, err := b.Transact(k.ctx, r, k.work(c))
			k.check(err == nil, "Transact: %v", err)
			scribble(body)
			scribble(res.Record.Body)
			scribble(res.Record.Fingerprint)
			rec, err := b.Get(k.ctx, r.ID)
			k.check(err == nil && string(rec.Body) == "answer" && string(rec.Fingerprint) == string(digests("amount 100")), "the caller changed its bytes and the store's changed with them: %s", quote(rec.Body))
		}},
	}
}
