package benchcmd

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goidem/idem/bench/experiment"
	"github.com/goidem/idem/bench/report"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/bench/workload"
)

// runner runs a plan and fills in a report.
type runner struct {
	*plan
	screen  *screen
	report  *result.Report
	redact  redactor
	dir     string
	servers *servers
	written bool
	cut     string // what the limit left no time for

	total, done float64 // seconds, estimated
}

// faultSeconds is about how long the experiments of a profile take.
func (p *plan) faultSeconds() float64 {
	switch {
	case p.noFaults:
		return 0
	case p.profile.full:
		return 1500
	}
	return 120
}

// Shares of a limited run: what workloads are made to fit into (less in the full profile,
// which plays more rounds of faults), and after which they do with one round each.
const (
	workloadShare     = 0.45
	fullWorkloadShare = 0.28
	lateShare         = 0.6
)

// reserve is kept of the limit, or of a short one a tenth, for what ends a run: servers are
// stopped and what was stored is removed, which no limit may keep from happening.
const reserve = 15 * time.Second

// limited is ctx until the time for measuring is over.
func (r *runner) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	l := r.profile.limit
	if l <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, r.report.Started.Add(l-min(reserve, l/10)))
}

// cutOff says whether err came because the time for measuring was over, and notes then
// what there was none for.
func (r *runner) cutOff(ctx, limited context.Context, err error, what string) bool {
	if err == nil || ctx.Err() != nil || !errors.Is(limited.Err(), context.DeadlineExceeded) {
		return false
	}
	r.cut = what
	r.skip("", what, fmt.Sprintf("the limit was over: --limit is %v", r.profile.limit))
	return true
}

// late says whether more than a share of the limit is over.
func (r *runner) late(share float64) bool {
	l := r.profile.limit
	return l > 0 && time.Since(r.report.Started) > time.Duration(share*float64(l))
}

// run runs everything. Whatever happens after the first measurement, what there is is
// written.
func (r *runner) run(ctx context.Context) (err error) {
	r.redact = newRedactor(r.urls)
	if r.dir, err = os.MkdirTemp(r.plan.dir, "idem-bench-"); err != nil {
		return fmt.Errorf("bench: a folder to measure in: %w", err)
	}
	defer os.RemoveAll(r.dir)
	if err := os.Chmod(r.dir, 0o711); err != nil { // PostgreSQL passes through as another user
		return fmt.Errorf("bench: a folder to measure in: %w", err)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil { // before minutes are spent
		return usage("bench: the report has no place: %w", err)
	}
	if r.report.Machine, err = thisMachine(ctx, r.dir); err != nil {
		return err
	}
	if r.report.Machine.FileSystem == memoryFileSystem {
		r.screen.say("%s is in memory, where a flush costs nothing: name a folder on a disk with --dir", r.dir)
	}
	r.servers, err = openServers(ctx, r.plan, r.dir, r.screen)
	defer func() { r.servers.close() }()
	if err == nil {
		r.report.Servers = r.servers.about
		err = r.everything(ctx)
	}
	return r.finish(ctx, err)
}

// finish marks and writes the report, and says how it ended.
func (r *runner) finish(ctx context.Context, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err // before anything was run
	}
	r.report.Finished = time.Now().UTC()
	switch {
	case ctx.Err() != nil:
		r.report.Partial, r.report.Reason = true, "It was stopped by a signal."
		err = &Error{Code: ExitInterrupted, Err: errors.New("bench: stopped; what was measured is in the report, which is marked as partial"), Next: "the same command again"}
	case err != nil:
		r.report.Partial, r.report.Reason = true, r.redact.line(err.Error())
		err = errors.New(r.redact.line(err.Error()))
	case r.cut != "":
		r.report.Partial, r.report.Reason = true, fmt.Sprintf("The limit was over (--limit is %v), without time for %s.", r.profile.limit, r.cut)
		err = r.brokenPromises()
	default:
		r.report.Partial, r.report.Reason = false, ""
		err = r.brokenPromises()
	}
	if len(r.report.Measurements)+len(r.report.Experiments)+len(r.report.Skipped) == 0 {
		return err
	}
	if werr := r.write(); werr != nil {
		return errors.Join(err, werr)
	}
	return err
}

func (r *runner) write() error {
	err := report.WriteDir(r.out, r.report)
	r.written = r.written || err == nil
	return err
}

// brokenPromises is an error when a strategy broke what it promises itself.
func (r *runner) brokenPromises() error {
	var all []string
	for _, e := range r.report.Experiments {
		if e.Verdict == "broken" && e.Promise != "none" {
			all = append(all, e.Strategy+" under "+e.Fault)
		}
	}
	// In a workload no fault excuses anybody who promises something.
	owes := make(map[string]result.Strategy)
	for _, s := range r.report.Strategies {
		switch strategy.Family(s.Family) {
		case strategy.Window, strategy.Lease, strategy.Transactional:
			owes[s.Name] = s
		}
	}
	for _, m := range r.report.Measurements {
		s, ok := owes[m.Strategy]
		if ok && (m.Lost > 0 || m.Duplicates > 0 && !s.MayForget(&m)) {
			all = append(all, fmt.Sprintf("%s in the workload %s, %d callers", m.Strategy, m.Workload.Name, m.Workload.Callers))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return &Error{Code: ExitFound, Err: fmt.Errorf("bench: broken promises: %s", strings.Join(all, "; ")), Next: "look at the report"}
}

// paths says where the report is, and what it comes to.
func (r *runner) paths() string {
	return fmt.Sprintf("%s\n%s\n%s\n%s", report.Summary(r.report), filepath.Join(r.out, report.HTMLFile), filepath.Join(r.out, report.MarkdownFile), filepath.Join(r.out, report.JSONFile))
}

func (r *runner) skip(name, what, reason string) {
	r.report.Skipped = append(r.report.Skipped, result.Skip{Strategy: name, What: what, Reason: r.redact.line(reason)})
}

// everything runs the workloads, then the experiments.
func (r *runner) everything(ctx context.Context) error {
	var able []strategy.Strategy
	for _, s := range r.strategies {
		i := s.Info()
		about := result.Strategy{Name: i.Name, Title: i.Title, Family: string(i.Family), Survives: i.Survives, Cost: i.Cost, Floor: i.Floor, Remembers: i.Remembers}
		missing := ""
		for _, n := range i.Needs {
			about.Needs = append(about.Needs, string(n))
			missing = cmp.Or(missing, r.servers.missing[n])
		}
		r.report.Strategies = append(r.report.Strategies, about)
		if missing == "" {
			able = append(able, s)
			continue
		}
		if r.named {
			return &Error{Code: ExitServer, Err: fmt.Errorf("bench: %s cannot be run: %s", i.Name, r.redact.line(missing)), Next: "name a server, or leave the strategy out; nothing was run"}
		}
		r.skip(i.Name, "", missing)
	}
	groups := byServer(able)
	r.fit(len(able))
	r.total = r.workloadSeconds(len(able)) + r.faultSeconds()
	limited, cancel := r.limited(ctx)
	defer cancel()
	for _, g := range groups {
		if len(r.profile.workloads) == 0 {
			break
		}
		if err := r.group(limited, g); err != nil {
			rest := "the rest of the workloads"
			if !r.noFaults {
				rest += " and all experiments"
			}
			if r.cutOff(ctx, limited, err, rest) {
				return nil
			}
			return err
		}
	}
	if r.noFaults {
		return nil
	}
	err := r.faults(limited, able)
	if r.cutOff(ctx, limited, err, "the rest of the experiments") {
		return nil
	}
	return err
}

// workloadSeconds is about how long the workloads take.
func (p *plan) workloadSeconds(strategies int) (sum float64) {
	for _, l := range p.profile.workloads {
		sum += float64(strategies*len(l.callers)*l.spec.Rounds) * l.spec.Length.Seconds() * overhead
	}
	return sum
}

// shortest is the length below which a round says little.
const shortest = 150 * time.Millisecond

// fit shortens all rounds alike where the limit leaves too little time for them.
func (p *plan) fit(strategies int) {
	share := 1.0
	switch {
	case p.noFaults:
	case p.profile.full:
		share = fullWorkloadShare
	default:
		share = workloadShare
	}
	room := share * p.profile.limit.Seconds()
	if need := p.workloadSeconds(strategies); p.profile.limit > 0 && need > room {
		for i := range p.profile.workloads {
			w := &p.profile.workloads[i].spec.Workload
			w.Length = max(time.Duration(float64(w.Length)*room/need).Round(10*time.Millisecond), min(w.Length, shortest))
		}
	}
}

// overhead is how much longer a round takes than it measures.
const overhead = 1.6

// byServer puts strategies together that take turns: those of one server, so that each
// and its floor see the same minutes.
func byServer(all []strategy.Strategy) (groups [][]strategy.Strategy) {
	index := make(map[strategy.Server]int)
	for _, s := range all {
		var server strategy.Server
		if n := s.Info().Needs; len(n) > 0 {
			server = n[0]
		}
		i, ok := index[server]
		if !ok {
			i = len(groups)
			index[server] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}

// open is a strategy under measurement.
type open struct {
	info   strategy.Info
	env    strategy.Env
	runner strategy.Runner
	rounds []workload.Round // of the workload at hand
	failed bool             // in the workload at hand
}

// group measures strategies that take turns.
func (r *runner) group(ctx context.Context, group []strategy.Strategy) error {
	var opened []*open
	defer func() {
		for _, o := range opened {
			err := o.runner.Close()
			// A server that is not ours is left as it was found, also after Ctrl-C.
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingLimit)
			err = errors.Join(err, strategy.Erase(clean, o.env))
			cancel()
			if err != nil {
				r.screen.say("%s: what it stored could not be removed: %s", o.info.Name, r.redact.line(err.Error()))
			}
		}
	}()
	id := runID()
	for i, s := range group {
		info := s.Info()
		// Only the servers of this strategy: Erase visits all that it is given.
		urls := make(map[strategy.Server]string)
		for _, n := range info.Needs {
			urls[n] = r.servers.urls[n]
		}
		env := strategy.Env{Dir: r.dir, URLs: urls, Place: fmt.Sprintf("r%s_%d", id, i), Effects: workload.NewLedger()}
		run, err := s.Open(ctx, env)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.skip(info.Name, "", err.Error())
			continue
		}
		opened = append(opened, &open{info: info, env: env, runner: run})
	}
	for _, l := range r.profile.workloads {
		for _, callers := range l.callers {
			spec := l.spec
			spec.Callers, spec.Seed = callers, r.seed
			spec.Warmup = min(2*callers, 64)
			err := r.measure(ctx, opened, spec)
			if err != nil {
				return err
			}
			r.report.Partial = true
			if err := r.write(); err != nil { // a run that is killed leaves this
				return err
			}
		}
	}
	return nil
}

// runID tells the places of this run from those of another on the same server.
func runID() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// measure runs one workload on each strategy, round by round in turns, each round in
// another order: what the machine does meanwhile then falls on all of them.
func (r *runner) measure(ctx context.Context, opened []*open, spec workload.Spec) error {
	for _, o := range opened {
		o.rounds, o.failed = nil, false
	}
	defer func() {
		for _, o := range opened {
			if len(o.rounds) == 0 {
				continue
			}
			m := workload.Merge(spec, o.rounds)
			m.Strategy, m.FirstProblem = o.info.Name, r.redact.line(m.FirstProblem)
			if err := workload.Stored(ctx, o.runner, &m); err != nil && ctx.Err() == nil {
				r.skip(o.info.Name, "bytes of a record", err.Error())
			}
			r.report.Measurements = append(r.report.Measurements, m)
		}
	}()
	for round := range spec.Rounds {
		if round > 0 && r.late(lateShare) {
			break // the report says how many rounds there were
		}
		for k := range opened {
			o := opened[(k+round)%len(opened)]
			if o.failed {
				continue
			}
			what := fmt.Sprintf("%s, %d callers: %s", spec.Name, spec.Callers, o.info.Name)
			length := spec.Length.Seconds() * overhead
			r.screen.show(r.done/r.total, what)
			spec.PIDs = nil
			for _, n := range o.info.Needs {
				spec.PIDs = append(spec.PIDs, r.servers.pids[n]...)
			}
			got, err := workload.RunRound(ctx, o.runner, spec, round, func(part float64) { r.screen.show((r.done+part*length)/r.total, what) })
			r.done += length
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				o.failed = true
				r.skip(o.info.Name, fmt.Sprintf("%s, %d callers", spec.Name, spec.Callers), err.Error())
			default:
				o.rounds = append(o.rounds, got)
			}
		}
	}
	return nil
}

// faults runs the experiments.
func (r *runner) faults(ctx context.Context, able []strategy.Strategy) error {
	dir := filepath.Join(r.dir, "faults")
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("bench: a folder for experiments: %w", err)
	}
	base := r.total - r.faultSeconds()
	found, skipped, err := experiment.Run(ctx, experiment.Config{
		Strategies: able, Experiments: r.experiments, Dir: dir, URLs: r.servers.urls,
		Servers: r.servers.forExperiments(r.plan), Full: r.profile.full, Seed: r.seed,
	}, func(done float64, what string) { r.screen.show((base+done*r.faultSeconds())/r.total, what) })
	for _, e := range found {
		e.Note = r.redact.line(e.Note)
		r.report.Experiments = append(r.report.Experiments, e)
	}
	for _, s := range skipped {
		s.Reason = r.redact.line(s.Reason)
		r.report.Skipped = append(r.report.Skipped, s)
	}
	return err
}
