package leasemodel

import (
	"os"
	"sync"
	"testing"
	"time"
)

var (
	everyPolicy = []Policy{Rerun, Recover, Hold}
	onlyRerun   = []Policy{Rerun}
	onlyHold    = []Policy{Hold}

	// The scenarios that the tests choose from: each is explored to the end within
	// a second or so.
	alone    = Scenario{Attempts: 1, Policies: everyPolicy, Prints: 1, Resolve: true, Forget: true, Windows: 1}
	plainTwo = Scenario{Attempts: 2, Policies: everyPolicy, Prints: 2}
	resolve  = Scenario{Attempts: 2, Policies: []Policy{Rerun, Hold}, Prints: 1, Resolve: true, NoDeadline: true}
	forget   = Scenario{Attempts: 2, Policies: onlyHold, Prints: 1, Forget: true}
	windows  = Scenario{Attempts: 2, Policies: onlyRerun, Prints: 1, Windows: 1}

	// Explored with IDEM_MODEL=full, one start at a time.
	everything = Scenario{Attempts: 2, Policies: everyPolicy, Prints: 1, Resolve: true, Forget: true, Windows: 1, NoDeadline: true}
	three      = Scenario{Attempts: 3, Policies: everyPolicy, Prints: 1}
)

// limit bounds the states of one exploration in full, and with them its memory.
const limit = 4_000_000

// exploration is a scenario, explored with every clause in place.
type exploration struct {
	name    string
	report  Report
	took    time.Duration
	records map[Record]bool // every record that it meets
}

// explored explores the short scenarios, once for all tests.
var explored = sync.OnceValue(func() (all []exploration) {
	for _, c := range []struct {
		name string
		in   Scenario
	}{
		{"one attempt", alone},
		{"two attempts", plainTwo},
		{"resolve", resolve},
		{"forget", forget},
		{"windows", windows},
	} {
		e := exploration{name: c.name, records: map[Record]bool{}}
		m := Model{Start: c.in.Start(), Invariants: All(), Visit: func(s *State) { e.records[s.Rec] = true }}
		begun := time.Now()
		e.report = m.Explore()
		e.took = time.Since(begun).Round(time.Millisecond)
		all = append(all, e)
	}
	return all
})

// TestModelExhaustive visits every state of each scenario and finds nothing
// broken.
func TestModelExhaustive(t *testing.T) {
	for _, e := range explored() {
		t.Run(e.name, func(t *testing.T) {
			if e.report.Broken != nil || !e.report.Complete {
				t.Error(e.report)
			}
			t.Logf("%v, in %v", e.report, e.took)
		})
	}
	if os.Getenv("IDEM_MODEL") != "full" {
		t.Log("IDEM_MODEL=full explores three attempts, and two with everything at once")
		return
	}
	t.Run("two attempts and everything", func(t *testing.T) { exploreEach(t, everything) })
	t.Run("three attempts", func(t *testing.T) { exploreEach(t, three) })
}

// exploreEach explores a scenario one start at a time, each up to the limit, and
// says how many of them that covers to the end.
func exploreEach(t *testing.T, c Scenario) {
	t.Helper()
	begun := time.Now()
	var states, complete int
	starts := c.Start()
	for _, s := range starts {
		rep := (&Model{Start: []State{s}, Invariants: All(), Limit: limit}).Explore()
		if rep.Broken != nil {
			t.Fatal(rep)
		}
		if rep.Complete {
			complete++
		}
		states += rep.States
	}
	t.Logf("nothing broken in %d states, in %v; %d of %d starts explored to the end, the others up to %d states each",
		states, time.Since(begun).Round(time.Second), complete, len(starts), limit)
}
