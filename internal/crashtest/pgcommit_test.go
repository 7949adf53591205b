package crashtest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

// commitFaults are what can become of a commit on its way.
func commitFaults(rnd *rand.Rand) []crdbshim.Fault {
	late := func() time.Duration { return time.Duration(20+rnd.Int64N(150)) * time.Millisecond }
	return []crdbshim.Fault{
		{Kind: crdbshim.CutAfterCommit},
		{Kind: crdbshim.CutBeforeCommit},
		{Kind: crdbshim.CutAfterCommit, Delay: late()},  // still in flight when the client asks again
		{Kind: crdbshim.CutBeforeCommit, Delay: late()}, // the dead transaction holds its locks for a while
		{Kind: crdbshim.Ambiguous, Applied: true},
		{Kind: crdbshim.Ambiguous},
		{Kind: crdbshim.Serialization},
	}
}

// lint:const the names of the kinds of faults
var faultNames = map[crdbshim.Kind]string{
	crdbshim.CutAfterCommit: "cut-after", crdbshim.CutBeforeCommit: "cut-before",
	crdbshim.Ambiguous: "40003", crdbshim.Serialization: "40001",
}

const commitKeys = 4

// commitLost loses the answers of commits, applied or not, at once or late, and has
// them refused; four callers run at a time.
func commitLost(t *testing.T, r *faultRow, kind pgKind, rounds int, rnd *rand.Rand) {
	g := newGround(t, testdb.Postgres(t).Database(t), kind)
	shim := crdbshim.Start(t, g.url, crdbshim.Options{Plain: !kind.cockroach()})
	c := g.open(t, shim.URL(), "shared")
	defer func() { c.close() }()
	ours := regexp.MustCompile("idem_records")
	for n, idle := 0, 0; n < rounds; {
		faults := commitFaults(rnd)
		fault := faults[n%len(faults)]
		fault.AtCommit, fault.Match = true, ours
		fault.Times, fault.After = 1+rnd.IntN(2), rnd.IntN(commitKeys-1)
		if kind.external() {
			fault.After = rnd.IntN(2) // merged, there may be no more than one commit for all reserves and one for all completions
		}
		round := fmt.Sprintf("%03d.%d-%s-%v-%v", n, idle, faultNames[fault.Kind], fault.Applied, fault.Delay.Milliseconds())
		keys := roundKeys(round, commitKeys)
		if kind.external() {
			effects, err := openLedger(g.ledgerPath(round))
			if err != nil {
				t.Fatal(err)
			}
			c.effects.close()
			c.effects = effects
		}
		injected := shim.Inject(fault)
		h := newHistory()
		began := time.Now()
		stuck := h.settleAll(t, c, keys, commitKeys)
		took := time.Since(began)
		injected.Remove()
		r.add(func(r *faultRow) { r.fired += injected.Fired(); r.worst = max(r.worst, took) })
		time.Sleep(fault.Delay) // a commit that was held back so long has arrived
		fresh := g.open(t, shim.URL(), round)
		g.verdict(t, r, round, keys, h, fresh, stuck)
		fresh.close()
		if injected.Fired() > 0 {
			n, idle = n+1, 0
			continue
		}
		// The shim uses a fault up on a commit that fails by itself, such as by a genuine
		// 40001. The round was judged, but it is no faulted round: another one is played.
		r.add(func(r *faultRow) { r.rounds-- })
		if idle++; idle == 5 {
			t.Fatalf("%s: the fault did not happen in %d rounds", round, idle)
		}
	}
	if refused := shim.Refused(); len(refused) > 0 {
		t.Errorf("statements that CockroachDB refuses: %q", refused)
	}
}
