package report

import (
	"bytes"
	_ "embed" // the page
	"fmt"
	"html/template"

	"github.com/goidem/idem/bench/result"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

// block is a part of the page that a reader may unfold.
type block struct {
	Title, Text string
	Table       table
}

// pageData is what the page shows.
type pageData struct {
	Style         template.CSS
	Lead, Warning string
	Verdicts      []verdictLine
	Guarantees    template.HTML
	GuaranteeGrid table
	CostText      string
	Cost          table
	Panels        []panel
	CurveName     string
	Latency       template.HTML
	LatencyText   string
	Blocks        []block
	Skipped       table
	Machine       table
	Caveats       []string
}

// verdictLine is one sentence of the summary.
type verdictLine struct{ Class, Mark, Text string }

// HTML returns the report as one page.
func HTML(r *result.Report) ([]byte, error) {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("bench: the page's template: %w", err)
	}
	v := newView(r)
	d := pageData{
		Style: template.CSS(pageStyle), Lead: v.lead(), Warning: v.warning(), Verdicts: v.verdictLines(),
		Guarantees: v.guaranteePlot(), GuaranteeGrid: v.guaranteeTable(),
		Panels: v.callersPanels(), CurveName: v.curve,
		Skipped: v.skippedTable(), Machine: v.machineTable(), Caveats: caveats(),
	}
	if v.cost.name != "" {
		d.CostText, d.Cost = v.cost.String(), v.costTable()
	}
	at := v.cost
	d.LatencyText = "Closed loop: a stall of the store hardly shows here, because callers that wait send nothing."
	if v.open.name != "" {
		at = v.open
		d.LatencyText = "Open loop: counted from when an operation was due, so that a stall shows in all that it delays. Lag is how late the generator was itself."
	}
	if at.name != "" {
		d.LatencyText = at.String() + ". " + d.LatencyText
		d.Latency = v.latencyPlot(at)
	}
	d.Blocks = append(d.Blocks, block{"Throughput against callers, in figures", v.curve, v.callersTable()})
	for _, p := range v.points {
		d.Blocks = append(d.Blocks, block{"Workload: " + p.String(), v.about(p), v.workloadTable(p)})
	}
	d.Blocks = append(d.Blocks, block{"Experiments in full", "", v.experimentTable()}, block{"Strategies", "", v.strategyTable()})
	var b bytes.Buffer
	if err := t.Execute(&b, d); err != nil {
		return nil, fmt.Errorf("bench: the page: %w", err)
	}
	return b.Bytes(), nil
}

// verdictLines are the report in a few sentences, one for each level that there is.
func (v *view) verdictLines() (lines []verdictLine) {
	for _, l := range levels() {
		n := 0
		for _, w := range v.rows {
			if w.level == l && w.Family != familyFloor {
				n++
			}
		}
		if n > 0 {
			lines = append(lines, verdictLine{l.class(), l.mark(), fmt.Sprintf("%d · %s", n, v.heading(l))})
		}
	}
	return lines
}
