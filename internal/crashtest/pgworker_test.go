package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// envOrders holds the orders of a worker on a SQL server.
const envOrders = "IDEM_CRASH_ORDERS"

// pgOrders are what a worker process does: this test binary, started again.
type pgOrders struct {
	Task    string // "work", "storm" or "stop"
	Kind    pgKind
	URL     string
	Effects string // path of the ledger outside
	Acks    string // path of the ledger of acknowledgements
	Keys    []string
	Conns   int
	Lease   time.Duration // zero: idem's default

	Point point // kill yourself here
	After int64 // at this passage

	Seed    uint64
	Entered string // a file that the worker makes when it is ready
	Go      string // a file that it waits for
}

// spawn starts a worker.
func spawn(t *testing.T, o pgOrders) (cmd *exec.Cmd, out *tail) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd, out = exec.Command(exe), &tail{}
	cmd.Env = append(os.Environ(), envOrders+"="+string(text))
	cmd.Stderr = out
	return cmd, out
}

// obey carries out a worker's orders.
func obey(text string) error {
	var o pgOrders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	effects, err := openLedger(o.Effects)
	if err != nil {
		return err
	}
	defer effects.close()
	acks, err := openLedger(o.Acks)
	if err != nil {
		return err
	}
	defer acks.close()
	c, err := newCaller(ctx, o.Kind, o.URL, o.Conns, o.Lease, effects)
	if err != nil {
		return err
	}
	defer c.close()
	switch o.Task {
	case "work":
		return o.work(ctx, c, acks)
	case "storm":
		return o.storm(ctx, c)
	case "stop":
		return o.stop(ctx, c, acks)
	}
	return fmt.Errorf("task %q", o.Task)
}

// work settles each key once, until it is killed at its point.
func (o pgOrders) work(ctx context.Context, c *caller, acks *ledger) error {
	var passed atomic.Int64
	c.at = func(here point, _ string) {
		if here == o.Point && passed.Add(1) == o.After {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way; nothing more may happen here
		}
	}
	const goroutines = 4
	errs := make(chan error, goroutines)
	var wg sync.WaitGroup
	for n := range goroutines {
		wg.Go(func() {
			for i := n; i < len(o.Keys); i += goroutines {
				a := c.call(ctx, o.Keys[i], faultWait)
				if a.err == nil {
					a.err = acks.add(o.Keys[i] + " " + a.value)
				}
				if a.err != nil {
					errs <- fmt.Errorf("%s: %w", o.Keys[i], a.err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs // nil if there is none
}

// touch makes an empty file.
func touch(path string) error { return os.WriteFile(path, nil, 0o600) }

// await polls for a file.
func await(ctx context.Context, path string) error {
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%s did not come: %w", path, ctx.Err())
}

// killedBy reports whether a process that has been waited for died of SIGKILL.
func killedBy(cmd *exec.Cmd) bool {
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// oneLine is an error's text on one line of a ledger.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
