package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goidem/idem/bench/result"
)

// What counts as a change: two copies of the same code, measured in
// turn, differ by up to a seventh in the median.
const (
	noise      = 1.18                   // medians must be farther apart than this factor
	fewRounds  = 3                      // with fewer, the range of the rounds says nothing,
	fewSpread  = 0.2                    // and this share around the median stands for it
	tailFactor = 2                      // percentiles have no range: only what is this far apart
	tailFloor  = 200 * time.Microsecond // and by this much
	diskFactor = 1.5                    // between raw rates of flushing
)

// Rule is what Compare calls a change, in words.
func Rule() string {
	return fmt.Sprintf("A rate changed when the ranges of the rounds do not overlap and the medians are more than %.2f× apart (with fewer than %d rounds, ±%.0f %% of the median is the range). "+
		"A 99th percentile, whose range is not known, changed when it is more than %d× and %v apart. "+
		"A verdict, an effect that was applied twice or lost, and errors where there were none are changes at once.",
		noise, fewRounds, fewSpread*100, tailFactor, tailFloor)
}

// Comparison says what is different in b.
type Comparison struct {
	Warnings []string // why the two may not be comparable
	Worse    []string
	Better   []string
	Other    []string // neither
	Same     int      // figures that were compared and are not different
}

// Compare finds what changed from a to b beyond noise.
func Compare(a, b *result.Report) Comparison {
	var c Comparison
	c.warn(a, b)
	va, vb := newView(a), newView(b)
	for _, wa := range va.rows {
		wb := vb.byName[wa.Name]
		if wb == nil {
			if len(wa.at)+len(wa.experiments) > 0 {
				c.Other = append(c.Other, fmt.Sprintf("%s: only in the first", wa.Name))
			}
			continue
		}
		for _, p := range va.points {
			c.measurements(wa, wb, p)
		}
		for _, f := range va.faults {
			c.experiments(wa, wb, f)
		}
		for _, p := range vb.points {
			if wa.at[p] == nil && wb.at[p] != nil {
				c.Other = append(c.Other, fmt.Sprintf("%s, %s: only in the second", wa.Name, p))
			}
		}
		for _, f := range vb.faults {
			if wa.experiments[f] == nil && wb.experiments[f] != nil {
				c.Other = append(c.Other, fmt.Sprintf("%s, %s: only in the second", wa.Name, f))
			}
		}
	}
	for _, wb := range vb.rows {
		if va.byName[wb.Name] == nil && len(wb.at)+len(wb.experiments) > 0 {
			c.Other = append(c.Other, fmt.Sprintf("%s: only in the second", wb.Name))
		}
	}
	return c
}

// warn collects what is different about the two runs themselves.
func (c *Comparison) warn(a, b *result.Report) {
	differ := func(what, x, y string) {
		if x != y {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s differs: %s and %s", what, cmp.Or(x, "unknown"), cmp.Or(y, "unknown")))
		}
	}
	differ("profile", a.Profile, b.Profile)
	differ("seed", fmt.Sprint(a.Seed), fmt.Sprint(b.Seed))
	ma, mb := a.Machine, b.Machine
	differ("system", ma.OS+" "+ma.Kernel, mb.OS+" "+mb.Kernel)
	differ("processor", ma.CPU, mb.CPU)
	differ("number of processors", fmt.Sprint(ma.CPUs), fmt.Sprint(mb.CPUs))
	differ("memory", size(ma.Memory), size(mb.Memory))
	differ("file system", ma.FileSystem, mb.FileSystem)
	differ("Go", ma.Go, mb.Go)
	if q := ma.SyncRate / mb.SyncRate; ma.SyncRate > 0 && mb.SyncRate > 0 && (q > diskFactor || q < 1/diskFactor) {
		c.Warnings = append(c.Warnings, fmt.Sprintf("the disk flushed %s times a second and %s times: whatever is durable follows it", rate(ma.SyncRate), rate(mb.SyncRate)))
	}
	servers := func(r *result.Report) map[string]string {
		all := make(map[string]string)
		for _, s := range r.Servers {
			text := s.Version
			for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
				text += " " + name + "=" + s.Settings[name]
			}
			all[s.Name] = text
		}
		return all
	}
	sa, sb := servers(a), servers(b)
	for _, name := range slices.Sorted(maps.Keys(sa)) {
		if other, ok := sb[name]; ok {
			differ(name, sa[name], other)
		}
	}
	for i, r := range []*result.Report{a, b} {
		if newView(r).busy() {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the machine of the %s run was busy with other things (load average %.1f)", []string{"first", "second"}[i], r.Machine.Load))
		}
		if r.Partial {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the %s run is partial", []string{"first", "second"}[i]))
		}
	}
}

func spreadOf(m *result.Measurement) (low, high float64) {
	low, high = min(m.ThroughputLow, m.Throughput), max(m.ThroughputHigh, m.Throughput)
	if m.Rounds < fewRounds {
		low, high = min(low, m.Throughput*(1-fewSpread)), max(high, m.Throughput*(1+fewSpread))
	}
	return low, high
}

func (c *Comparison) measurements(wa, wb *row, p point) {
	a, b := wa.at[p], wb.at[p]
	where := fmt.Sprintf("%s, %s", wa.Name, p)
	switch {
	case a == nil:
		return
	case b == nil:
		c.Other = append(c.Other, where+": only in the first")
		return
	}
	x, y := a.Workload, b.Workload
	x.Seed, y.Seed = 0, 0 // warned about already
	if x != y {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s has other settings in the second: not compared", p))
		return
	}
	note := func(worse bool, format string, args ...any) {
		text := where + ": " + fmt.Sprintf(format, args...)
		if worse {
			c.Worse = append(c.Worse, text)
		} else {
			c.Better = append(c.Better, text)
		}
	}

	aLow, aHigh := spreadOf(a)
	bLow, bHigh := spreadOf(b)
	switch {
	case a.Throughput > 0 && b.Throughput <= 0:
		note(true, "%s/s, and now nothing is answered", rate(a.Throughput))
	case a.Throughput <= 0 && b.Throughput > 0:
		note(false, "nothing was answered, and now %s/s", rate(b.Throughput))
	case bHigh < aLow && b.Throughput*noise < a.Throughput, bLow > aHigh && b.Throughput > noise*a.Throughput:
		note(b.Throughput < a.Throughput, "%s/s (%s to %s) became %s/s (%s to %s), %s", rate(a.Throughput), rate(aLow), rate(aHigh), rate(b.Throughput), rate(bLow), rate(bHigh), ratio(b.Throughput, a.Throughput))
	default:
		c.Same++
	}
	la, lb := a.Latency.P99, b.Latency.P99
	if far := max(la, lb) - min(la, lb); la > 0 && lb > 0 && far > tailFloor && max(la, lb) > tailFactor*min(la, lb) {
		note(lb > la, "99th percentile %s became %s", latency(la), latency(lb))
	} else {
		c.Same++
	}
	for _, n := range []struct {
		what     string
		was, now int64
	}{
		{"errors", a.Counts.Errors, b.Counts.Errors}, {"unknown outcomes", a.Counts.Unknown, b.Counts.Unknown},
		{"effects applied twice", a.Duplicates, b.Duplicates}, {"effects lost", a.Lost, b.Lost},
	} {
		if (n.was > 0) != (n.now > 0) {
			note(n.now > 0, "%d %s became %d", n.was, n.what, n.now)
		}
	}
}

func (c *Comparison) experiments(wa, wb *row, fault string) {
	a, b := wa.experiments[fault], wb.experiments[fault]
	where := fmt.Sprintf("%s, %s", wa.Name, fault)
	switch {
	case a == nil:
		return
	case b == nil:
		c.Other = append(c.Other, where+": only in the first")
		return
	}
	text := fmt.Sprintf("%s: %s became %s", where, wa.experimentCell(a).Text, wb.experimentCell(b).Text)
	switch {
	case a.Verdict == b.Verdict && harmed(a) == harmed(b) && (a.Fired > 0) == (b.Fired > 0):
		c.Same++
	case b.Verdict == broken && a.Verdict != broken, harmed(b) && !harmed(a):
		c.Worse = append(c.Worse, text)
	case a.Verdict == broken && b.Verdict == kept, harmed(a) && !harmed(b) && b.Verdict == kept:
		c.Better = append(c.Better, text)
	default:
		c.Other = append(c.Other, text)
	}
}

// Text returns the comparison for a terminal.
func (c Comparison) Text() string {
	var b strings.Builder
	for _, part := range []struct {
		heading string
		lines   []string
	}{
		{"Not quite comparable", c.Warnings}, {"Worse", c.Worse}, {"Better", c.Better}, {"Different", c.Other},
	} {
		if len(part.lines) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s:\n", part.heading)
		seen := make(map[string]bool)
		for _, l := range part.lines {
			if l = printable(l); !seen[l] {
				seen[l] = true
				fmt.Fprintf(&b, "  %s\n", l)
			}
		}
	}
	fmt.Fprintf(&b, "%d figures are the same within noise.\n%s\n", c.Same, Rule())
	return b.String()
}

// printable takes from a text what would move a terminal's cursor.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}
