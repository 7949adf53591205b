package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/goidem/idem/bench/result"
)

// caveats are what a reader must know to use the figures.
func caveats() []string {
	return []string{
		"Callers, strategies and servers share the machine's processors: on few of them the throughput of a server is limited by what calls it. Ratios travel better to another machine than rates do.",
		"The closed loop starts an operation when the one before has been answered: while a store stalls it sends nothing, so that a stall hardly shows in its percentiles. Those of the open loop count from when the operation was due.",
		"Lag is by how much the generator itself was late. Where it is near the latency, the latency is the generator's.",
		"Effects of workloads are counted in memory, so that they cost next to nothing beside the strategy; those of transactional strategies are rows of the store, because only there can they commit with the record.",
		"“Did not bite” and “no fault confirmed” are no proof of anything. No harm in so many trials is not never: the bound says how often it may still happen. Only what met a confirmed fault is a trial: a key where all keys of a round meet it, a round where one operation does.",
		"Differences of less than a fifth are noise unless the ranges of the rounds are far apart; idem bench compare has the rule.",
	}
}

// lead is the run in one line.
func (v *view) lead() string {
	text := fmt.Sprintf("%s profile, %s", v.Profile, v.Started.UTC().Format("2006-01-02 15:04 UTC"))
	if took := v.Finished.Sub(v.Started); took > 0 {
		text += ", took " + took.Round(time.Second).String()
	}
	return text + fmt.Sprintf(", %d processors, seed %d", v.Machine.CPUs, v.Seed)
}

// warning is what stands before everything else; empty when the run was whole, on a
// machine of its own.
func (v *view) warning() string {
	var all []string
	if v.Partial {
		all = append(all, strings.TrimSpace("Partial: the run was cut off, and what is missing here was not measured. "+v.Reason))
	}
	if v.busy() {
		all = append(all, fmt.Sprintf("The machine was busy with other things: its load average was %.1f, on %d processors, when the run began. Read ratios and verdicts, not rates.", v.Machine.Load, v.Machine.CPUs))
	}
	return strings.Join(all, " ")
}

// busy says whether others had a good part of the processors.
func (v *view) busy() bool { return v.Machine.CPUs > 0 && v.Machine.Load > 0.5*float64(v.Machine.CPUs) }

// Markdown returns the report for a terminal or a repository.
func Markdown(r *result.Report) string {
	v := newView(r)
	var b strings.Builder
	fmt.Fprintf(&b, "# What idempotency costs, and what it keeps\n\n%s\n", escapeMarkdown(v.lead()))
	if w := v.warning(); w != "" {
		fmt.Fprintf(&b, "\n> **%s**\n", escapeMarkdown(w))
	}
	section := func(title, text string, t table) {
		fmt.Fprintf(&b, "\n## %s\n\n", escapeMarkdown(title))
		if text != "" {
			b.WriteString(text + "\n\n")
		}
		t.markdown(&b)
	}
	section("Guarantees", "Each strategy under each fault. Twice: effects beyond the first. Lost: acknowledged, and not there. Stuck: not answered when the experiment gave up.", v.guaranteeTable())
	if v.cost.name != "" {
		section("Cost", "At "+escapeMarkdown(v.cost.String())+". The median round; rounds: the slowest and the fastest.", v.costTable())
		section("Throughput against callers", "Operations a second, "+escapeMarkdown(v.curve)+".", v.callersTable())
	}
	for _, p := range v.points {
		section("Workload: "+p.String(), escapeMarkdown(v.about(p)), v.workloadTable(p))
	}
	section("Experiments in full", "", v.experimentTable())
	section("Not run", "", v.skippedTable())
	section("Strategies", "", v.strategyTable())
	section("Machine", "", v.machineTable())
	b.WriteString("\n## Before you use the figures\n\n")
	for _, c := range caveats() {
		fmt.Fprintf(&b, "- %s\n", c)
	}
	return b.String()
}

// about describes a workload.
func (v *view) about(p point) string {
	for i := range v.Measurements {
		w := v.Measurements[i].Workload
		if pointOf(w) != p {
			continue
		}
		text := fmt.Sprintf("%s duplicates", share(w.Duplicates))
		if w.Duplicates > 0 {
			text += fmt.Sprintf(" (%s of them of hot keys)", share(w.Hot))
		}
		text += fmt.Sprintf(", payload %s, result %s", size(int64(w.Payload)), size(int64(w.Result)))
		if w.Work != "" && w.Work != "0" {
			text += ", the operation itself takes " + w.Work
		}
		return text + fmt.Sprintf(", %s of %s", plural(v.Measurements[i].Rounds, "round"), latency(w.Length))
	}
	return ""
}

// Summary says in a few lines, for a terminal, which strategies kept what.
func Summary(r *result.Report) string {
	v := newView(r)
	var b strings.Builder
	if w := v.warning(); w != "" {
		fmt.Fprintf(&b, "%s\n", printable(w))
	}
	for _, l := range levels() {
		var names []string
		for _, w := range v.rows {
			if w.level == l && w.Family != familyFloor && len(w.at)+len(w.experiments) > 0 {
				names = append(names, w.Name)
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "%s %s: %s\n", l.mark(), v.heading(l), printable(strings.Join(names, ", ")))
		}
	}
	return b.String()
}
