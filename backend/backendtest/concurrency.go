package backendtest

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/goidem/idem/backend"
)

const ruleAtomic = "One atomic statement, script or transaction decides who owns a key. Never read, then write."

// racers is how many callers race for one key.
const racers = 100

// handles opens a few handles for many callers.
func (k *kit) handles(n int) []backend.Backend {
	k.t.Helper()
	hs := make([]backend.Backend, n)
	for i := range hs {
		hs[i] = k.open()
	}
	return hs
}

// race lets a hundred callers reserve id at the same moment and insists that
// exactly one of them gets it.
func (k *kit) race(id backend.ID, do func(b backend.Backend, r backend.ReserveRequest) (backend.Reservation, error)) backend.Record {
	k.t.Helper()
	type answer struct {
		ref backend.Ref
		res backend.Reservation
		err error
	}
	hs := k.handles(8)
	answers := make([]answer, racers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		r := k.request(id)
		wg.Go(func() {
			<-start
			res, err := do(hs[i%len(hs)], r)
			answers[i] = answer{r.Ref, res, err}
		})
	}
	close(start)
	wg.Wait()
	var winners []answer
	for _, a := range answers {
		k.check(a.err == nil, "one of %d callers at the same time got the error %v", racers, a.err)
		if a.res.Outcome == backend.Acquired {
			k.check(a.res.Record.Owner == a.ref.Owner, "a winner was handed another's record")
			winners = append(winners, a)
		}
	}
	k.check(len(winners) == 1, "of %d callers at the same time %d got the key; want exactly one", racers, len(winners))
	won := winners[0].res.Record
	for _, a := range answers {
		if a.res.Outcome == backend.Existing {
			k.check(a.res.Record.Owner == won.Owner && a.res.Record.Fence == won.Fence && a.res.Record.IsLive(a.res.Now), "a loser was shown %s; want the winner's attempt", show(a.res.Record))
		} else if a.res.Outcome != backend.Acquired && a.res.Outcome != backend.Busy {
			k.fail("a loser was answered %v; want existing", a.res.Outcome)
		}
	}
	k.unchanged(won, "the race")
	return won
}

// concurrencyChecks: R1.
func concurrencyChecks() []check {
	return []check{
		{"R01/OneWinnerAmongManyReserves", ruleAtomic, func(k *kit) {
			for i := range 5 {
				k.race(k.key(fmt.Sprint("order-", i)), func(b backend.Backend, r backend.ReserveRequest) (backend.Reservation, error) {
					return b.Reserve(k.ctx, r)
				})
			}
		}},
		{"R01/OneWinnerOverAnOpenRecord", ruleAtomic, func(k *kit) {
			for i := range 5 {
				id := k.key(fmt.Sprint("order-", i))
				k.opened(k.request(id))
				k.race(id, k.take)
			}
		}},
		{"R01/OneWinnerOverAnAbandonedRecord", ruleAtomic, func(k *kit) {
			for i := range 5 {
				id := k.key(fmt.Sprint("order-", i))
				k.abandon(k.request(id))
				won := k.race(id, k.take)
				k.check(won.TookOver && won.Attempt == 2, "the winner over an abandoned attempt has %s; want attempt 2, by takeover", show(won))
			}
		}},
		{"R01/OneWinnerOverAnExpiredRecord", ruleAtomic, func(k *kit) {
			for i := range 5 {
				id := k.key(fmt.Sprint("order-", i))
				k.expired(k.request(id), "old")
				won := k.race(id, k.take)
				k.check(won.Attempt == 1, "the winner over an expired record has %s; want attempt 1", show(won))
			}
		}},
		{"R01/OneTakeOverOfTheSameFence", ruleAtomic, func(k *kit) {
			for i := range 5 {
				id := k.key(fmt.Sprint("order-", i))
				fence := k.abandon(k.request(id)).Fence
				k.race(id, func(b backend.Backend, r backend.ReserveRequest) (backend.Reservation, error) {
					r.TakeOver = fence
					return b.Reserve(k.ctx, r)
				})
			}
		}},
		{"R01/HundredCopiesOfOneReserve", ruleReserved, func(k *kit) {
			r := k.request(k.id())
			hs := k.handles(8)
			answers := make([]backend.Reservation, racers)
			errs := make([]error, racers)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() { answers[i], errs[i] = hs[i%len(hs)].Reserve(k.ctx, r) })
			}
			wg.Wait()
			for i, res := range answers {
				k.check(errs[i] == nil && res.Outcome == backend.Acquired, "a copy of one reserve was answered %v, %v; want acquired", res.Outcome, errs[i])
				if d := diff(answers[0].Record, res.Record, k.h.Tick); d != "" {
					k.fail("copies of one reserve were answered differently: %s", d)
				}
			}
		}},
		{"R01/RenewalAndTakeOverRace", "Reserving over an abandoned record checks in that same step that the lease is over by the store's clock.", func(k *kit) {
			// Either the owner keeps the key or another gets it, never both.
			hs := k.handles(4)
			for i := range 20 {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				was := k.abandon(r)
				next := over(r, was.Fence)
				var renewed, reserved error
				var res backend.Reservation
				var wg sync.WaitGroup
				wg.Go(func() { renewed = hs[i%2].Renew(k.ctx, r.Ref, long) })
				wg.Go(func() { res, reserved = hs[2+i%2].Reserve(k.ctx, next) })
				wg.Wait()
				k.check(reserved == nil, "Reserve: %v", reserved)
				took := res.Outcome == backend.Acquired
				k.check(took != (renewed == nil), "a renewal (%v) and a takeover (%v) at the same time: both or neither succeeded", renewed, res.Outcome)
				owner := r.Owner
				if took {
					owner = next.Owner
				}
				k.check(k.get(r.ID).Owner == owner, "the store names another owner than the one it told")
			}
		}},
		{"R01/CompletionAndTakeOverRace", ruleComplete, func(k *kit) {
			hs := k.handles(4)
			for i := range 20 {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				was := k.abandon(r)
				next := over(r, was.Fence)
				var completed, reserved error
				var res backend.Reservation
				var wg sync.WaitGroup
				wg.Go(func() {
					_, completed = hs[i%2].Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("A"), ReplayFor: long, KnownFor: long})
				})
				wg.Go(func() { res, reserved = hs[2+i%2].Reserve(k.ctx, next) })
				wg.Wait()
				k.check(reserved == nil, "Reserve: %v", reserved)
				k.check((res.Outcome == backend.Acquired) != (completed == nil), "a completion (%v) and a takeover (%v) at the same time: both or neither succeeded", completed, res.Outcome)
			}
		}},
		{"R01/EveryFenceHasOneOwner", ruleFence, func(k *kit) {
			const callers, rounds, keys = 16, 40, 3
			type grant struct {
				key   int
				fence uint64
			}
			var mu sync.Mutex
			owners := make(map[grant][16]byte)
			ends := make(map[grant]int) // completions of one fence
			var failure string
			hs := k.handles(4)
			seed := uint64(wallClock().UnixNano())
			var wg sync.WaitGroup
			for c := range callers {
				rng := rand.New(rand.NewPCG(seed, uint64(c)))
				wg.Go(func() {
					for round := range rounds {
						n := rng.IntN(keys) + keys*(round/5) // completed keys are done with
						b := hs[rng.IntN(len(hs))]
						r := k.request(k.key(fmt.Sprint("order-", n)))
						res, err := k.take(b, r)
						if err != nil || res.Outcome != backend.Acquired {
							if err != nil {
								mu.Lock()
								failure = fmt.Sprintf("Reserve: %v", err)
								mu.Unlock()
							}
							continue
						}
						g := grant{n, res.Record.Fence}
						mu.Lock()
						if _, twice := owners[g]; twice {
							failure = fmt.Sprintf("fence %d of key %d was given to two attempts", g.fence, n)
						}
						owners[g] = r.Owner
						mu.Unlock()
						switch rng.IntN(3) {
						case 0:
							_ = b.Renew(k.ctx, r.Ref, long)
							fallthrough
						case 1:
							err = b.Release(k.ctx, r.Ref)
						case 2:
							var rec backend.Record
							rec, err = b.Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, ReplayFor: long, KnownFor: long})
							if err == nil {
								mu.Lock()
								ends[g]++
								mu.Unlock()
								if k.h.FenceOutlivesRecord {
									_ = b.Forget(k.ctx, backend.ForgetRequest{ID: r.ID, Fence: rec.Fence})
								}
							}
						}
						if err != nil {
							mu.Lock()
							failure = fmt.Sprintf("an owner that nobody could take over from was told %v", err)
							mu.Unlock()
						}
					}
				})
			}
			wg.Wait()
			k.check(failure == "", "seed %d: %s", seed, failure)
			for g, n := range ends {
				k.check(n == 1, "seed %d: fence %d of key %d was completed %d times", seed, g.fence, g.key, n)
			}
			k.check(len(owners) > 0, "nobody ever got a key")
		}},
	}
}
