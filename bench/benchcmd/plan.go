package benchcmd

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goidem/idem/bench/experiment"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/bench/workload"
)

// load is a workload at several numbers of callers.
type load struct {
	spec    workload.Spec
	callers []int
}

func (l load) String() string {
	w := l.spec.Workload
	text := "closed loop"
	if w.Rate > 0 {
		text = fmt.Sprintf("open loop at %.0f/s", w.Rate)
	}
	words := make([]string, len(l.callers))
	for i, n := range l.callers {
		words[i] = fmt.Sprint(n)
	}
	text += fmt.Sprintf(", %s callers, %.0f %% duplicates", strings.Join(words, "/"), w.Duplicates*100)
	if w.Work != "" {
		text += ", an operation of " + w.Work
	}
	return text + fmt.Sprintf(", %d rounds of %v", l.spec.Rounds, w.Length)
}

// profile is how much is run.
type profile struct {
	name      string
	workloads []load
	full      bool
	limit     time.Duration // of the whole run; 0: none
}

// Sizes of a small request and its answer.
const (
	payload = 256
	answer  = 200
)

// profiles returns the quick and the full one.
func profiles() []profile {
	w := func(name string, rounds int, length time.Duration, callers []int, change func(*result.Workload)) load {
		spec := workload.Spec{Rounds: rounds, Workload: result.Workload{Name: name, Payload: payload, Result: answer, Length: length}}
		if change != nil {
			change(&spec.Workload)
		}
		return load{spec, callers}
	}
	retries := func(w *result.Workload) { w.Duplicates, w.Hot = .5, .3 }
	steady := func(w *result.Workload) { w.Rate, w.Duplicates, w.Hot = 200, .2, .3 }
	slow := func(w *result.Workload) { w.Work, w.Duplicates, w.Hot = "exp:5ms", .2, .3 }
	const ms = time.Millisecond
	return []profile{
		{name: "quick", limit: 280 * time.Second, workloads: []load{
			w("new-keys", 3, 250*ms, []int{1, 8, 64}, nil),
			w("retries", 3, 250*ms, []int{8}, retries),
			w("steady", 1, 1000*ms, []int{64}, steady),
		}},
		{name: "full", full: true, workloads: []load{
			w("new-keys", 5, 500*ms, []int{1, 8, 64, 256}, nil),
			w("retries", 5, 500*ms, []int{8, 64}, retries),
			w("steady", 1, 4000*ms, []int{64}, steady),
			w("slow-work", 3, 500*ms, []int{64}, slow),
		}},
	}
}

// plan is a run, checked.
type plan struct {
	profile     profile
	strategies  []strategy.Strategy
	named       bool // by the caller, who wants an error where one cannot be run
	experiments []string
	noFaults    bool
	urls        map[strategy.Server]string
	ownServers  bool
	seed        uint64
	out, dir    string
}

// word "none" in a filter means: nothing at all.
const noneOfThem = "none"

// plan checks the flags.
func (f *flags) plan() (*plan, error) {
	p := &plan{seed: f.seed, out: f.out, dir: f.dir, ownServers: f.ownServers, urls: make(map[strategy.Server]string)}
	all := profiles()
	i := slices.IndexFunc(all, func(x profile) bool { return x.name == f.profile })
	if i < 0 {
		return nil, usage("bench: there is no profile %q; there are quick and full", f.profile)
	}
	p.profile = all[i]
	switch {
	case f.limit < 0:
		return nil, usage("bench: --limit is negative; it must be a time like 8m")
	case f.limit > 0:
		p.profile.limit = f.limit
	}
	if err := p.chooseStrategies(f.strategies); err != nil {
		return nil, err
	}
	if err := p.chooseWorkloads(f.workloads); err != nil {
		return nil, err
	}
	if err := p.chooseExperiments(f.experiments); err != nil {
		return nil, err
	}
	if len(p.profile.workloads) == 0 && p.noFaults {
		return nil, usage("bench: without workloads and without experiments there is nothing to run")
	}
	for server, u := range f.urls {
		if *u == "" {
			continue
		}
		if err := checkURL(server, *u); err != nil {
			return nil, err
		}
		p.urls[server] = *u
	}
	if p.out == "" {
		return nil, usage("bench: --out is empty; it must be a folder for the report")
	}
	if p.dir != "" {
		if info, err := os.Stat(p.dir); err != nil || !info.IsDir() {
			return nil, usage("bench: --dir is %s, which is not a folder that can be entered", p.dir)
		}
	}
	return p, nil
}

// choose returns those of known that are named, in the order of known.
func choose(what string, named, known []string) ([]string, error) {
	for _, name := range named {
		if !slices.Contains(known, name) {
			return nil, usage("bench: there is no %s %q; there are %s", what, name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !slices.Contains(named, name) }), nil
}

func (p *plan) chooseStrategies(named []string) error {
	all := strategy.All()
	if len(named) == 0 {
		p.strategies = all
		return nil
	}
	known := make([]string, len(all))
	for i, s := range all {
		known[i] = s.Info().Name
	}
	wanted, err := choose("strategy", named, known)
	if err != nil {
		return err
	}
	p.named = true
	for _, s := range all { // a floor for each, to hold it against
		if slices.Contains(wanted, s.Info().Name) && s.Info().Floor != "" {
			wanted = append(wanted, s.Info().Floor)
		}
	}
	for _, s := range all {
		if slices.Contains(wanted, s.Info().Name) {
			p.strategies = append(p.strategies, s)
		}
	}
	return nil
}

func (p *plan) chooseWorkloads(named []string) error {
	if len(named) == 0 {
		return nil
	}
	if len(named) == 1 && named[0] == noneOfThem {
		p.profile.workloads = nil
		return nil
	}
	var known []string
	for _, l := range p.profile.workloads {
		known = append(known, l.spec.Name)
	}
	wanted, err := choose("workload", named, known)
	p.profile.workloads = slices.DeleteFunc(p.profile.workloads, func(l load) bool { return !slices.Contains(wanted, l.spec.Name) })
	return err
}

func (p *plan) chooseExperiments(named []string) (err error) {
	if len(named) == 1 && named[0] == noneOfThem {
		p.noFaults = true
		return nil
	}
	if len(named) == 0 {
		return nil // all
	}
	var known []string
	for _, e := range experiment.All() {
		known = append(known, e.Name)
	}
	p.experiments, err = choose("experiment", named, known)
	return err
}

// needs says whether any strategy uses the server.
func (p *plan) needs(server strategy.Server) bool {
	return slices.ContainsFunc(p.strategies, func(s strategy.Strategy) bool { return slices.Contains(s.Info().Needs, server) })
}
