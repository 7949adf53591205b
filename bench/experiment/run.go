package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// fault is an experiment and how to do it.
type fault struct {
	Experiment
	quick, full int // rounds
	// abreast is how many strategies are under it at once.
	abreast int
	// each says that keys are the trials, because every key of a round can meet the fault;
	// a play that sees which of them did says so in its world.
	each bool
	// concerns says whether a strategy can meet it; nil: all of them.
	concerns func(strategy.Info) bool
	play     func(ctx context.Context, l *lab, s strategy.Strategy, rounds int, rnd *rand.Rand, t *tally) error
}

// lab is one run.
type lab struct {
	Config
	run    uint32
	places atomic.Int64

	mu  sync.Mutex
	own map[string]Server // servers to hurt, by what they are for
}

// errSkip says why a strategy was not put under a fault.
type errSkip struct {
	reason     string
	notReached bool // the strategy has no point that the fault could meet
}

func (e errSkip) Error() string { return e.reason }

// All lists the experiments in the order in which they are run.
func All() []Experiment {
	var all []Experiment
	for _, f := range faults() {
		all = append(all, f.Experiment)
	}
	return all
}

// Run runs the experiments. progress, which may be nil, gets the share that is done
// and what is under way. When ctx ends, what was finished comes back with ctx's error.
//
// Strategies of the family Floor are left out: they decide nothing.
func Run(ctx context.Context, c Config, progress func(done float64, what string)) ([]result.Experiment, []result.Skip, error) {
	if progress == nil {
		progress = func(float64, string) {}
	}
	plan, err := plan(c.Experiments)
	if err != nil {
		return nil, nil, err
	}
	l := &lab{Config: c, run: uint32(os.Getpid()), own: make(map[string]Server)}
	defer l.stop()
	var done []result.Experiment
	skipped := l.leaveOut()
	for i, f := range plan {
		progress(float64(i)/float64(len(plan)), f.Name)
		some, skips, err := l.fault(ctx, f, func(share float64, what string) {
			progress((float64(i)+share)/float64(len(plan)), f.Name+": "+what)
		})
		done, skipped = append(done, some...), append(skipped, skips...)
		if err != nil {
			return done, skipped, err
		}
	}
	progress(1, "")
	return done, skipped, nil
}

func plan(names []string) ([]fault, error) {
	all := faults()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []fault
	for _, name := range names {
		i := slices.IndexFunc(all, func(f fault) bool { return f.Name == name })
		if i < 0 {
			var known []string
			for _, f := range all {
				known = append(known, f.Name)
			}
			return nil, fmt.Errorf("experiment: there is no experiment %q; there are: %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// fault puts all strategies under one fault, some of them at once.
func (l *lab) fault(ctx context.Context, f fault, progress func(float64, string)) (done []result.Experiment, skipped []result.Skip, err error) {
	var chosen []strategy.Strategy
	for _, s := range l.Strategies {
		if f.concerns == nil || f.concerns(s.Info()) {
			chosen = append(chosen, s)
		}
	}
	rounds := f.quick
	if l.Full {
		rounds = f.full
	}
	rounds = cmp.Or(l.rounds, rounds)
	type row struct {
		e    *result.Experiment
		skip *result.Skip
		err  error
	}
	rows := make([]row, len(chosen))
	var mu sync.Mutex
	finished := 0
	slots := make(chan struct{}, max(f.abreast, 1))
	var wg sync.WaitGroup
	for i, s := range chosen {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if ctx.Err() != nil {
				rows[i].err = ctx.Err()
				return
			}
			info := s.Info()
			t := &tally{}
			rnd := rand.New(rand.NewPCG(l.Seed, uint64(len(info.Name))<<32|uint64(info.Name[0])<<8|uint64(len(f.Name))))
			err := f.play(ctx, l, s, rounds, rnd, t)
			var skip errSkip
			switch {
			case errors.As(err, &skip):
				rows[i].skip = &result.Skip{Strategy: info.Name, What: f.Name, Reason: skip.reason, NotReached: skip.notReached}
			case ctx.Err() != nil:
				rows[i].err = ctx.Err()
			case err != nil && t.rounds == 0:
				rows[i].skip = &result.Skip{Strategy: info.Name, What: f.Name, Reason: "it could not be run: " + err.Error()}
			default:
				if err != nil {
					t.note = fmt.Sprintf("given up after %d rounds: %v", t.rounds, err)
				}
				e := t.result(info, f.Name, f.each)
				rows[i].e = &e
			}
			mu.Lock()
			defer mu.Unlock()
			finished++
			progress(float64(finished)/float64(len(chosen)), info.Name)
		})
	}
	wg.Wait()
	for _, r := range rows {
		switch {
		case r.err != nil:
			err = r.err
		case r.skip != nil:
			skipped = append(skipped, *r.skip)
		case r.e != nil:
			done = append(done, *r.e)
		}
	}
	return done, skipped, err
}

// leaveOut takes out the strategies that cannot run at all.
func (l *lab) leaveOut() (skipped []result.Skip) {
	var left []strategy.Strategy
	for _, s := range l.Strategies {
		info := s.Info()
		i := slices.IndexFunc(info.Needs, func(server strategy.Server) bool { return l.URLs[server] == "" })
		switch {
		case info.Family == strategy.Floor:
		case i >= 0:
			skipped = append(skipped, result.Skip{Strategy: info.Name, Reason: fmt.Sprintf("it needs %s, and the run has none", info.Needs[i])})
		default:
			left = append(left, s)
		}
	}
	l.Strategies = left
	return skipped
}

// server returns a server of the run's own that may be hurt, and starts it on the
// first call for a purpose.
func (l *lab) server(purpose string, start func() (Server, error)) (Server, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.own[purpose]; ok {
		return s, nil
	}
	s, err := start()
	if err != nil {
		return nil, errSkip{reason: "no server to hurt could be started: " + err.Error()}
	}
	l.own[purpose] = s
	return s, nil
}

func (l *lab) stop() {
	for _, s := range l.own {
		_ = s.Stop() // it is thrown away
	}
}

// on returns the run's servers with one of them replaced.
func (l *lab) on(server strategy.Server, url string) map[strategy.Server]string {
	urls := make(map[strategy.Server]string)
	for name, other := range l.URLs {
		urls[name] = other
	}
	urls[server] = url
	return urls
}

// needing returns what concerns strategies on one of these servers.
func needing(servers ...strategy.Server) func(strategy.Info) bool {
	return func(info strategy.Info) bool {
		return slices.ContainsFunc(info.Needs, func(s strategy.Server) bool { return slices.Contains(servers, s) })
	}
}
