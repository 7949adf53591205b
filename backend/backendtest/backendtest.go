package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// Harness tells the suite how to reach one store and its clock. Each subtest asks
// for a fresh one, with an empty store that no other subtest sees.
//
// The fields from Put on are optional. Where one is missing, the subtests that
// need it say NOT CHECKED and skip; they never pass.
type Harness struct {
	// Open returns a handle on the store of this harness, always the same store,
	// with nothing cached from earlier handles. The suite opens one for nearly
	// every step, so that state which lives in a handle is noticed. Where a store
	// allows only one handle (a file lock), return the same one again. Close
	// handles in t.Cleanup.
	Open func(t testing.TB) backend.Backend
	// Advance moves the store's clock forward, or really waits so long.
	Advance func(d time.Duration)
	// Tick is how far a time that the store returns may be off: its precision,
	// and what it rounds.
	Tick time.Duration

	// Unit is the length of the leases and windows that the suite lets run out;
	// it waits a few of them in a subtest. Zero means one minute, which is right
	// for a clock that can be moved. Where Advance really waits, choose the
	// shortest time that the store handles well on a busy machine, such as 100 ms.
	Unit time.Duration
	// MaxAdvance is the longest time that the suite may advance at once; zero
	// means any. Set it where Advance really waits. Subtests that need more, and
	// those that look shortly before a lease or window ends, are skipped then. A
	// subtest that fails after the machine held it up for a Unit or more is logged
	// as HELD UP and played again on a fresh store; its third failure stands.
	MaxAdvance time.Duration
	// Parallel lets subtests run beside each other, which saves time where Advance
	// really waits.
	Parallel bool
	// FenceOutlivesRecord says that fences grow on a key even after its record was
	// removed. What a store promises there is its own to state (R4).
	FenceOutlivesRecord bool

	// Put stores r as it is, without any check, as an older or damaged writer
	// might have left it. The suite plants records without a lease deadline.
	Put func(t testing.TB, r backend.Record)
	// Damage makes the stored record of id unreadable.
	Damage func(t testing.TB, id backend.ID)
	// Future gives the stored record of id a format version that no code knows.
	Future func(t testing.TB, id backend.ID)
}

// check is one clause of the contract: a subtest.
type check struct {
	name string // rule, slash, what is checked
	rule string // the sentence that a failure quotes
	run  func(k *kit)
}

// Run holds a backend to every rule of the contract that concerns it. Subtests
// are named after the rules; a failure quotes the rule that was broken. fresh is
// called once for each subtest.
func Run(t *testing.T, fresh func(t testing.TB) *Harness) {
	for _, c := range checks() {
		runCheck(t, c, fresh)
	}
}

func runCheck(t *testing.T, c check, fresh func(t testing.TB) *Harness) {
	t.Run(c.name, func(t *testing.T) {
		h := fresh(t)
		if h.Parallel {
			t.Parallel()
		}
		play(t, h, h.MaxAdvance > 0, fresh, func(h *Harness, p *try) {
			k := newKit(t, h, c, p)
			c.run(k)
			k.invariants()
		})
	})
}

// checks returns every check of Run.
func checks() []check {
	return slices.Concat(
		reserveChecks(), takeoverChecks(), fingerprintChecks(), ownershipChecks(), repeatChecks(), completeChecks(),
		leaseChecks(), deadlineChecks(), abandonedChecks(), resolveChecks(), windowChecks(), sweepChecks(),
		keyChecks(), listChecks(), bytesChecks(), versionChecks(), concurrencyChecks(), modelChecks(),
	)
}
