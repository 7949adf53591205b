package backendtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// TxHarness tells the suite how to reach one transactional store. The fields that
// Harness has too mean the same.
type TxHarness[Tx any] struct {
	// Open returns a handle on the store; see Harness.
	Open func(t testing.TB) backend.Transactional[Tx]
	// Advance, Tick, Unit, MaxAdvance, Parallel, FenceOutlivesRecord, Put, Damage
	// and Future are those of Harness.
	Advance             func(d time.Duration)
	Tick                time.Duration
	Unit                time.Duration
	MaxAdvance          time.Duration
	Parallel            bool
	FenceOutlivesRecord bool
	Put                 func(t testing.TB, r backend.Record)
	Damage              func(t testing.TB, id backend.ID)
	Future              func(t testing.TB, id backend.ID)

	// Effect does something inside tx that Count sees once tx is committed: it
	// writes one more row under name, in a table without a unique constraint.
	Effect func(t testing.TB, tx Tx, name string)
	// Count returns how many effects with this name are committed. It does not use
	// the store under test.
	Count func(t testing.TB, name string) int

	// InOwnTx runs do in a transaction of the caller: committed if do returns nil,
	// rolled back and returned as it is otherwise. Without it Join is not checked.
	InOwnTx func(t testing.TB, do func(tx Tx) error) error
	// NoSavepoint says that Join cannot undo the effects of a Work that failed, and
	// writes an uncertain record into the caller's transaction instead.
	NoSavepoint bool
	// EndEarly tries to commit the transaction that a Work was given, by whatever
	// means Tx leaves open, and reports whether that worked. Without it the type
	// must make it impossible.
	EndEarly func(tx Tx) bool
	// LoseCommit lets the store lose its answer to the next commit of Transact,
	// after or before that commit took effect. The store stays reachable.
	LoseCommit func(t testing.TB, applied bool)
}

// plain returns what Run needs.
func (h *TxHarness[Tx]) plain() *Harness {
	return &Harness{
		Open:    func(t testing.TB) backend.Backend { return h.Open(t) },
		Advance: h.Advance, Tick: h.Tick, Unit: h.Unit, MaxAdvance: h.MaxAdvance, Parallel: h.Parallel,
		FenceOutlivesRecord: h.FenceOutlivesRecord, Put: h.Put, Damage: h.Damage, Future: h.Future,
	}
}

// RunTx holds a transactional backend to every rule of the contract: those of Run
// and those about effects that commit with their record.
func RunTx[Tx any](t *testing.T, fresh func(t testing.TB) *TxHarness[Tx]) {
	Run(t, func(t testing.TB) *Harness { return fresh(t).plain() })
	for _, c := range txChecks[Tx]() {
		t.Run(c.name, func(t *testing.T) {
			h := fresh(t)
			if h.Parallel {
				t.Parallel()
			}
			play(t, h, h.MaxAdvance > 0, fresh, func(h *TxHarness[Tx], p *try) {
				k := &txKit[Tx]{kit: newKit(t, h.plain(), check{name: c.name, rule: c.rule}, p), h: h}
				c.run(k)
				k.invariants()
			})
		})
	}
}

// txChecks returns every check of RunTx that Run does not have.
func txChecks[Tx any]() []txCheck[Tx] {
	return slices.Concat(transactChecks[Tx](), endingChecks[Tx](), raceChecks[Tx](), joinChecks[Tx](), finishChecks[Tx]())
}

type txCheck[Tx any] struct {
	name, rule string
	run        func(k *txKit[Tx])
}

// txKit is kit with transactions.
type txKit[Tx any] struct {
	*kit
	h *TxHarness[Tx]
}

func (k *txKit[Tx]) open() backend.Transactional[Tx] {
	k.t.Helper()
	return k.h.Open(k.t)
}

// each runs a part of a check on keys and effects of its own.
func (k *txKit[Tx]) each(name string, run func(k *txKit[Tx])) {
	k.t.Helper()
	k.kit.each(name, func(part *kit) { run(&txKit[Tx]{kit: part, h: k.h}) })
}

// in runs one situation of an existing record.
func (k *txKit[Tx]) in(s situation, run func(k *txKit[Tx])) {
	k.t.Helper()
	k.each(s.name, run)
}

// effect returns the name of an effect of this part.
func (k *txKit[Tx]) effect() string { return "effect " + k.scope }

// count insists on the number of committed effects.
func (k *txKit[Tx]) count(want int, when string) {
	k.t.Helper()
	got := k.h.Count(k.t, k.effect())
	k.check(got == want, "%s %d effects are committed; want %d", when, got, want)
}

// done is a completion with windows that do not run out.
func done(body string) backend.Completion {
	return backend.Completion{State: backend.Completed, Body: []byte(body), ReplayFor: long, KnownFor: long}
}

// work has its effect and completes.
func (k *txKit[Tx]) work(c backend.Completion) backend.Work[Tx] {
	return func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
		k.h.Effect(k.t, tx, k.effect())
		return c, nil
	}
}

// forbidden must not be called. It has an effect, so that calling it shows.
func (k *txKit[Tx]) forbidden(ran *bool) backend.Work[Tx] {
	return func(_ context.Context, tx Tx, _ backend.Reservation) (backend.Completion, error) {
		*ran = true
		k.h.Effect(k.t, tx, k.effect())
		return done("forbidden"), nil
	}
}

// transact runs one attempt and insists that there is no error.
func (k *txKit[Tx]) transact(r backend.ReserveRequest, work backend.Work[Tx]) backend.Reservation {
	k.t.Helper()
	res, err := k.open().Transact(k.ctx, r, work)
	k.check(err == nil, "Transact: %v", err)
	return res
}

// committed insists that an attempt went through, with its record as stored.
func (k *txKit[Tx]) committed(r backend.ReserveRequest, res backend.Reservation, c backend.Completion) backend.Record {
	k.t.Helper()
	rec := res.Record
	k.check(res.Outcome == backend.Acquired, "it was answered %v over %s; want acquired", res.Outcome, show(rec))
	k.check(rec.Ref == r.Ref && rec.State == c.State && string(rec.Body) == string(c.Body), "an acquired reservation carries %s with body %s; want the completed record", show(rec), quote(rec.Body))
	k.check(!res.Now.IsZero(), "the answer lacks the store's time")
	k.unchanged(rec, "reading it through another handle")
	return rec
}

// through transacts as the core does, taking over what is free, until the key is
// had or taken.
func (k *txKit[Tx]) through(r backend.ReserveRequest, work backend.Work[Tx]) backend.Reservation {
	k.t.Helper()
	res := k.transact(r, work)
	for range 20 {
		rec := &res.Record
		switch {
		case res.Outcome == backend.Gone:
			r.TakeOver = 0
		case res.Outcome == backend.Existing && rec.Owner != r.Owner && (rec.State == backend.Open || rec.Expired(res.Now) || rec.IsAbandoned(res.Now)):
			r.TakeOver = rec.Fence
		default:
			return res
		}
		res = k.transact(r, work)
	}
	return res
}

// free insists that a roll-back left the key to be had.
func (k *txKit[Tx]) free(id backend.ID, after string) {
	k.t.Helper()
	before := k.h.Count(k.t, k.effect())
	r := k.request(id)
	res := k.through(r, k.work(done("again")))
	k.check(res.Outcome == backend.Acquired, "after %s the key is not free: %v, %s", after, res.Outcome, show(res.Record))
	k.count(before+1, "after the next attempt")
}
