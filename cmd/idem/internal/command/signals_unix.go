//go:build unix

package command

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// current is the program that is running, for those who have signals for it.
type current struct {
	mu      sync.Mutex
	p       *process
	already bool // a program has run
	stops   int
}

// begin starts a program unless ctx has ended, so that a signal either prevents
// the start or reaches the program.
func (c *current) begin(ctx context.Context, p *process, start func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := start(); err != nil {
		return err
	}
	c.p, c.already = p, true
	return nil
}

func (c *current) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.p = nil
}

// forwarded are the signals that reach the program through idem.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

// Forward hands the signals that this process gets to the program while it runs;
// what it makes of them, and how it then ends, decides about the key. A second
// request to stop (INT or TERM) kills it. Before the program runs, a signal that
// asks to stop calls cancel with a *[SignalError]; after its end there is only the
// record to write, and signals are ignored. The returned function ends this.
func (s *Spec) Forward(cancel context.CancelCauseFunc) (stop func()) {
	// SIGPIPE is caught, not ignored: a reader that goes away must not end idem in
	// the middle of a run, and an ignored signal would be inherited.
	list := []os.Signal{unix.SIGPIPE}
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // nohup, or a background job of a shell
			list = append(list, sig)
		}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, list...)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-signals:
				s.running.dispatch(sig.(syscall.Signal), cancel)
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// dispatch hands one signal on.
func (c *current) dispatch(sig syscall.Signal, cancel context.CancelCauseFunc) {
	if sig == unix.SIGPIPE {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	asksToStop := sig == unix.SIGINT || sig == unix.SIGTERM
	switch {
	case c.p == nil:
		if !c.already && (asksToStop || sig == unix.SIGHUP || sig == unix.SIGQUIT) {
			cancel(&SignalError{Signal: sig})
		}
		return
	case asksToStop:
		c.stops++
	}
	switch {
	case asksToStop && c.stops > 1:
		c.p.signal(unix.SIGKILL)
	case !c.p.own && (sig == unix.SIGINT || sig == unix.SIGQUIT):
		// In a terminal's foreground group the program has got it already.
	default:
		c.p.signal(sig)
	}
}
