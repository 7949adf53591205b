package report

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/goidem/idem/bench/result"
)

// Markers around what is generated in docs/choosing.md.
const (
	choosingBegin = "<!-- bench: begin, generated from docs/bench/report.json -->"
	choosingEnd   = "<!-- bench: end -->"
)

// Choosing returns page with its generated part made anew from r.
func Choosing(page string, r *result.Report) (string, error) {
	before, rest, found := strings.Cut(page, choosingBegin)
	_, after, ended := strings.Cut(rest, choosingEnd)
	if !found || !ended {
		return "", errors.New("bench: the page lacks the markers of its generated part: " + choosingBegin + " and " + choosingEnd)
	}
	return before + choosingBegin + "\n\n" + newView(r).choosing() + "\n" + choosingEnd + after, nil
}

func (v *view) choosing() string {
	var b strings.Builder
	m := v.Machine
	fmt.Fprintf(&b, "From a run of %s: %s profile, seed %d, idem %s, %s.\n", v.Started.UTC().Format("2006-01-02"), escapeMarkdown(v.Profile), v.Seed, escapeMarkdown(cmp.Or(m.Module, "of an unknown version")), escapeMarkdown(m.Go))
	fmt.Fprintf(&b, "Machine: %s, %d processors, %s, %s, %s flushes of 4 KiB a second.\n", escapeMarkdown(cmp.Or(m.CPU, "unknown")), m.CPUs, size(m.Memory), escapeMarkdown(m.FileSystem), rate(m.SyncRate))
	for _, s := range v.Servers {
		fmt.Fprintf(&b, "%s %s", escapeMarkdown(s.Name), escapeMarkdown(s.Version))
		sep := ": "
		for _, name := range []string{"fsync", "synchronous_commit", "appendonly", "appendfsync", "maxmemory-policy"} {
			if value, ok := s.Settings[name]; ok {
				fmt.Fprintf(&b, "%s%s=%s", sep, escapeMarkdown(name), escapeMarkdown(value))
				sep = ", "
			}
		}
		b.WriteString(".\n")
	}
	if w := v.warning(); w != "" {
		fmt.Fprintf(&b, "\n**%s**\n", escapeMarkdown(w))
	}
	b.WriteString("\n### What each strategy kept\n\n")
	v.guaranteeTable().markdown(&b)
	if v.cost.name != "" {
		fmt.Fprintf(&b, "\n### What each strategy cost\n\nAt %s, an effect that costs nothing outside of a transaction and a row inside of one.\nCallers and servers shared the processors.\n\n", escapeMarkdown(v.cost.String()))
		v.shortCostTable().markdown(&b)
	}
	return b.String()
}

// shortCostTable is the cost table with what decides a choice.
func (v *view) shortCostTable() table {
	t := table{Head: []string{"strategy", "a second", "of its floor", "p50", "p99", "bytes/record", "a completed key outlives"}}
	for _, w := range v.rows {
		m := w.at[v.cost]
		if m == nil {
			continue
		}
		x := rate(m.Throughput) + " (" + rate(m.ThroughputLow) + " to " + rate(m.ThroughputHigh) + ")"
		if p := problems(m); p != "" {
			x += " ! " + p
		}
		t.Rows = append(t.Rows, []cell{w.nameCell(), plain(x), plain(ratio(m.Throughput, v.floor(w).throughput(v.cost))),
			plain(latency(m.Latency.P50)), plain(latency(m.Latency.P99)), plain(amount(m.RecordBytes)), plain(w.Survives)})
	}
	return t
}
