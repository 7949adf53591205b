package backendtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	ruleSettled = "A commit whose outcome is unknown is settled by idem: it goes back to the store and learns the truth."
	ruleManaged = "fn cannot commit or roll back the transaction it is given. Where the type cannot prevent it, it is detected: a row seen committed too early answers ErrUnresolved, never a rerun."
	ruleWaits   = "A duplicate of a key whose transaction is still open waits at most as long as the wait policy allows, then gets ErrInFlight; after a roll-back the waiter becomes the owner."
)

// exit ends the goroutine, as t.FailNow does in a test that calls the caller's fn.
func exit() { runtime.Goexit() }

// endingChecks: R18, R19 and R25, how a transaction ends.
func endingChecks[Tx any]() []txCheck[Tx] {
	return []txCheck[Tx]{
		{"R18/LostCommitIsSettled", ruleSettled, func(k *txKit[Tx]) {
			k.need(k.h.LoseCommit != nil, "LoseCommit")
			for _, applied := range []bool{true, false} {
				k.each(fmt.Sprintf("took effect %v", applied), func(k *txKit[Tx]) {
					r := k.request(k.id())
					b := k.open()
					k.h.LoseCommit(k.t, applied)
					res, err := b.Transact(k.ctx, r, k.work(done("answer")))
					if applied {
						k.check(err == nil, "the commit took effect and Transact returned %v", err)
						k.check(res.Outcome == backend.Acquired || res.Outcome == backend.Existing, "the commit took effect and Transact answered %v", res.Outcome)
						k.check(res.Record.Owner == r.Owner && string(res.Record.Body) == "answer", "the commit took effect and Transact returned %s", show(res.Record))
						k.count(1, "after a lost commit that took effect")
					} else if err == nil {
						k.check(res.Outcome == backend.Acquired, "the commit did not take effect and Transact answered %v", res.Outcome)
						k.count(1, "after a lost commit that did not take effect and was run again")
					} else {
						k.count(0, "after a lost commit that did not take effect")
					}
					again := k.through(over(r, 0), k.work(done("answer")))
					k.check(string(again.Record.Body) == "answer", "the next call was answered %v, %s", again.Outcome, show(again.Record))
					k.count(1, "after the next call")
				})
			}
		}},
		{"R19/WorkCannotCommitByItself", ruleManaged, func(k *txKit[Tx]) {
			k.need(k.h.EndEarly != nil, "EndEarly")
			r := k.request(k.id())
			ended := false
			_, err := func() (res backend.Reservation, err error) {
				defer func() {
					if v := recover(); v != nil {
						err = fmt.Errorf("panic: %v", v)
					}
				}()
				return k.open().Transact(k.ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
					k.h.Effect(k.t, tx, k.effect())
					ended = k.h.EndEarly(tx)
					return done("answer"), nil
				})
			}()
			if !ended {
				if err == nil {
					k.count(1, "work could not commit by itself, and afterwards")
				} else {
					k.count(0, "work could not commit by itself, Transact failed, and afterwards")
				}
				return
			}
			k.check(err != nil, "work ended its transaction early and Transact reports success")
			n := k.h.Count(k.t, k.effect())
			ran := false
			res := k.transact(over(r, 0), k.forbidden(&ran))
			k.check(!ran && res.Outcome == backend.Existing && res.Record.State == backend.Uncertain, "work committed too early and the next call was answered %v, %s, its work ran: %v; want existing, uncertain", res.Outcome, show(res.Record), ran)
			k.count(n, "after the next call")
		}},
		{"R25/DeadContextRunsNothing", "Store down at reserve: fn does not run.", func(k *txKit[Tx]) {
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			ran := false
			_, err := k.open().Transact(ctx, k.request(k.id()), k.forbidden(&ran))
			k.check(ended(err) && !ran, "Transact with a dead context: %v, work ran: %v", err, ran)
			held := k.request(k.key("held"))
			was := k.acquire(held)
			_, err = k.open().Finish(ctx, held.Ref, k.forbidden(&ran))
			k.check(ended(err) && !ran, "Finish with a dead context: %v, work ran: %v", err, ran)
			k.unchanged(was, "Finish with a dead context")
			k.count(0, "afterwards")
			k.free(k.id(), "a dead context")
		}},
		{"R25/ContextThatEndsInWork", ruleTogether, func(k *txKit[Tx]) {
			// Either all of it or nothing, and the answer says which (C02, C03).
			ctx, cancel := context.WithCancel(k.ctx)
			defer cancel()
			r := k.request(k.id())
			_, err := k.open().Transact(ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
				k.h.Effect(k.t, tx, k.effect())
				cancel()
				return done("answer"), nil
			})
			n := k.h.Count(k.t, k.effect())
			rec, gerr := k.open().Get(k.ctx, r.ID)
			committed := gerr == nil && rec.State == backend.Completed
			k.check(committed == (n == 1) && n <= 1, "the caller's context ended in work: %d effects and %s", n, show(rec))
			k.check(err != nil || committed, "the caller's context ended in work, nothing is stored, and Transact reports success")
			k.check(err == nil || !committed || errors.Is(err, backend.ErrOutcomeUnknown), "the caller's context ended in work, all is committed, and Transact says %v, which does not leave that open", err)
		}},
	}
}

// raceChecks: R1, R17 and R20 with many callers.
func raceChecks[Tx any]() []txCheck[Tx] {
	return []txCheck[Tx]{
		{"R17/OneEffectAmongManyCallers", ruleTogether, func(k *txKit[Tx]) {
			for i := range 3 {
				k.each(fmt.Sprint("round ", i), func(k *txKit[Tx]) {
					const callers = 40
					hs := make([]backend.Transactional[Tx], 4)
					for i := range hs {
						hs[i] = k.open()
					}
					results, errs := make([]backend.Reservation, callers), make([]error, callers)
					var wg sync.WaitGroup
					for i := range callers {
						r := k.request(k.id())
						r.Wait = time.Minute
						wg.Go(func() { results[i], errs[i] = hs[i%len(hs)].Transact(k.ctx, r, k.work(done("answer"))) })
					}
					wg.Wait()
					winners := 0
					for i, res := range results {
						k.check(errs[i] == nil, "one of %d callers at the same time got the error %v", callers, errs[i])
						k.check(string(res.Record.Body) == "answer", "one of %d callers, waiting a minute, was answered %v, %s; want the result", callers, res.Outcome, show(res.Record))
						if res.Outcome == backend.Acquired {
							winners++
						}
					}
					k.check(winners == 1, "of %d callers at the same time %d had their work committed; want exactly one", callers, winners)
					k.count(1, "afterwards")
				})
			}
		}},
		{"R17/MembersOfAGroupDoNotSpoilEachOther", "fn may run more than once before the one commit that counts; after a failure the rest go on without it.", func(k *txKit[Tx]) {
			const callers = 40
			hs := make([]backend.Transactional[Tx], 4)
			for i := range hs {
				hs[i] = k.open()
			}
			errs, outcomes := make([]error, callers), make([]backend.Outcome, callers)
			var wg sync.WaitGroup
			for i := range callers {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				wg.Go(func() {
					defer func() {
						if v := recover(); v != nil {
							errs[i] = v.(error)
						}
					}()
					res, err := hs[i%len(hs)].Transact(k.ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
						k.h.Effect(k.t, tx, k.effect())
						switch i % 4 {
						case 1:
							return backend.Completion{}, errWork
						case 2:
							panic(errWork)
						}
						return done("answer"), nil
					})
					errs[i], outcomes[i] = err, res.Outcome
				})
			}
			wg.Wait()
			good := 0
			for i := range callers {
				if i%4 == 1 || i%4 == 2 {
					k.check(errs[i] == errWork, "a member whose work fails was told %v", errs[i])
					continue
				}
				k.check(errs[i] == nil && outcomes[i] == backend.Acquired, "a member whose work succeeds was answered %v, %v", outcomes[i], errs[i])
				good++
			}
			k.count(good, "afterwards")
		}},
		{"R20/DuplicateOfAnOpenTransactionFailsFast", ruleWaits, func(k *txKit[Tx]) {
			release, ended := k.hang(k.id(), nil)
			b, began, ran := k.open(), wallClock(), false
			ctx, cancel := context.WithTimeout(k.ctx, 5*time.Second)
			defer cancel()
			// A single-writer store cannot even look before the writer is done; it may
			// say so by its caller's context, but not hang.
			res, err := b.Transact(ctx, k.request(k.id()), k.forbidden(&ran))
			took := wallClock().Sub(began)
			k.check(!ran, "the work of a duplicate ran while the first transaction is open")
			k.check(err == nil && (res.Outcome == backend.Busy || res.Outcome == backend.Existing && res.Record.State == backend.InFlight), "a duplicate of an open transaction was answered %v, %s, %v; want busy", res.Outcome, show(res.Record), err)
			k.check(took < 5*time.Second, "a duplicate that wants to fail fast was answered after %v", took)
			res, err = b.Reserve(ctx, k.request(k.id()))
			k.check(err == nil && (res.Outcome == backend.Busy || res.Outcome == backend.Existing && res.Record.State == backend.InFlight), "a lease-mode duplicate of an open transaction was answered %v, %s, %v; want busy", res.Outcome, show(res.Record), err)
			release()
			<-ended
			k.count(1, "after the first transaction")
		}},
		{"R20/WaiterSeesTheResult", ruleWaits, func(k *txKit[Tx]) {
			release, ended := k.hang(k.id(), nil)
			time.AfterFunc(200*time.Millisecond, release)
			r, ran := k.request(k.id()), false
			r.Wait = time.Minute
			res := k.transact(r, k.forbidden(&ran))
			k.check(!ran && res.Outcome == backend.Existing && string(res.Record.Body) == "first", "a waiter was answered %v, %s, its work ran: %v; want the result", res.Outcome, show(res.Record), ran)
			<-ended
			k.count(1, "afterwards")
		}},
		{"R20/WaiterBecomesTheOwnerAfterARollBack", ruleWaits, func(k *txKit[Tx]) {
			release, ended := k.hang(k.id(), errWork)
			time.AfterFunc(200*time.Millisecond, release)
			r := k.request(k.id())
			r.Wait = time.Minute
			res := k.through(r, k.work(done("second")))
			k.check(res.Outcome == backend.Acquired && string(res.Record.Body) == "second", "after a roll-back a waiter was answered %v, %s; want acquired", res.Outcome, show(res.Record))
			<-ended
			k.count(1, "afterwards")
		}},
		{"R20/WaiterEndsWithItsContext", ruleWaits, func(k *txKit[Tx]) {
			release, done := k.hang(k.id(), nil)
			ctx, cancel := context.WithTimeout(k.ctx, 200*time.Millisecond)
			defer cancel()
			r, ran, began := k.request(k.id()), false, wallClock()
			r.Wait = time.Minute
			res, err := k.open().Transact(ctx, r, k.forbidden(&ran))
			took := wallClock().Sub(began)
			k.check(!ran && (ended(err) || res.Outcome == backend.Busy), "a waiter whose context ended was answered %v, %v, its work ran: %v", res.Outcome, err, ran)
			k.check(took < 5*time.Second, "a waiter whose context ended was answered after %v", took)
			release()
			<-done
			k.count(1, "afterwards")
		}},
		{"R20/OtherKeysGoOn", "idem's own bookkeeping never needs a second connection; an open transaction on one key does not lose another's.", func(k *txKit[Tx]) {
			release, ended := k.hang(k.id(), nil)
			time.AfterFunc(100*time.Millisecond, release)
			r := k.request(k.key("another"))
			r.Wait = time.Minute
			res := k.transact(r, k.work(done("other")))
			k.check(res.Outcome == backend.Acquired, "another key beside an open transaction was answered %v", res.Outcome)
			<-ended
			k.count(2, "afterwards")
		}},
	}
}

// hang starts a transaction that stays open in its work until release is called;
// then it ends with err, or commits the result "first". ended is closed when it is
// over.
func (k *txKit[Tx]) hang(id backend.ID, err error) (release func(), ended <-chan struct{}) {
	k.t.Helper()
	open, inside, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, entered sync.Once
	release = func() { once.Do(func() { close(open) }) }
	k.t.Cleanup(func() { release(); <-over })
	b, r := k.open(), k.request(id)
	go func() {
		defer close(over)
		_, got := b.Transact(k.ctx, r, func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
			k.h.Effect(k.t, tx, k.effect())
			entered.Do(func() { close(inside) })
			<-open
			return done("first"), err
		})
		if !errors.Is(got, err) {
			k.t.Errorf("the first transaction ended with %v; want %v\n\tRule %s", got, err, k.rule)
		}
	}()
	select {
	case <-inside:
	case <-over:
		k.fail("the first transaction did not reach its work")
	}
	return release, over
}
