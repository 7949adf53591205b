package report

import (
	"fmt"
	"html/template"
	"slices"
	"time"
)

// both draws a plot for wide and for narrow screens; the style sheet shows one of them.
func both(id, title, desc string, draw func(narrow bool) (*canvas, float64)) template.HTML {
	wide, h := draw(false)
	narrow, nh := draw(true)
	return wide.svg(id+"-wide", "wide", title, desc, h) + narrow.svg(id+"-narrow", "narrow", title, desc, nh)
}

// guaranteePlot holds what strategies cost against what they keep: the farther up the
// safer, the farther right the cheaper.
func (v *view) guaranteePlot() template.HTML {
	bands := v.guaranteeBands()
	if len(bands) == 0 {
		return ""
	}
	desc := "One line for each strategy, in bands from the strongest guarantee to the weakest."
	for _, b := range bands {
		desc += " " + b.heading + ":"
		for i, l := range b.lanes {
			if i > 0 {
				desc += ","
			}
			desc += " " + l.title
		}
		desc += "."
	}
	axis := "operations a second, " + v.cost.String()
	return both("guarantees", "Guarantees against cost", desc, func(narrow bool) (*canvas, float64) {
		a := axis
		if narrow {
			a = fmt.Sprintf("operations a second, %s →", plural(v.cost.callers, "caller"))
		} else {
			a += "; faster is to the right →"
		}
		return dotPlot(bands, tickRate, a, narrow)
	})
}

func (v *view) guaranteeBands() []band {
	var bands []band
	for _, l := range levels() {
		b := band{mark: l.mark(), heading: v.heading(l), class: l.class()}
		for _, w := range v.rows {
			if w.level != l || w.Family == familyFloor || len(w.at) == 0 && len(w.experiments) == 0 {
				continue
			}
			x := w.throughput(v.cost)
			one := lane{name: w.Name, title: w.Title, class: w.class(), x: x, crossed: l == levelBroken, right2: w.verdict()}
			about := fmt.Sprintf("%s (%s, %s): %s", w.Title, w.Name, w.Family, w.verdict())
			switch m := w.at[v.cost]; {
			case m == nil:
				one.right1 = "cost not measured"
			case x == 0:
				one.right1 = "nothing answered"
			default:
				one.low, one.high = m.ThroughputLow, m.ThroughputHigh
				one.right1 = rate(x) + "/s"
				if floor := v.floor(w); floor != nil && floor.throughput(v.cost) > 0 {
					one.tick = floor.throughput(v.cost)
					one.right1 += " · " + ratio(x, one.tick) + " floor"
					about += fmt.Sprintf("; %s of its floor, %s", ratio(x, one.tick), floor.Title)
				}
				about += fmt.Sprintf("; %s operations a second, slowest round %s, fastest %s", rate(x), rate(m.ThroughputLow), rate(m.ThroughputHigh))
				if p := problems(m); p != "" {
					about += "; " + p
				}
			}
			one.about = about
			one.short = w.summary()
			if x > 0 {
				one.short += " · " + rate(x) + "/s"
			}
			b.lanes = append(b.lanes, one)
		}
		slices.SortStableFunc(b.lanes, func(a, b lane) int {
			switch {
			case a.x > b.x:
				return -1
			case a.x < b.x:
				return 1
			}
			return 0
		})
		if len(b.lanes) > 0 {
			bands = append(bands, b)
		}
	}
	return bands
}

// latencyPlot shows from the median to the slowest of an operation, at one workload.
func (v *view) latencyPlot(p point) template.HTML {
	var bands []band
	for _, place := range v.places() {
		b := band{heading: place, class: "plain"}
		for _, w := range v.rows {
			m := w.at[p]
			if w.place() != place || m == nil {
				continue
			}
			one := lane{name: w.Name, title: w.Title, class: w.class(), mute: w.Family == familyFloor}
			l := m.Latency
			if m.Throughput > 0 && l.P50 > 0 {
				us := func(d time.Duration) float64 { return float64(d) / 1e3 }
				one.low, one.x, one.high, one.tail = us(l.P50), us(l.P50), us(l.P99), us(l.Max)
				one.right1 = latency(l.P50) + " · " + latency(l.P99)
				one.short = one.right1
				one.right2 = "slowest " + latency(l.Max)
				if m.Workload.Rate > 0 {
					one.right2 += ", lag " + latency(m.Lag.P99)
				}
			} else {
				one.right1, one.short = "nothing answered", "nothing answered"
			}
			one.about = fmt.Sprintf("%s: median %s, 90 %% within %s, 99 %% within %s, 99.9 %% within %s, slowest %s", w.Title,
				latency(l.P50), latency(l.P90), latency(l.P99), latency(l.P999), latency(l.Max))
			b.lanes = append(b.lanes, one)
		}
		if len(b.lanes) > 0 {
			bands = append(bands, b)
		}
	}
	if len(bands) == 0 {
		return ""
	}
	return both("latency", "Latency: median, 99th percentile and slowest", "One line for each strategy, at "+p.String()+".",
		func(narrow bool) (*canvas, float64) {
			return dotPlot(bands, tickLatency, "latency: median ● to 99 %, thin line to the slowest", narrow)
		})
}
