package experiment

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// At the bound, as few as were seen have a chance of one in twenty.
func TestUpper95(t *testing.T) {
	for _, c := range []struct{ seen, n int }{{0, 1}, {0, 100}, {0, 3000}, {1, 10}, {5, 20}, {19, 20}} {
		p := upper95(c.seen, c.n)
		var chance float64
		for k := range c.seen + 1 {
			ways := 1.0
			for i := range k {
				ways *= float64(c.n-i) / float64(i+1)
			}
			chance += ways * math.Pow(p, float64(k)) * math.Pow(1-p, float64(c.n-k))
		}
		if math.Abs(chance-0.05) > 1e-6 {
			t.Errorf("%d of %d: %.5f, where so few have a chance of %.5f; want 0.05", c.seen, c.n, p, chance)
		}
	}
	if upper95(10, 10) != 1 || upper95(0, 0) != 1 {
		t.Error("when everything failed, or nothing was tried, nothing is excluded")
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		promise                        string
		fired, duplicates, lost, stuck int
		want                           string
	}{
		{Once, 3, 0, 0, 0, Kept},
		{Once, 3, 1, 0, 0, Broken},
		{Once, 3, 0, 1, 0, Broken},
		{Once, 3, 0, 0, 1, Broken},
		{Once, 0, 0, 0, 0, DidNotBite},
		{Once, 0, 1, 0, 0, Broken}, // whatever caused it
		{AtMostOnce, 3, 0, 5, 0, Kept},
		{AtMostOnce, 3, 1, 0, 0, Broken},
		{AtLeastOnce, 3, 5, 0, 0, Kept},
		{AtLeastOnce, 3, 0, 1, 0, Broken},
		{AtLeastOnce, 3, 0, 0, 1, Broken},
		{None, 3, 1, 0, 0, HarmShown},
		{None, 3, 0, 0, 1, HarmShown},
		{None, 3, 0, 0, 0, DidNotBite},
		{None, 0, 1, 0, 0, DidNotBite},
	} {
		if got := verdict(c.promise, c.fired, c.duplicates, c.lost, c.stuck); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// Each row of the table is what some strategy owes under some fault, and says why.
func TestTableOfPromises(t *testing.T) {
	known := []string{Once, AtMostOnce, AtLeastOnce, None}
	used := make(map[string]bool)
	for _, s := range strategy.All() {
		if s.Info().Family == strategy.Floor {
			continue
		}
		for _, f := range faults() {
			if f.concerns != nil && !f.concerns(s.Info()) {
				continue
			}
			o := promise(s.Info(), f.Name)
			used[o.why] = true
			if !slices.Contains(known, o.promise) {
				t.Errorf("%s owes %q under %q", s.Info().Name, o.promise, f.Name)
			}
			if s.Info().Family == strategy.Transactional && f.Name != faultExpired && o.promise != Once {
				t.Errorf("%s owes %q under %q", s.Info().Name, o.promise, f.Name)
			}
		}
	}
	rows := promises()
	for _, o := range rows[:len(rows)-1] { // the last is for strategies that nobody has described
		if !used[o.why] {
			t.Errorf("nobody owes %q (%s)", o.promise, o.why)
		}
	}
}

func TestExperimentsAreDescribed(t *testing.T) {
	seen := make(map[string]bool)
	for _, e := range All() {
		if e.Name == "" || len(e.About) < 20 || seen[e.Name] {
			t.Errorf("%+v", e)
		}
		seen[e.Name] = true
	}
	_, _, err := Run(t.Context(), Config{Experiments: []string{"earthquake"}}, nil)
	if err == nil || !strings.Contains(err.Error(), faultStorm) {
		t.Errorf("an unknown experiment: %v; want the names of those that there are", err)
	}
}

func TestProxyKnowsCommits(t *testing.T) {
	for _, c := range []struct {
		sql                   string
		commit, begin, change bool
	}{
		{"commit", true, false, false},
		{"COMMIT", true, false, false},
		{"begin isolation level serializable", false, true, false},
		{" insert into t values (1)", false, false, true},
		{"INSERT 0 1", false, false, true},
		{"WITH x AS (UPDATE t SET a = 1 RETURNING a) SELECT a FROM x", false, false, true},
		{"SELECT 1", false, false, false},
		{"ROLLBACK", false, false, false},
	} {
		if commit, begin, change := writes(c.sql); commit != c.commit || begin != c.begin || change != c.change {
			t.Errorf("%q: commit %v, begin %v, change %v", c.sql, commit, begin, change)
		}
	}
}

// A fault that meets one operation of a round is one trial, however many keys there were.
func TestTrials(t *testing.T) {
	got := &tally{rounds: 4, fired: 3, keys: 24, duplicates: 3, harmed: trials{keys: 3, ofKeys: 18, rounds: 3}}
	info := strategy.Info{Name: "s", Family: strategy.Lease}
	if e := got.result(info, faultAfterEffect, false); e.Unit != "round" || e.Trials != 3 || e.Harmed != 3 || e.Upper95 != 1 {
		t.Errorf("one key of each round: %+v", e)
	}
	if e := got.result(info, faultStorm, true); e.Unit != "key" || e.Trials != 18 || e.Harmed != 3 || e.Upper95 > 0.4 {
		t.Errorf("every key: %+v", e)
	}
}

// Keys are trials only where the fault comes to all of them: elsewhere some were never at
// stake, and would make a bound look better than it is.
func TestKeysAreTrialsWhereAllMeetTheFault(t *testing.T) {
	all := []string{faultStorm, faultFlushed, faultSlow, faultExpired}
	for _, f := range faults() {
		if f.each != slices.Contains(all, f.Name) {
			t.Errorf("%q: each key a trial: %v", f.Name, f.each)
		}
	}
}

// A key that the fault has not met is no trial, and neither is a round in which it never fired.
func TestOnlyWhatMetTheFaultIsATrial(t *testing.T) {
	l := &lab{Config: Config{Dir: t.TempDir()}}
	got := &tally{}
	round := func(fired bool, met map[string]bool, effects ...string) {
		w, err := l.world(made{info: strategy.Info{Name: "s"}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close(t.Context())
		w.keys, w.met = []string{"a", "b", "c"}, met
		for _, key := range w.keys {
			w.acks[key] = true
		}
		for _, key := range effects {
			if err := w.ledger.Apply(t.Context(), key, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := got.count(t.Context(), w, madeRunner{env: w.env}, fired, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	round(true, map[string]bool{"a": true, "c": false}, "a", "b", "b", "c") // harm beside the fault
	round(true, nil, "a", "a", "b")                                         // all met: a twice, c lost
	round(false, nil, "a", "b", "c")
	if want := (trials{keys: 2, ofKeys: 4, rounds: 2}); got.harmed != want || got.fired != 2 || got.rounds != 3 || got.duplicates != 2 || got.lost != 1 {
		t.Errorf("%+v; want %+v of 2 rounds with a fault", got, want)
	}
}

// Two processes met where both were at the same key at once.
func TestBurstsMeet(t *testing.T) {
	at := func(from, to int) bursted {
		day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		return bursted{From: day.Add(time.Duration(from)), To: day.Add(time.Duration(to))}
	}
	for _, c := range []struct {
		a, b bursted
		want bool
	}{{at(0, 10), at(5, 15), true}, {at(0, 10), at(2, 3), true}, {at(0, 10), at(10, 20), false}, {at(0, 10), at(11, 20), false}} {
		if c.a.meets(c.b) != c.want || c.b.meets(c.a) != c.want {
			t.Errorf("%v and %v: want %v", c.a, c.b, c.want)
		}
	}
}
