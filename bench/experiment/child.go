package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// envOrders holds a worker's orders: its presence makes this process a worker.
const envOrders = "IDEM_BENCH_WORKER"

// orders are what a worker does: it asks for every key, until it is killed.
type orders struct {
	Strategy  string
	Dir       string
	URLs      map[strategy.Server]string
	Place     string
	LeaseTTL  time.Duration
	Known     time.Duration
	Ledger    string
	Acks      string
	Keys      []string
	Callers   int
	Storm     bool           // all callers ask for the same key at once, see storm
	Work      time.Duration  // of each operation
	Kill      strategy.Point // where to die, and
	KillAfter int64          // at which passing of that point
}

// ChildMain does not return when this process was started by [Run] as a worker. Each
// program that calls Run calls it first, with the strategies that it may ask for.
func ChildMain(known []strategy.Strategy) {
	text := os.Getenv(envOrders)
	if text == "" {
		return
	}
	if err := obey(text, known); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func obey(text string, known []strategy.Strategy) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("a worker's orders: %w", err)
	}
	for _, s := range known {
		if s.Info().Name == o.Strategy {
			return o.work(s)
		}
	}
	return fmt.Errorf("a worker knows no strategy %q: ChildMain was not given it", o.Strategy)
}

func (o *orders) work(s strategy.Strategy) error {
	ledger, err := strategy.OpenFileLedger(o.Ledger, false)
	if err != nil {
		return err
	}
	acks, err := strategy.OpenFileLedger(o.Acks, false)
	if err != nil {
		return err
	}
	ctx := context.Background()
	r, err := s.Open(ctx, strategy.Env{
		Dir: o.Dir, URLs: o.URLs, Place: o.Place, LeaseTTL: o.LeaseTTL, Known: o.Known, Conns: 4, Effects: ledger,
	})
	if err != nil {
		return err
	}
	var passed atomic.Int64
	pause := func(_ context.Context, at strategy.Point) error {
		if at == o.Kill && passed.Add(1) == o.KillAfter {
			kill()
		}
		return nil
	}
	if o.Storm {
		return errors.Join(o.storm(ctx, r), r.Close(), ledger.Close(), acks.Close())
	}
	var wg sync.WaitGroup
	errs := make([]error, o.Callers)
	for c := range o.Callers {
		wg.Go(func() {
			for i, key := range o.Keys {
				if i%o.Callers != c {
					continue
				}
				op := operation(key, fmt.Sprintf("worker %d.%d", os.Getpid(), c))
				op.Work, op.Pause = o.Work, pause
				ok, err := settle(ctx, r, op)
				if !ok {
					errs[c] = errors.Join(errs[c], fmt.Errorf("%s is stuck: %w", key, err))
				} else if err := acks.Apply(ctx, key, ""); err != nil {
					errs[c] = errors.Join(errs[c], err)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, r.Close(), ledger.Close(), acks.Close())...)
}

// storm says that the store is open, and for each key is told when to begin, and tells
// what came of it.
func (o *orders) storm(ctx context.Context, r strategy.Runner) error {
	told, tell := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := tell.Encode(ready); err != nil {
		return err
	}
	for _, key := range o.Keys {
		var begin time.Time
		if err := told.Decode(&begin); err != nil {
			return fmt.Errorf("a worker waits for a beginning: %w", err)
		}
		if err := tell.Encode(burst(ctx, r, key, o.Callers, o.Work, begin, fmt.Sprintf("worker %d", os.Getpid()))); err != nil {
			return err
		}
	}
	return nil
}

// ready is what a worker says when it has opened the store.
const ready = "ready"

// kill ends this process as the kernel does when memory runs out: nothing is closed.
func kill() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		p.Kill()
	}
	select {} // the signal is on its way; nothing more may happen here
}

// worker is a process that works in a world.
type worker struct {
	world *world
	ctx   context.Context // of its life
	name  string
	cmd   *exec.Cmd
	said  bytes.Buffer
	in    io.WriteCloser // in a storm, like out
	out   *json.Decoder
}

// worker starts a worker in the world.
func (w *world) worker(ctx context.Context, o orders) (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.Strategy = w.strategy.Info().Name
	o.Dir, o.URLs, o.Place, o.LeaseTTL, o.Known = w.env.Dir, w.env.URLs, w.env.Place, w.env.LeaseTTL, w.env.Known
	o.Ledger, o.Acks, o.Keys = w.ledgerPath(), w.acksPath(), w.keys
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &worker{world: w, ctx: ctx, name: o.Strategy, cmd: exec.CommandContext(ctx, exe)}
	p.cmd.Env = append(os.Environ(), envOrders+"="+string(text))
	p.cmd.Stderr = &p.said
	if o.Storm {
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		p.out = json.NewDecoder(out)
	}
	return p, p.cmd.Start()
}

// ready waits until the worker of a storm has opened the store.
func (p *worker) ready() error {
	var said string
	if err := p.out.Decode(&said); err != nil || said != ready {
		return p.failed("did not get ready")
	}
	return nil
}

// begin tells it when to begin with the next key.
func (p *worker) begin(at time.Time) error {
	if json.NewEncoder(p.in).Encode(at) != nil {
		return p.failed("has gone")
	}
	return nil
}

// burst waits for what came of the key.
func (p *worker) burst() (b bursted, err error) {
	if p.out.Decode(&b) != nil {
		return b, p.failed("told nothing")
	}
	return b, nil
}

// failed is the end of a worker that should have said more; what it said last is why.
func (p *worker) failed(what string) error {
	_, err := p.wait()
	return errors.Join(fmt.Errorf("a worker of %s %s", p.name, what), err)
}

// wait waits for the worker's end and tells whether it was killed. What it was told is
// added to the world's acknowledgements.
func (p *worker) wait() (killed bool, err error) {
	if p.in != nil {
		_ = p.in.Close() // a worker that still waits for a beginning waits no longer
	}
	ended := p.cmd.Wait()
	if err := p.ctx.Err(); err != nil {
		return false, err
	}
	if err := p.world.readAcks(p.ctx); err != nil {
		return false, err
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return true, nil
	}
	if ended != nil {
		return false, fmt.Errorf("a worker of %s: %w: %s", p.name, ended, strings.TrimSpace(p.said.String()))
	}
	return false, nil
}

func (w *world) readAcks(ctx context.Context) error {
	acks, err := strategy.OpenFileLedger(w.acksPath(), false)
	if err != nil {
		return err
	}
	defer acks.Close()
	counts, err := acks.Counts(ctx)
	for key := range counts {
		w.acks[key] = true
	}
	return err
}
