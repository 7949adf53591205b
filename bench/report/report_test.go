package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/bench/result"
)

func TestWriteDirReplacesWhole(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "folder")
	for range 2 {
		if err := WriteDir(dir, synthetic()); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{HTMLFile, JSONFile, MarkdownFile}; !slices.Equal(names, want) {
		t.Errorf("the folder has %q, want %q and nothing that was left over", names, want)
	}
	if r, err := result.ReadFile(filepath.Join(dir, JSONFile)); err != nil || len(r.Measurements) != len(synthetic().Measurements) {
		t.Errorf("read back: %v", err)
	}
}

// TestNothingFromTheDataIsCode looks for what the synthetic report tries to smuggle in.
func TestNothingFromTheDataIsCode(t *testing.T) {
	t.Parallel()
	page, err := HTML(synthetic())
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<img", "<i>mars", `"><u>`} {
		if bytes.Contains(page, []byte(bad)) {
			t.Errorf("the page contains %s", bad)
		}
		if strings.Contains(Markdown(synthetic()), bad) {
			t.Errorf("the Markdown contains %s", bad)
		}
	}
	if !bytes.Contains(page, []byte("&lt;script&gt;")) {
		t.Error("the title of the strategy is not on the page as text")
	}
	// Nothing is loaded: every address is the one of an XML namespace or empty data.
	for _, m := range regexp.MustCompile(`(?i)(https?:|//[a-z]|url\(|@import|<\w+\ssrc=)[^\s"']{0,40}`).FindAll(page, -1) {
		if !bytes.HasPrefix(m, []byte("http://www.w3.org/2000/svg")) && !bytes.HasPrefix(m, []byte("//www.w3.org")) {
			t.Errorf("the page names %q", m)
		}
	}
}

// TestDrawingsAreXML: a browser forgives what other programs do not.
func TestDrawingsAreXML(t *testing.T) {
	t.Parallel()
	for _, r := range []*result.Report{synthetic(), huge(), {}} {
		page, err := HTML(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAll(page, -1) {
			dec := xml.NewDecoder(bytes.NewReader(svg))
			for {
				if _, err := dec.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%v in %.200s", err, svg)
				}
			}
		}
	}
}

func TestTextsDoNotMeet(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*result.Report{"synthetic": synthetic(), "huge": huge()} {
		v := newView(r)
		check := func(plot string, c *canvas, height float64) {
			for i, a := range c.texts {
				if a.x0 < -0.5 || a.x1 > c.w+0.5 || a.y0 < 0 || a.y1 > height {
					t.Errorf("%s, %s: %q is not within the drawing: %+v", name, plot, a.text, a)
				}
				for _, b := range c.texts[:i] {
					if a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1 {
						t.Errorf("%s, %s: %q and %q meet", name, plot, a.text, b.text)
					}
				}
			}
		}
		for _, narrow := range []bool{false, true} {
			c, h := dotPlot(v.guaranteeBands(), tickRate, "axis", narrow)
			check("guarantees", c, h)
		}
		var curves []curve
		for _, w := range v.rows {
			curves = append(curves, curve{w: w, points: [][2]float64{{1, 10}, {8, w.throughput(v.cost) + 1}}})
		}
		c, h := callersPlot(curves, v.curveCallers())
		check("callers", c, h)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, wish := range [][]float64{{}, {5}, {5, 5, 5}, {100, 0, 50}, {99, 98, 1, 2, 3}, {200, -50}} {
		at := spread(wish, 16, 0, 100)
		sorted := slices.Sorted(slices.Values(at))
		for i := 1; i < len(sorted); i++ {
			if sorted[i]-sorted[i-1] < 16-1e-9 {
				t.Errorf("%v becomes %v, nearer than 16", wish, at)
			}
		}
		for i := range wish {
			if at[i] < 0 || at[i] > 100 {
				t.Errorf("%v becomes %v, outside of 0 to 100", wish, at)
			}
			for j := range wish {
				if wish[i] < wish[j] && at[i] > at[j] {
					t.Errorf("%v becomes %v, in another order", wish, at)
				}
			}
		}
	}
}

// TestLevels has the one judgement that the report makes by itself.
func TestLevels(t *testing.T) {
	t.Parallel()
	exp := func(verdict, promise string, fired, twice int) result.Experiment {
		return result.Experiment{Strategy: "s", Fault: verdict + promise, Verdict: verdict, Promise: promise, Rounds: 10, Fired: fired, DuplicateEffects: twice}
	}
	for _, tt := range []struct {
		name string
		exps []result.Experiment
		m    result.Measurement
		want level
		says string
	}{
		{"kept", []result.Experiment{exp(kept, "once", 10, 0)}, result.Measurement{}, levelOnce, "kept 1 of 1"},
		{"kept weaker", []result.Experiment{exp(kept, "once", 10, 0), exp(kept, "at least once", 10, 3)}, result.Measurement{}, levelPromise, "kept 2 of 2: 3 twice"},
		{"broken", []result.Experiment{exp(kept, "at least once", 10, 3), exp(broken, "once", 10, 1)}, result.Measurement{}, levelBroken, "broke 1 of 2: 4 twice"},
		{"harm without a promise", []result.Experiment{exp(harmShown, "none", 10, 1), exp(kept, "once", 10, 0)}, result.Measurement{}, levelForgets, "harmed in 1 of 2: 1 twice"},
		{"harm to a naive one", []result.Experiment{exp(harmShown, "none", 10, 1)}, result.Measurement{}, levelBroken, "harmed in 1 of 1: 1 twice"},
		{"forgotten on purpose", []result.Experiment{exp(kept, "once", 10, 0), {Strategy: "s", Fault: faultExpired, Verdict: harmShown, Promise: "none", Fired: 1, DuplicateEffects: 4}}, result.Measurement{}, levelOnce, "kept 1 of 1"},
		{"an unknown verdict with harm", []result.Experiment{exp("fine", "once", 10, 1)}, result.Measurement{}, levelForgets, "harmed in 1 of 1: 1 twice"},
		{"did not bite", []result.Experiment{exp(didNotBite, "none", 10, 0)}, result.Measurement{}, levelUntested, "no fault bit"},
		{"never fired", []result.Experiment{exp(kept, "once", 0, 0)}, result.Measurement{}, levelUntested, "no fault bit"},
		{"nothing", nil, result.Measurement{}, levelUntested, "not tested"},
		{"twice without a fault", []result.Experiment{exp(kept, "once", 10, 0)}, result.Measurement{Duplicates: 1}, levelBroken, "broken without a fault"},
		{"twice within what it keeps", []result.Experiment{exp(kept, "once", 10, 0)}, result.Measurement{Duplicates: 1, DistinctKeys: 100}, levelBroken, "broken without a fault"},
		{"twice beyond what it keeps", []result.Experiment{exp(kept, "once", 10, 0)}, result.Measurement{Duplicates: 1, DistinctKeys: 101}, levelForgets, "forgot keys without a fault"},
		{"lost beyond what it keeps", []result.Experiment{exp(kept, "once", 10, 0)}, result.Measurement{Lost: 1, DistinctKeys: 101}, levelBroken, "broken without a fault"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.m.Strategy = "s"
			remembers := 0
			if strings.HasSuffix(tt.name, "what it keeps") {
				remembers = 100
			}
			family := "lease"
			if strings.Contains(tt.name, "naive") {
				family = familyNaive
			}
			v := newView(&result.Report{Strategies: []result.Strategy{{Name: "s", Family: family, Remembers: remembers}}, Experiments: tt.exps, Measurements: []result.Measurement{tt.m}})
			if w := v.byName["s"]; w.level != tt.want || w.verdict() != tt.says {
				t.Errorf("level %d, %q; want %d, %q", w.level, w.verdict(), tt.want, tt.says)
			}
		})
	}
}

// TestHeadingSaysWhatHappened: a strategy that only a clock has harmed was not killed.
func TestHeadingSaysWhatHappened(t *testing.T) {
	t.Parallel()
	exp := func(fault string, twice, lost int) result.Experiment {
		return result.Experiment{Strategy: "s", Fault: fault, Verdict: kept, Promise: "less", Rounds: 1, Fired: 1, DuplicateEffects: twice, LostEffects: lost}
	}
	for _, tt := range []struct {
		exps []result.Experiment
		want string
	}{
		{[]result.Experiment{exp("worker killed", 1, 0)}, "≈ Once, unless killed between effect and record: s\n"},
		{[]result.Experiment{exp("worker killed", 0, 1)}, "≈ Once, unless killed between claim and effect: s\n"},
		{[]result.Experiment{exp(faultClock, 1, 0), exp("worker killed", 0, 0)}, "≈ Once, unless a clock jumps over the lease: s\n"},
		{[]result.Experiment{exp(faultClock, 1, 0), exp("worker killed", 1, 1)}, "≈ Once, unless killed between claim, effect and record or a clock jumps over the lease: s\n"},
		{[]result.Experiment{{Strategy: "s", Fault: "f", Verdict: kept, Promise: "less", Fired: 1, StuckKeys: 1}}, "≈ Once, with exceptions that it has promised: s\n"},
	} {
		if have := Summary(&result.Report{Strategies: []result.Strategy{{Name: "s", Family: "lease"}}, Experiments: tt.exps}); have != tt.want {
			t.Errorf("%q, want %q", have, tt.want)
		}
	}
}

// TestLeftOutIsNotATick: what a strategy does not reach is said, and is no evidence.
func TestLeftOutIsNotATick(t *testing.T) {
	t.Parallel()
	v := newView(synthetic())
	for _, tt := range []struct{ name, fault, text, summary string }{
		{"pg-tx-queued", "worker killed after reserve", "not reached", "kept 7 of 7"},
		{"pg-tx", faultClock, "not run", "kept 7 of 7"},
		{"pg-tx", "redis evicting", "", "kept 7 of 7"},
	} {
		w := v.byName[tt.name]
		if c := w.faultCell(tt.fault); c.Text != tt.text || c.Class != "mute" || c.About == "" || w.summary() != tt.summary {
			t.Errorf("%s under %q: %+v, %s; want %q, %s", tt.name, tt.fault, c, w.summary(), tt.text, tt.summary)
		}
	}
}

func TestWhatIsWrongIsShown(t *testing.T) {
	t.Parallel()
	r := synthetic()
	r.Partial, r.Reason = true, "stopped by Ctrl-C"
	page, err := HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	for form, text := range map[string]string{"HTML": string(page), "Markdown": Markdown(r)} {
		for _, want := range []string{"Partial", "stopped by Ctrl-C", "? did not bite", "✗ 17 twice", "✗ broken: 9 twice", "○ 17 twice", "(12/20 fired)", "needs a CockroachDB", "harmed in 4 of 4", "broke 1 of 9", "12 errors", "fsync=on", "4.75k a second"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", form, want)
			}
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ have, want string }{
		{rate(0), "0"}, {rate(-1), "–"}, {rate(3.21), "3.2"}, {rate(999), "999"}, {rate(999.9), "1.00k"}, {rate(9_999), "10.0k"}, {rate(99_999), "100k"}, {rate(1e6), "1.00M"},
		{latency(-1), "–"}, {latency(0), "0"}, {latency(999), "999 ns"}, {latency(1500), "1.5 µs"}, {latency(999_999), "1.0 ms"}, {latency(42 * time.Millisecond), "42 ms"}, {latency(time.Minute), "60 s"},
		{ratio(1, 0), "–"}, {ratio(0, 1), "–"}, {ratio(1, 2), "0.50×"}, {ratio(1, 1e9), "<0.001×"}, {ratio(20, 1), "20×"},
		{share(0.0075), "0.75 %"}, {share(1), "100 %"}, {share(-1), "–"},
		{escapeMarkdown("a|b\n<c> *d*"), `a\|b &lt;c&gt; \*d\*`},
	} {
		if tt.have != tt.want {
			t.Errorf("%q, want %q", tt.have, tt.want)
		}
	}
}
