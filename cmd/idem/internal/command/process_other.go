//go:build !unix

package command

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"sync"
)

// current is the program that is running; there are no signals to hand on here.
type current struct{}

// Forward does nothing: this system has no signals.
func (s *Spec) Forward(_ context.CancelCauseFunc) (stop func()) { return func() {} }

// program starts the program and waits for it. There are no process groups here.
func (s *Spec) program(ctx context.Context, env []string, out *output) (int, error) {
	inner := ctx
	if s.Timeout > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeoutCause(ctx, s.Timeout, &TimeoutError{After: s.Timeout})
		defer cancel()
	}
	cmd := exec.CommandContext(inner, s.Args[0], s.Args[1:]...)
	cmd.Env, cmd.WaitDelay = env, stopGrace
	if s.Stdin != nil {
		cmd.Stdin = s.Stdin
	}
	if s.Input != nil {
		cmd.Stdin = bytes.NewReader(s.Input)
	}
	var mu sync.Mutex
	cmd.Stdout, cmd.Stderr = &stream{mu: &mu, out: out}, &stream{mu: &mu, out: out, stderr: true}
	if err := cmd.Start(); err != nil {
		return 0, &StartError{Err: err}
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case inner.Err() != nil:
		return 0, context.Cause(inner)
	case errors.As(err, &exit):
		return exit.ExitCode(), nil
	}
	return 0, err
}

type stream struct {
	mu     *sync.Mutex
	out    *output
	stderr bool
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.write(p, s.stderr)
	return len(p), nil
}
