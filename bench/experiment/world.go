package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// world is one strategy's place in one round, with its ledger.
type world struct {
	strategy strategy.Strategy
	env      strategy.Env
	ledger   *strategy.FileLedger
	keys     []string
	acks     map[string]bool // keys that somebody was told are done
	met      map[string]bool // keys that a confirmed fault has met; nil: all, where it has fired
}

// lease returns the lease, or the lifetime of a lock, in experiments that wait for its
// end. With a server it must be long enough to be renewed on a busy machine: what a live
// worker loses is another experiment.
func lease(info strategy.Info) time.Duration {
	if len(info.Needs) > 0 {
		return 1500 * time.Millisecond
	}
	return time.Second
}

// world makes a place of its own with some keys.
func (l *lab) world(s strategy.Strategy, keys int) (*world, error) {
	n := l.places.Add(1)
	w := &world{strategy: s, acks: make(map[string]bool)}
	w.env = strategy.Env{
		Dir: filepath.Join(l.Dir, fmt.Sprintf("world%d", n)), URLs: l.URLs,
		Place: fmt.Sprintf("x%x_%d", l.run, n), LeaseTTL: lease(s.Info()), Conns: 8,
	}
	if err := os.MkdirAll(w.env.Dir, 0o700); err != nil {
		return nil, err
	}
	for i := range keys {
		w.keys = append(w.keys, fmt.Sprintf("key-%d-%d", n, i))
	}
	var err error
	if w.ledger, err = strategy.OpenFileLedger(w.ledgerPath(), false); err != nil {
		return nil, err
	}
	w.env.Effects = w.ledger
	return w, nil
}

func (w *world) ledgerPath() string { return filepath.Join(w.env.Dir, "effects.txt") }
func (w *world) acksPath() string   { return filepath.Join(w.env.Dir, "acks.txt") }

// open opens the strategy as a new process would.
func (w *world) open(ctx context.Context) (strategy.Runner, error) {
	return w.strategy.Open(ctx, w.env)
}

// close removes what the world has stored.
func (w *world) close(ctx context.Context) error {
	err := w.ledger.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	own := w.env
	own.URLs = make(map[strategy.Server]string)
	for _, server := range w.strategy.Info().Needs {
		own.URLs[server] = w.env.URLs[server]
	}
	return errors.Join(err, strategy.Erase(ctx, own), os.RemoveAll(w.env.Dir))
}

// reopen replaces a Runner by one that knows nothing, as another process would have it.
func (w *world) reopen(ctx context.Context, r strategy.Runner) (strategy.Runner, error) {
	if err := r.Close(); err != nil {
		return nil, err
	}
	return w.open(ctx)
}

func (w *world) ops(caller string) []strategy.Op {
	var ops []strategy.Op
	for _, key := range w.keys {
		ops = append(ops, operation(key, caller))
	}
	return ops
}

func (w *world) acked(done map[string]bool) {
	for key, ok := range done {
		w.acks[key] = w.acks[key] || ok
	}
}

// anyMet says whether the fault has fired, where it is known which keys it has met.
func (w *world) anyMet() bool {
	for _, met := range w.met {
		if met {
			return true
		}
	}
	return false
}

// tally is what the rounds of an experiment gave.
type tally struct {
	mu                      sync.Mutex
	rounds, fired, keys     int
	duplicates, lost, stuck int
	harmed                  trials // under a fault that was confirmed
	recoveries              []time.Duration
	note                    string
}

// trials are what a bound is made of: how many of the keys that met the fault, and how
// many rounds in which it fired, came to harm.
type trials struct{ keys, ofKeys, rounds int }

// count adds a world's keys: each should have one effect. missed, which may be nil, are keys
// that were found lost before and may have got their effect since, only because they were
// delivered once more.
func (t *tally) count(ctx context.Context, w *world, r strategy.Runner, fired bool, recovery time.Duration, missed map[string]bool) error {
	counts, err := r.Effects().Counts(ctx)
	if err != nil {
		return fmt.Errorf("counting effects: %w", err)
	}
	lost := w.lost(counts)
	for key := range missed {
		lost[key] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds++
	if fired {
		t.fired++
		t.recoveries = append(t.recoveries, recovery)
	}
	harmed := 0
	for _, key := range w.keys {
		t.keys++
		again := max(counts[key]-1, 0)
		t.duplicates += again
		if lost[key] {
			t.lost++
		}
		if !w.acks[key] {
			t.stuck++
		}
		harm := again > 0 || lost[key]
		if harm {
			harmed++
		}
		// A key beside the fault proves nothing about it, unharmed or not.
		if fired && (w.met == nil || w.met[key]) {
			t.harmed.ofKeys++
			if harm {
				t.harmed.keys++
			}
		}
	}
	if fired {
		t.harmed.rounds += min(harmed, 1)
	}
	return nil
}

// lost returns the keys that were acknowledged and have no effect.
func (w *world) lost(counts map[string]int) map[string]bool {
	lost := make(map[string]bool)
	for _, key := range w.keys {
		if w.acks[key] && counts[key] == 0 {
			lost[key] = true
		}
	}
	return lost
}

// result makes the row of a report. Where a fault meets one operation of a round, its
// neighbours prove nothing, and a round is one trial; each says that every key meets it.
func (t *tally) result(info strategy.Info, fault string, each bool) result.Experiment {
	o := promise(info, fault)
	unit, n, harmed := "round", t.fired, t.harmed.rounds
	if each {
		unit, n, harmed = "key", t.harmed.ofKeys, t.harmed.keys
	}
	e := result.Experiment{
		Strategy: info.Name, Fault: fault, Promise: o.promise,
		Rounds: t.rounds, Fired: t.fired, Keys: t.keys,
		DuplicateEffects: t.duplicates, LostEffects: t.lost, StuckKeys: t.stuck,
		Unit: unit, Trials: n, Harmed: harmed, Upper95: upper95(harmed, n),
		Verdict: verdict(o.promise, t.fired, t.duplicates, t.lost, t.stuck),
		Note:    o.why,
	}
	if t.note != "" {
		e.Note += "; " + t.note
	}
	if n := len(t.recoveries); n > 0 {
		slices.Sort(t.recoveries)
		e.Recovery, e.Longest = t.recoveries[n/2], t.recoveries[n-1]
	}
	return e
}
