package workload

import (
	"bytes"
	"math"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// everything is a spec that uses each part of the stream.
func everything(callers int) Spec {
	return Spec{
		Workload: result.Workload{
			Name: "everything", Callers: callers, Duplicates: 0.4, Hot: 0.25, Payload: 64, Result: 32, Work: "exp:1ms", Seed: 7,
		},
		Conflicts: 0.05, Failures: 0.02, Operations: 5000,
	}
}

// requests returns the first operations of a spec's stream.
func requests(t *testing.T, spec Spec, n int) []request {
	t.Helper()
	s, err := newStream(&spec, "round 0")
	if err != nil {
		t.Fatal(err)
	}
	m := s.maker(0)
	all := make([]request, n)
	for i := range all {
		m.make(uint64(i), &all[i])
		all[i].Pause = nil
	}
	return all
}

func TestSeedFixesStream(t *testing.T) {
	once, again := requests(t, everything(4), 5000), requests(t, everything(4), 5000)
	if !reflect.DeepEqual(once, again) {
		t.Error("the same seed gave another stream")
	}
	other := everything(4)
	other.Seed++
	if reflect.DeepEqual(once, requests(t, other, 5000)) {
		t.Error("another seed gave the same stream")
	}
	// With other callers the keys are others, or two measurements on one store would
	// meet; what is done to them is the same.
	for i, r := range requests(t, everything(64), 5000) {
		if r.of != once[i].of || r.kind != once[i].kind || r.Work != once[i].Work || !bytes.Equal(r.Payload, once[i].Payload) {
			t.Fatalf("operation %d is %+v with 64 callers and %+v with 4", i, r, once[i])
		}
	}
}

// What a strategy is asked is the stream, whoever asks and however long that takes.
func TestSeedFixesWhatIsAsked(t *testing.T) {
	asked := func(rate float64) map[string]int {
		spec := everything(8)
		spec.Rate, spec.Operations = rate, 1000
		s := newStub()
		synctest.Test(t, func(t *testing.T) {
			if _, err := RunRound(t.Context(), s, spec, 0, nil); err != nil {
				t.Fatal(err)
			}
		})
		keys := make(map[string]int)
		for _, op := range s.ops {
			keys[string(op.Payload)+op.Key+op.Work.String()]++
		}
		return keys
	}
	if a, b := asked(1000), asked(1000); !reflect.DeepEqual(a, b) {
		t.Errorf("two rounds with one seed asked %d and %d different things", len(a), len(b))
	}
}

func TestStreamKeepsItsShares(t *testing.T) {
	const n = 50_000
	counts := make(map[kind]int)
	hot, repeats := 0, 0
	payloads := make(map[string]string)
	for i, r := range requests(t, everything(4), n) {
		counts[r.kind]++
		switch r.kind {
		case fresh, failing:
			if _, ok := payloads[r.Key]; ok {
				t.Fatalf("operation %d is new and has the key of an earlier one", i)
			}
			payloads[r.Key] = string(r.Payload)
		case repeat:
			if repeats++; r.of < HotKeys {
				hot++
			}
			if first, ok := payloads[r.Key]; !ok || first != string(r.Payload) {
				t.Fatalf("operation %d repeats a key that was not there, or with another payload", i)
			}
		case conflict:
			if first, ok := payloads[r.Key]; !ok || first == string(r.Payload) {
				t.Fatalf("operation %d is no conflict", i)
			}
		}
	}
	for _, c := range []struct {
		what  string
		share float64
		want  float64
	}{
		{"duplicates", float64(counts[repeat]) / n, 0.4},
		{"conflicts", float64(counts[conflict]) / n, 0.05},
		{"failures", float64(counts[failing]) / n, 0.02},
		{"hot duplicates", float64(hot) / float64(repeats), 0.25},
	} {
		if math.Abs(c.share-c.want) > 0.015 {
			t.Errorf("%s: %.3f; want %.3f", c.what, c.share, c.want)
		}
	}
}

func TestKeysReadBack(t *testing.T) {
	for i, r := range requests(t, everything(4), 100) {
		if n, _, ok := number(r.Key); !ok || n != r.of {
			t.Fatalf("operation %d: key %q reads as %d; want %d", i, r.Key, n, r.of)
		}
	}
	if _, _, ok := number("0123456789abcdeF-12345678"); ok {
		t.Error("a key that no stream makes was read")
	}
}

func TestDistributions(t *testing.T) {
	for _, c := range []struct {
		text      string
		mean, max time.Duration
	}{
		{"", 0, 0},
		{"0", 0, 0},
		{"5ms", 5 * time.Millisecond, 5 * time.Millisecond},
		{"exp:5ms", 5 * time.Millisecond, 100 * time.Millisecond},
		{"uniform:1ms-9ms", 5 * time.Millisecond, 9 * time.Millisecond},
	} {
		d, err := parseDistribution(c.text)
		if err != nil {
			t.Fatalf("%q: %v", c.text, err)
		}
		if d == nil {
			if c.mean != 0 {
				t.Errorf("%q takes no time", c.text)
			}
			continue
		}
		const n = 10_000
		var sum time.Duration
		for i := range n {
			x := d((float64(i) + 0.5) / n)
			if sum += x; x < 0 || x > c.max {
				t.Fatalf("%q gave %v", c.text, x)
			}
		}
		if mean := sum / n; mean < c.mean*95/100 || mean > c.mean*105/100 {
			t.Errorf("%q: mean %v; want %v", c.text, mean, c.mean)
		}
	}
	for _, bad := range []string{"5", "-5ms", "exp:", "exp:1ms-2ms", "uniform:9ms-1ms", "normal:5ms", ":", "uniform:1ms"} {
		if _, err := parseDistribution(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSpecsThatCannotBeRun(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"no end":                     func(s *Spec) { s.Operations = 0 },
		"negative rate":              func(s *Spec) { s.Rate = -1 },
		"share above one":            func(s *Spec) { s.Hot = 1.5 },
		"no new keys":                func(s *Spec) { s.Duplicates = 1 },
		"conflicts without payload":  func(s *Spec) { s.Payload = 0 },
		"duration that is no number": func(s *Spec) { s.Work = "long" },
	} {
		spec := everything(1)
		change(&spec)
		if _, err := Run(t.Context(), newStub(), spec, nil); err == nil {
			t.Errorf("%s: it was run", name)
		}
	}
}

func TestLedgerCounts(t *testing.T) {
	l := NewLedger()
	want := make(map[string]int)
	for i, r := range requests(t, everything(4), 300) {
		for range 1 + i%2 {
			if err := l.Apply(t.Context(), r.Key, ""); err != nil {
				t.Fatal(err)
			}
			want[r.Key]++
		}
	}
	l.Apply(t.Context(), "foreign", "")
	want["foreign"]++
	if got, err := l.Counts(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d keys counted, %v; want %d", len(got), err, len(want))
	}
}

var _ strategy.Runner = (*stub)(nil) // lint:const the compiler checks it
