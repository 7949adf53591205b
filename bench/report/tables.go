package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goidem/idem/bench/result"
)

func (w *row) nameCell() cell {
	c := cell{Text: w.Title, About: w.Name + ": " + w.Cost}
	if w.Family == familyNaive {
		c.Class = "bad"
	}
	if w.Family == familyFloor {
		c.Class = "mute"
		c.Text = "floor: " + strings.TrimPrefix(c.Text, "floor: ")
	}
	return c
}

// costTable holds what each strategy costs, at one workload.
func (v *view) costTable() table {
	t := table{Head: []string{"strategy", "a second", "rounds", "of its floor", "of none", "p50", "p99", "p99.9", "slowest", "flushes/op", "bytes/record", "a completed key outlives", "problems"}}
	without := v.byName[nameNone].throughput(v.cost)
	for _, w := range v.rows {
		m := w.at[v.cost]
		if m == nil {
			continue
		}
		fails := cell{Text: problems(m), Class: "bad"}
		if m.FirstProblem != "" {
			fails.About = m.FirstProblem
		}
		t.Rows = append(t.Rows, []cell{
			w.nameCell(),
			plain(rate(m.Throughput)),
			plain(rate(m.ThroughputLow) + " to " + rate(m.ThroughputHigh)),
			plain(ratio(m.Throughput, v.floor(w).throughput(v.cost))),
			plain(ratio(m.Throughput, without)),
			plain(latency(m.Latency.P50)), plain(latency(m.Latency.P99)), plain(latency(m.Latency.P999)), plain(latency(m.Latency.Max)),
			plain(amount(m.Fsyncs)), plain(amount(m.RecordBytes)),
			plain(w.Survives), fails,
		})
	}
	return t
}

// guaranteeTable holds what became of each strategy under each fault.
func (v *view) guaranteeTable() table {
	t := table{Head: append(append([]string{"strategy"}, v.faults...), "all", "keys")}
	for _, w := range v.rows {
		if len(w.experiments) == 0 {
			continue
		}
		cells := []cell{w.nameCell()}
		for _, f := range v.faults {
			cells = append(cells, w.faultCell(f))
		}
		cells = append(cells, cell{Text: w.summary(), Class: w.level.class()}, plain(strconv.Itoa(w.keys)))
		t.Rows = append(t.Rows, cells)
	}
	t.Note = "✓ kept; ≈ kept a promise that is weaker than once; ○ harmed where it promises nothing; ✗ the same of a naive one, or a broken promise; ? no harm where nothing was promised, or a fault that was not confirmed: that proves nothing. Not reached: the strategy does nothing at that point that the fault could meet; it is not counted. Not run: see there for the reason. Empty: it does not concern the strategy. A retry after expiry is a new key to all that forget, and is not counted."
	return t
}

// faultCell is what became of the strategy under a fault, or why it was not put under it.
func (w *row) faultCell(fault string) cell {
	if e := w.experiments[fault]; e != nil {
		return w.experimentCell(e)
	}
	skip, ok := w.leftOut[fault]
	switch {
	case !ok:
		return cell{Class: "mute", About: "does not concern it"}
	case skip.NotReached:
		return cell{Text: "not reached", Class: "mute", About: skip.Reason}
	}
	return cell{Text: "not run", Class: "mute", About: skip.Reason}
}

func (w *row) experimentCell(e *result.Experiment) cell {
	c := cell{About: fmt.Sprintf("promise: %s; %s, %d confirmed, %s; %s, with 95 %% confidence", e.Promise, plural(e.Rounds, "round"), e.Fired, plural(e.Keys, "key"), bound(e))}
	if e.Note != "" {
		c.About += "; " + e.Note
	}
	var harm []string
	add := func(n int, what string) {
		if n > 0 {
			harm = append(harm, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(e.DuplicateEffects, "twice")
	add(e.LostEffects, "lost")
	add(e.StuckKeys, "stuck")
	what := strings.Join(harm, ", ")
	l := w.what(e)
	mark := l.mark()
	c.Class = l.class()
	switch {
	case l == levelBroken && e.Verdict == broken:
		c.Text = strings.TrimSuffix(mark+" broken: "+what, ": ")
	case l != levelUntested:
		c.Text = strings.TrimSpace(mark + " " + what)
	case e.Fired == 0:
		c.Text = mark + " not confirmed"
	default:
		c.Text = mark + " " + e.Verdict // did not bite
	}
	if e.Fired > 0 && e.Fired < e.Rounds {
		c.Text += fmt.Sprintf(" (%d/%d fired)", e.Fired, e.Rounds)
	}
	return c
}

// callersTable holds the throughput of each strategy by the number of callers.
func (v *view) callersTable() table {
	callers := v.curveCallers()
	t := table{Head: []string{"strategy"}}
	for _, n := range callers {
		t.Head = append(t.Head, plural(n, "caller"))
	}
	for _, w := range v.rows {
		cells, any := []cell{w.nameCell()}, false
		for _, n := range callers {
			p := point{v.curve, n, 0}
			x, floor := w.throughput(p), v.floor(w).throughput(p)
			c := plain(unknown)
			if m := w.at[p]; m != nil {
				any = true
				c = cell{Text: rate(x), About: rate(m.ThroughputLow) + " to " + rate(m.ThroughputHigh)}
				if floor > 0 {
					c.Text += " (" + ratio(x, floor) + ")"
				}
				if p := problems(m); p != "" {
					c.Class, c.Text, c.About = "bad", c.Text+" !", p
				}
			}
			cells = append(cells, c)
		}
		if any {
			t.Rows = append(t.Rows, cells)
		}
	}
	t.Note = "In parentheses: of the floor beside it. An error is never throughput."
	return t
}

// workloadTable holds everything that was measured at one workload.
func (v *view) workloadTable(p point) table {
	t := table{Head: []string{"strategy", "a second", "of its floor", "executed", "replayed", "dropped", "in flight", "mismatch", "unknown", "errors", "effects", "keys", "twice", "lost", "p50", "p90", "p99", "p99.9", "slowest", "lag p99", "CPU s", "servers' CPU s", "allocations/op", "B allocated/op", "B on the wire/op", "flushes/op", "bytes/record", "first problem"}}
	for _, w := range v.rows {
		m := w.at[p]
		if m == nil {
			continue
		}
		count := func(n int64, bad bool) cell {
			c := plain(strconv.FormatInt(n, 10))
			if n < 0 {
				c.Text = unknown
			}
			if bad && n > 0 {
				c.Class = "bad"
			}
			return c
		}
		lag := unknown
		if p.rate > 0 {
			lag = latency(m.Lag.P99)
		}
		t.Rows = append(t.Rows, []cell{
			w.nameCell(), plain(rate(m.Throughput)), plain(ratio(m.Throughput, v.floor(w).throughput(p))),
			count(m.Counts.Executed, false), count(m.Counts.Replayed, false), count(m.Counts.Dropped, false), count(m.Counts.InFlight, false),
			count(m.Counts.Mismatch, false), count(m.Counts.Unknown, true), count(m.Counts.Errors, true),
			count(m.Effects, false), count(m.DistinctKeys, false), count(m.Duplicates, true), count(m.Lost, true),
			plain(latency(m.Latency.P50)), plain(latency(m.Latency.P90)), plain(latency(m.Latency.P99)), plain(latency(m.Latency.P999)), plain(latency(m.Latency.Max)), plain(lag),
			plain(amount(m.CPUSeconds)), plain(amount(m.ServerCPU)), plain(amount(m.Allocs)), plain(amount(m.AllocBytes)),
			plain(amount(m.WireBytes)), plain(amount(m.Fsyncs)), plain(amount(m.RecordBytes)), plain(m.FirstProblem),
		})
	}
	return t
}

// bound says what the trials of an experiment exclude.
func bound(e *result.Experiment) string {
	if e.Trials <= 0 {
		return "nothing excluded"
	}
	return fmt.Sprintf("≤ %s of %ss (%d of %d)", share(e.Upper95), cmp.Or(e.Unit, "key"), e.Harmed, e.Trials)
}

// experimentTable holds every experiment in full.
func (v *view) experimentTable() table {
	t := table{Head: []string{"fault", "strategy", "promise", "verdict", "rounds", "fired", "keys", "twice", "lost", "stuck", "95 % bound", "recovery", "longest", "note"}}
	for _, f := range v.faults {
		for _, w := range v.rows {
			e := w.experiments[f]
			if e == nil {
				continue
			}
			count := func(n int) cell {
				c := plain(strconv.Itoa(n))
				if n > 0 {
					c.Class = "weak"
				}
				return c
			}
			t.Rows = append(t.Rows, []cell{
				plain(f), w.nameCell(), plain(e.Promise), w.experimentCell(e), plain(strconv.Itoa(e.Rounds)), plain(strconv.Itoa(e.Fired)), plain(strconv.Itoa(e.Keys)),
				count(e.DuplicateEffects), count(e.LostEffects), count(e.StuckKeys), plain(bound(e)), plain(latency(e.Recovery)), plain(latency(e.Longest)), plain(e.Note),
			})
		}
	}
	return t
}

func (v *view) strategyTable() table {
	t := table{Head: []string{"strategy", "name", "family", "a completed key outlives", "costs", "floor"}}
	for _, w := range v.rows {
		t.Rows = append(t.Rows, []cell{w.nameCell(), plain(w.Name), plain(w.Family), plain(w.Survives), plain(w.Cost), plain(w.Floor)})
	}
	return t
}

func (v *view) skippedTable() table {
	t := table{Head: []string{"strategy", "what", "why"}}
	for _, s := range v.Skipped {
		t.Rows = append(t.Rows, []cell{plain(cmp.Or(s.Strategy, "all")), plain(cmp.Or(s.What, "everything")), plain(s.Reason)})
	}
	return t
}

func (v *view) machineTable() table {
	m := v.Machine
	t := table{Head: []string{"what", "value"}}
	add := func(what, value string) {
		if value != "" {
			t.Rows = append(t.Rows, []cell{plain(what), plain(value)})
		}
	}
	add("idem", m.Module)
	add("Go", m.Go)
	add("system", strings.TrimSpace(m.OS+" "+m.Kernel))
	add("processor", fmt.Sprintf("%s, %d logical", cmp.Or(m.CPU, "unknown"), m.CPUs))
	add("memory", size(m.Memory))
	if m.Load > 0 {
		add("load average at the beginning", fmt.Sprintf("%.2f", m.Load))
	}
	add("file system", m.FileSystem)
	add("raw 4 KiB overwrite with fdatasync", rate(m.SyncRate)+" a second")
	for _, s := range v.Servers {
		own := "yours"
		if s.Own {
			own = "started for this run"
		}
		text := s.Version + ", " + own
		for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
			text += ", " + name + "=" + s.Settings[name]
		}
		add(s.Name, text)
	}
	add("seed", strconv.FormatUint(v.Seed, 10))
	return t
}
