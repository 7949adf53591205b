//go:build unix

package command

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goidem/idem"
)

// process is a program that was started and has not been waited for. It is made
// with the system's own calls: its output, its end and the requests to stop it
// have to be seen together, and a batch starts thousands.
type process struct {
	pid, pidfd int
	own        bool // it leads a process group
	guard      *guard

	mu      sync.Mutex
	ended   bool // its number may be given to another process from now on
	killing *time.Timer
}

// signal sends sig to the program and, where it has a group of its own, to all of
// its children.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
	case p.own:
		_ = unix.Kill(-p.pid, sig)
	default:
		_ = unix.Kill(p.pid, sig)
	}
}

// stop asks the program to end, and makes it when it has not after a while.
func (p *process) stop() {
	p.signal(unix.SIGTERM)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killing == nil && !p.ended {
		p.killing = time.AfterFunc(stopGrace, func() { p.signal(unix.SIGKILL) })
	}
}

// over notes that the program has ended: nothing is sent to it any more.
func (p *process) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.killing != nil {
		p.killing.Stop()
	}
}

// program starts the program, stays with it until it has ended, and returns its
// exit status.
func (s *Spec) program(ctx context.Context, env []string, out *output) (int, error) {
	path := s.Path
	if path == "" {
		var err error
		if path, err = exec.LookPath(s.Args[0]); err != nil {
			return 0, &StartError{Err: err}
		}
	}
	// Linux sends the signal for the parent's death when the thread dies that
	// started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	streams, err := s.streams(out)
	if err != nil {
		return 0, &StartError{Err: err}
	}
	defer streams.close()
	p := &process{pidfd: -1, own: s.OwnGroup}
	err = s.running.begin(ctx, p, func() (err error) {
		p.pid, err = syscall.ForkExec(path, s.Args, &syscall.ProcAttr{Env: env, Files: streams.child[:], Sys: attributes(p)})
		return err
	})
	streams.started()
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return 0, &StartError{Err: startProblem(s.Args[0], err)}
	}
	defer s.running.end()

	done := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), idem.ErrLeaseLost) {
			p.signal(unix.SIGKILL) // its successor may be starting
			return
		}
		p.stop()
	})
	defer done()
	late := make(chan struct{})
	if s.Timeout > 0 {
		timer := time.AfterFunc(s.Timeout, func() {
			close(late)
			p.stop()
		})
		defer timer.Stop()
	}
	if p.own {
		p.guard = newGuard(p)
		defer p.guard.end()
	}

	status, left, err := streams.follow(p)
	if left && s.LeftBehind != nil {
		s.LeftBehind()
	}
	select {
	case <-late:
		return 0, &TimeoutError{After: s.Timeout}
	default:
	}
	switch {
	case err != nil:
		return 0, err
	case status != 0 && ctx.Err() != nil:
		return 0, context.Cause(ctx)
	}
	return status, nil
}

// wait collects the program, which has ended, or waits until it has.
func (p *process) wait() (int, error) {
	if p.pidfd >= 0 {
		p.over() // before its number is free
	}
	var ws unix.WaitStatus
	_, err := ignoringEINTR(func() (int, error) { return unix.Wait4(p.pid, &ws, 0, nil) })
	p.over()
	switch {
	case err != nil:
		return 0, os.NewSyscallError("wait4", err)
	case ws.Signaled():
		return 128 + int(ws.Signal()), nil // as a shell reports it
	}
	return ws.ExitStatus(), nil
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// startProblem says why a program did not start. The system has one number for
// two of the reasons.
func startProblem(name string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return &exec.Error{Name: name, Err: errors.New("it, or the interpreter that its first line names, does not exist")}
	}
	return &exec.Error{Name: name, Err: err}
}
