package crashtest

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// faultPlan is a row of the fault matrix: how it is played, and how often.
type faultPlan struct {
	name   string
	least  int // rounds of the short form
	weight int // its part of the long form, of faultWeights
	play   func(t *testing.T, r *faultRow, rounds int, rnd *rand.Rand)
}

// faultWeights is what the weights of TestFaults add up to at least, so that a long
// form plays as many rounds as it is asked for.
const faultWeights = 525

func faultPlans() []faultPlan {
	of := func(f func(*testing.T, *faultRow, pgKind, int, *rand.Rand), kind pgKind) func(*testing.T, *faultRow, int, *rand.Rand) {
		return func(t *testing.T, r *faultRow, n int, rnd *rand.Rand) { f(t, r, kind, n, rnd) }
	}
	plans := []faultPlan{
		{"worker killed/tx", 3, 60, of(workerKilled, pgTx)},
		{"worker killed/lease", 3, 60, of(workerKilled, pgLease)},
		{"server killed/tx", 3, 60, of(serverKilled, pgTx)},
		{"server killed/lease", 2, 40, of(serverKilled, pgLease)},
		{"disk full/tx", 2, 15, diskFull},
		{"frozen beyond lease/lease", 1, 10, func(t *testing.T, r *faultRow, n int, _ *rand.Rand) { stopped(t, r, pgLease, n) }},
		{"frozen beyond lease/tx", 1, 10, func(t *testing.T, r *faultRow, n int, _ *rand.Rand) { stopped(t, r, pgTx, n) }},
		{"slow beyond lease/lease", 1, 10, func(t *testing.T, r *faultRow, n int, _ *rand.Rand) { slow(t, r, n) }},
		{"storm 4x64 on 50/tx", 1, 5, of(storm, pgTx)},
		{"storm 4x64 on 50/lease", 1, 5, of(storm, pgLease)},
	}
	for _, kind := range []pgKind{pgTx, pgQueued, pgSQL, pgLease, crdbTx, crdbLease} {
		plans = append(plans, faultPlan{"commit lost/" + string(kind), 7, 42, of(commitLost, kind)})
	}
	return plans
}

// faultSeed is the seed of a run.
func faultSeed(t *testing.T) uint64 {
	t.Helper()
	v := os.Getenv("IDEM_TEST_SEED")
	if v == "" {
		return uint64(time.Now().UnixNano())
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFaults plays rows of the fault matrix on real servers: processes and servers
// that are killed, commits whose answers are lost, duplicates in a storm, a full disk,
// a holder that stands still. Each round counts the effects of its keys where no
// constraint would hide a second one, asks again for everything that was acknowledged,
// and knows that its fault has happened.
//
// The default is a short run; IDEM_FAULT_ROUNDS=500 (make faults) is the proof.
func TestFaults(t *testing.T) { playFaults(t, faultPlans()) }

// playFaults plays rows and prints what was counted.
func playFaults(t *testing.T, plans []faultPlan) {
	total := 0
	if v := os.Getenv("IDEM_FAULT_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("IDEM_FAULT_ROUNDS=%q: it must be a positive number", v)
		}
		total = n
	}
	seed := faultSeed(t)
	t.Logf("seed %d (IDEM_TEST_SEED)", seed)
	rows := make([]*faultRow, len(plans))
	began := time.Now()
	t.Run("rows", func(t *testing.T) {
		for i, p := range plans {
			r := &faultRow{name: p.name}
			rows[i] = r
			rounds := max(p.least, (total*p.weight+faultWeights-1)/faultWeights)
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				// Of its name, so that a row plays the same alone and among others.
				h := fnv.New64a()
				h.Write([]byte(p.name))
				p.play(t, r, rounds, rand.New(rand.NewPCG(seed, h.Sum64())))
				if r.rounds < rounds && !t.Failed() {
					t.Errorf("%d rounds were played of %d", r.rounds, rounds)
				}
				if r.fired < r.rounds {
					t.Errorf("%d faults are known to have happened in %d rounds", r.fired, r.rounds)
				}
			})
		}
	})
	t.Logf("seed %d, %v\n%s", seed, time.Since(began).Round(time.Second), faultTable(rows))
}

// faultTable is what was counted, for people.
func faultTable(rows []*faultRow) string {
	var b strings.Builder
	b.WriteString("| row | rounds | fired | answers | unknown | second run, explained | duplicate effects | acknowledged lost | false definite | stuck | worst recovery |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	var sum faultRow
	line := func(r *faultRow) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %v |\n", r.name, r.rounds, r.fired, r.calls, r.unknown,
			r.explained, r.duplicate, r.lost, r.lies, r.stuck, r.worst.Round(10*time.Millisecond))
	}
	for _, r := range rows {
		line(r)
		sum.rounds += r.rounds
		sum.fired += r.fired
		sum.calls += r.calls
		sum.unknown += r.unknown
		sum.explained += r.explained
		sum.duplicate += r.duplicate
		sum.lost += r.lost
		sum.lies += r.lies
		sum.stuck += r.stuck
		sum.worst = max(sum.worst, r.worst)
	}
	sum.name = "all"
	line(&sum)
	return b.String()
}
