package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goidem/idem/bench/result"
)

// level is what the experiments showed of a strategy, and its place on the guarantee axis.
type level int

const (
	levelOnce     level = iota // no effect was applied twice or lost, whatever was broken
	levelPromise               // effects were, as its weaker promise allows
	levelForgets               // effects were, where it promises nothing because its memory is lost
	levelBroken                // effects were, although promised or because nothing ever is
	levelUntested              // no fault was confirmed, or none bit
)

// levels lists them from the top.
func levels() []level {
	return []level{levelOnce, levelPromise, levelForgets, levelBroken, levelUntested}
}

func (l level) mark() string { return []string{"✓", "≈", "○", "✗", "?"}[l] }

// heading is what the strategies of a level have in common.
func (v *view) heading(l level) string {
	switch l {
	case levelOnce:
		return "Each effect once, while its key is remembered"
	case levelPromise:
		return v.unless()
	case levelForgets:
		return "Forgets: harmed when its memory is lost"
	case levelBroken:
		return "Not safe: effects twice or lost"
	}
	return "Not tested, or no fault bit"
}

// unless is the heading of what kept a promise that is weaker than once. It names what
// has happened in this run, and nothing that has not.
func (v *view) unless() string {
	var twice, lost, clock bool
	for _, w := range v.rows {
		for _, e := range w.experiments {
			switch {
			case w.level != levelPromise || w.what(e) != levelPromise:
			case e.Fault == faultClock:
				clock = true
			default:
				twice, lost = twice || e.DuplicateEffects > 0, lost || e.LostEffects > 0
			}
		}
	}
	var all []string
	switch {
	case twice && lost:
		all = append(all, "killed between claim, effect and record")
	case twice:
		all = append(all, "killed between effect and record")
	case lost:
		all = append(all, "killed between claim and effect")
	}
	if clock {
		all = append(all, "a clock jumps over the lease")
	}
	if len(all) == 0 {
		return "Once, with exceptions that it has promised"
	}
	return "Once, unless " + strings.Join(all, " or ")
}

func (l level) class() string { return []string{"good", "weak", "open", "bad", "mute"}[l] }

// Verdicts, families and names with a meaning of their own here.
const (
	kept       = "kept"
	broken     = "broken"
	harmShown  = "harm shown" // where nothing was promised
	didNotBite = "did not bite"

	promiseNone = "none"

	familyFloor = "floor"
	familyNaive = "naive"
	nameNone    = "none"

	// faultExpired is the one fault that is no fault: a retry that comes when its key is
	// no longer remembered. What forgets on purpose is not judged by it.
	faultExpired = "retry after expiry"
	// faultClock kills nobody: what is harmed by it is harmed by the end of a lease.
	faultClock = "clock stepped"
)

// point is one workload at one number of callers and one rate.
type point struct {
	name    string
	callers int
	rate    float64
}

func pointOf(w result.Workload) point { return point{w.Name, w.Callers, w.Rate} }

func (p point) String() string {
	text := fmt.Sprintf("%s, %s", p.name, plural(p.callers, "caller"))
	if p.rate > 0 {
		text += fmt.Sprintf(", open loop at %s/s", rate(p.rate))
	}
	return text
}

// row is one strategy in a report.
type row struct {
	result.Strategy
	at          map[point]*result.Measurement
	experiments map[string]*result.Experiment
	leftOut     map[string]result.Skip // experiments that were not run on it

	level             level
	tested            int // experiments that show something,
	harmed, worse     int // of these with harm and no promise, and with a broken promise
	bored             int // experiments that show nothing
	twice, lost       int
	stuck, keys       int
	unprovoked, below bool // effects twice or lost in a workload; by less than once, as promised
	forgot            bool // effects twice in a workload with more keys than it keeps
}

// view is a report, ordered for reading.
type view struct {
	*result.Report
	rows   []*row
	byName map[string]*row
	points []point  // all that were measured, in order
	faults []string // all experiments, in order
	curve  string   // the workload with the most numbers of callers
	cost   point    // the workload whose throughput stands for the cost
	open   point    // the open loop that latency is read from; its name is empty without one
}

// nearCallers is the concurrency whose throughput stands for the cost of a strategy: more
// than one, so that sharing a flush counts, and few enough for a small service.
const nearCallers = 8

func newView(r *result.Report) *view {
	v := &view{Report: r, byName: make(map[string]*row)}
	get := func(name string) *row {
		if v.byName[name] == nil {
			v.add(result.Strategy{Name: name, Title: name})
		}
		return v.byName[name]
	}
	for _, s := range r.Strategies {
		if v.byName[s.Name] == nil {
			v.add(s)
		}
	}
	for i := range r.Measurements {
		m := &r.Measurements[i]
		p := pointOf(m.Workload)
		get(m.Strategy).at[p] = m
		if !slices.Contains(v.points, p) {
			v.points = append(v.points, p)
		}
	}
	for i := range r.Experiments {
		e := &r.Experiments[i]
		get(e.Strategy).experiments[e.Fault] = e
		if !slices.Contains(v.faults, e.Fault) {
			v.faults = append(v.faults, e.Fault)
		}
	}
	for _, s := range r.Skipped {
		if w := v.byName[s.Strategy]; w != nil && s.What != "" {
			w.leftOut[s.What] = s
		}
	}
	for _, w := range v.rows {
		w.judge()
	}
	v.choose()
	return v
}

func (v *view) add(s result.Strategy) {
	w := &row{Strategy: s, at: make(map[point]*result.Measurement), experiments: make(map[string]*result.Experiment), leftOut: make(map[string]result.Skip)}
	if w.Title == "" {
		w.Title = w.Name
	}
	v.rows = append(v.rows, w)
	v.byName[s.Name] = w
}

// harmed says whether keys of e came to harm.
func harmed(e *result.Experiment) bool {
	return e.DuplicateEffects > 0 || e.LostEffects > 0 || e.StuckKeys > 0
}

// counts says whether e shows anything: an experiment whose fault was never confirmed, or
// that could do no harm, is no evidence of a guarantee.
func counts(e *result.Experiment) bool {
	return e.Verdict == broken || harmed(e) || e.Fired > 0 && e.Verdict != didNotBite
}

// what classifies one experiment.
func (w *row) what(e *result.Experiment) level {
	switch {
	case !counts(e):
		return levelUntested
	case e.Verdict == broken, harmed(e) && w.Family == familyNaive && e.Verdict != kept:
		return levelBroken
	case harmed(e) && (e.Promise == promiseNone || e.Verdict != kept):
		return levelForgets
	case harmed(e):
		return levelPromise
	}
	return levelOnce
}

func (w *row) judge() {
	for _, e := range w.experiments {
		l := w.what(e)
		if l == levelForgets && e.Fault == faultExpired {
			continue
		}
		w.keys += max(e.Keys, 0)
		w.twice += max(e.DuplicateEffects, 0)
		w.lost += max(e.LostEffects, 0)
		w.stuck += max(e.StuckKeys, 0)
		switch l {
		case levelUntested:
			w.bored++
			continue
		case levelBroken:
			if e.Verdict == broken {
				w.worse++
			} else {
				w.harmed++
			}
		case levelForgets:
			w.harmed++
		case levelPromise:
			w.below = true
		}
		w.tested++
	}
	// Effects are checked in workloads, too, where no fault excuses anybody.
	for _, m := range w.at {
		forgot := m.Duplicates > 0 && w.MayForget(m)
		w.forgot = w.forgot || forgot
		w.unprovoked = w.unprovoked || m.Lost > 0 || m.Duplicates > 0 && !forgot
	}
	switch {
	case w.worse > 0 || w.unprovoked || w.harmed > 0 && w.Family == familyNaive:
		w.level = levelBroken
	case w.harmed > 0 || w.forgot:
		w.level = levelForgets
	case w.below:
		w.level = levelPromise
	case w.tested > 0:
		w.level = levelOnce
	default:
		w.level = levelUntested
	}
}

// summary is the row's result in three words.
func (w *row) summary() string {
	switch {
	case w.worse > 0:
		return fmt.Sprintf("broke %d of %d", w.worse, w.tested)
	case w.harmed > 0:
		return fmt.Sprintf("harmed in %d of %d", w.harmed, w.tested)
	case w.unprovoked:
		return "broken without a fault"
	case w.forgot:
		return "forgot keys without a fault"
	case w.tested > 0:
		return fmt.Sprintf("kept %d of %d", w.tested, w.tested)
	case w.bored > 0:
		return "no fault bit"
	}
	return "not tested"
}

// verdict is the summary with what went wrong.
func (w *row) verdict() string {
	var harm []string
	add := func(n int, what string) {
		if n > 0 {
			harm = append(harm, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(w.twice, "twice")
	add(w.lost, "lost")
	add(w.stuck, "stuck")
	if len(harm) == 0 {
		return w.summary()
	}
	return w.summary() + ": " + strings.Join(harm, ", ")
}

// problems says what of a measurement a reader must know before its figures.
func problems(m *result.Measurement) string {
	var all []string
	add := func(n int64, what string) {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(m.Counts.Errors, "errors")
	add(m.Counts.Unknown, "unknown")
	add(m.Duplicates, "effects twice")
	add(m.Lost, "effects lost")
	return strings.Join(all, ", ")
}

// choose picks the workloads that the plots show.
func (v *view) choose() {
	callers := make(map[string][]int)
	measured := func(p point) (n int) {
		for _, w := range v.rows {
			if w.at[p] != nil {
				n++
			}
		}
		return n
	}
	for _, p := range v.points {
		if p.rate == 0 && !slices.Contains(callers[p.name], p.callers) {
			callers[p.name] = append(callers[p.name], p.callers)
		}
		if p.rate > 0 && (v.open.name == "" || measured(p) > measured(v.open)) {
			v.open = p
		}
	}
	for _, p := range v.points {
		if p.rate == 0 && len(callers[p.name]) > len(callers[v.curve]) {
			v.curve = p.name
		}
	}
	far := func(p point) float64 { return math.Abs(math.Log(float64(max(p.callers, 1)) / nearCallers)) }
	for _, p := range v.points {
		if p.name != v.curve || p.rate > 0 {
			continue
		}
		// One that most strategies had, and among these the nearest.
		if v.cost.name == "" || cmp.Or(-cmp.Compare(measured(p), measured(v.cost)), cmp.Compare(far(p), far(v.cost))) < 0 {
			v.cost = p
		}
	}
}

// throughput is the row's at p; 0 where there is none.
func (w *row) throughput(p point) float64 {
	if w == nil || w.at[p] == nil {
		return 0
	}
	return w.at[p].Throughput
}

func (v *view) floor(w *row) *row { return v.byName[w.Floor] }

// curveCallers lists the numbers of callers of the curve.
func (v *view) curveCallers() (all []int) {
	for _, p := range v.points {
		if p.name == v.curve && p.rate == 0 && !slices.Contains(all, p.callers) {
			all = append(all, p.callers)
		}
	}
	slices.Sort(all)
	return all
}

// place is where a strategy keeps what it knows, as a heading.
func (w *row) place() string {
	if len(w.Needs) == 0 {
		return "In one process: memory or a file"
	}
	switch w.Needs[0] {
	case "postgres":
		return "PostgreSQL"
	case "redis":
		return "Redis"
	case "cockroach":
		return "CockroachDB"
	}
	return w.Needs[0]
}

// places lists them in the order of the rows.
func (v *view) places() (all []string) {
	for _, w := range v.rows {
		if p := w.place(); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// class is the row's colour.
func (w *row) class() string {
	switch w.Family {
	case familyFloor, familyNaive, "window", "lease", "transactional":
		return "f-" + w.Family
	}
	return "f-other"
}
