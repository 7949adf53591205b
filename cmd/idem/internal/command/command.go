// Package command runs a program once per idempotency key: it keeps what the
// program wrote and how it ended, and plays that back to every retry.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/goidem/idem"
)

// DefaultMaxOutput is how much output is kept of a run, both streams together, in
// bytes.
const DefaultMaxOutput = 8 << 20

// stopGrace is how long a program has between the request to stop and the kill.
const stopGrace = 5 * time.Second

// Spec is one program to run.
type Spec struct {
	Args []string // the program and its arguments
	// Stdin, Stdout and Stderr are the program's streams, now or on replay.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// MaxOutput bounds what is kept; beyond it the run counts, and its output
	// cannot be replayed. Zero means DefaultMaxOutput.
	MaxOutput int
	// OwnGroup puts the program into a process group of its own, so that it can be
	// stopped with all its children. Not for programs that read a terminal.
	OwnGroup bool
}

// Fingerprint tells one program line from another.
func (s *Spec) Fingerprint() idem.Fingerprint {
	parts := make([][]byte, len(s.Args))
	for i, a := range s.Args {
		parts[i] = []byte(a)
	}
	return idem.FingerprintBytes(parts...)
}

// Outcome is what is stored of a run.
type Outcome struct {
	Exit   int     `json:"exit"`
	Output []Piece `json:"output"`

	tooLong bool // output beyond the limit: the run counts, its output is not kept
}

// MarshalJSON refuses an outcome whose output was not kept, which makes the store
// keep the run as completed without a result.
func (o Outcome) MarshalJSON() ([]byte, error) {
	if o.tooLong {
		return nil, errors.New("idem: the output is longer than what is kept")
	}
	type plain Outcome
	return json.Marshal(plain(o))
}

// Piece is a run of bytes on one stream; pieces are in the order in which they
// arrived.
type Piece struct {
	Stderr bool   `json:"stderr,omitempty"`
	Data   []byte `json:"data"`
}

// ExitError is a program that ended with a status other than zero. The key was
// released: the next call runs it again.
type ExitError struct{ Code int }

// Error names the status.
func (e *ExitError) Error() string {
	return fmt.Sprintf("idem: the command ended with exit status %d; its key is free again", e.Code)
}

// StartError is a program that could not be started.
type StartError struct{ Err error }

// Error names the cause.
func (e *StartError) Error() string {
	return "idem: the command could not be started: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Run executes the program for the key, or plays back an earlier run
// (Result.Replayed). A status other than zero is an *[ExitError] and releases the
// key. While the program runs it finds in its environment IDEM_KEY,
// IDEM_DERIVED_KEY (for a call that it makes itself), IDEM_ATTEMPT, IDEM_FENCE and
// IDEM_TOOK_OVER (0 or 1). It is stopped when ctx ends or the lease is lost.
func (s *Spec) Run(ctx context.Context, store *idem.Store, scope idem.Scope, key idem.Key, opts ...idem.CallOption) (idem.Result[Outcome], error) {
	res, err := idem.Execute(ctx, store, scope, key, s.Fingerprint(), s.run, opts...)
	if err == nil && res.Replayed {
		for _, p := range res.Value.Output {
			w := s.Stdout
			if p.Stderr {
				w = s.Stderr
			}
			if _, err := w.Write(p.Data); err != nil {
				return res, fmt.Errorf("idem: writing the stored output: %w", err)
			}
		}
	}
	return res, err
}

// run starts the program and waits for it.
func (s *Spec) run(ctx context.Context) (Outcome, error) {
	keep := &recorder{left: s.MaxOutput}
	if keep.left == 0 {
		keep.left = DefaultMaxOutput
	}
	cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
	cmd.Stdin = s.Stdin
	cmd.Stdout = &stream{keep: keep, live: s.Stdout}
	cmd.Stderr = &stream{keep: keep, live: s.Stderr, stderr: true}
	cmd.Env = append(os.Environ(), environment(idem.AttemptFrom(ctx))...)
	cmd.WaitDelay = stopGrace
	stop := setGroup(cmd, s.OwnGroup)
	cmd.Cancel = func() error { return stop(cmd.Process) }
	if err := cmd.Start(); err != nil {
		return Outcome{}, &StartError{Err: err}
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return keep.outcome(), nil
	case ctx.Err() != nil:
		return Outcome{}, context.Cause(ctx)
	case errors.As(err, &exit):
		return Outcome{}, &ExitError{Code: exitCode(exit)}
	}
	return Outcome{}, fmt.Errorf("idem: running the command: %w", err)
}

func environment(a *idem.Attempt) []string {
	tookOver := "0"
	if a.TookOver {
		tookOver = "1"
	}
	return []string{
		"IDEM_KEY=" + string(a.Key),
		"IDEM_DERIVED_KEY=" + string(a.DeriveKey("command")),
		"IDEM_ATTEMPT=" + strconv.Itoa(a.Number),
		"IDEM_FENCE=" + strconv.FormatUint(a.Fence, 10),
		"IDEM_TOOK_OVER=" + tookOver,
	}
}

// recorder keeps the output of both streams in the order of its arrival.
type recorder struct {
	mu     sync.Mutex
	pieces []Piece
	left   int
	over   bool
}

// add keeps p. Once the limit is passed nothing is kept at all: half an output
// must not be replayed as the whole.
func (r *recorder) add(p []byte, stderr bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || len(p) > r.left {
		r.over, r.pieces = true, nil
		return
	}
	r.left -= len(p)
	if n := len(r.pieces); n > 0 && r.pieces[n-1].Stderr == stderr {
		r.pieces[n-1].Data = append(r.pieces[n-1].Data, p...)
		return
	}
	r.pieces = append(r.pieces, Piece{Stderr: stderr, Data: append([]byte{}, p...)})
}

func (r *recorder) outcome() Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return Outcome{tooLong: true}
	}
	return Outcome{Output: r.pieces}
}

// stream writes one stream through to its live end and keeps a copy. A live end
// that fails (a closed pipe) does not stop the program: its work goes on, and the
// output is kept.
type stream struct {
	keep   *recorder
	live   io.Writer
	stderr bool
}

func (s *stream) Write(p []byte) (int, error) {
	s.keep.add(p, s.stderr)
	if s.live != nil {
		if _, err := s.live.Write(p); err != nil {
			s.live = nil
		}
	}
	return len(p), nil
}
