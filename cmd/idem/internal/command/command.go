// Package command runs a program once per idempotency key: it keeps what the
// program wrote and how it ended, and plays that back to every retry.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	Path string   // the program's file; empty means that Args[0] is looked up
	Env  []string // made by [Environ]; nil means that it is made for this run
	// Stdin is the program's input; nil means none. Input, if it is not nil, is
	// given instead.
	Stdin *os.File
	Input []byte
	// Stdout and Stderr get what the program writes, now or on replay.
	Stdout, Stderr io.Writer
	// Hash is what the call is compared by; see [Fingerprint].
	Hash idem.Fingerprint
	// MaxOutput bounds what is kept; beyond it the run counts, and its output
	// cannot be replayed. Zero means DefaultMaxOutput.
	MaxOutput int
	// NoOutput keeps the status only. If Stdout and Stderr are files, the program
	// writes to them directly.
	NoOutput bool
	// Final reports whether an exit status other than zero is final: it is stored
	// and replayed like a success. Nil means that none is.
	Final func(status int) bool
	// Timeout ends the program; zero means never.
	Timeout time.Duration
	// OwnGroup puts the program into a process group of its own, so that it can be
	// stopped with all its children. Not for programs that read a terminal.
	OwnGroup bool
	// Ended, if it is not nil, is called between the program's end and the record
	// of it.
	Ended func()
	// LeftBehind, if it is not nil, is called when the program has ended and
	// another process keeps its output open.
	LeftBehind func()

	running current
}

// Outcome is what is stored of a run. A final exit status other than zero is
// stored in the same way as zero: [idem.Permanent] has no room for the output,
// and says that nothing took effect, which an exit status does not.
type Outcome struct {
	Exit   int     `json:"exit"`
	Output []Piece `json:"output,omitempty"`
	// Dropped says why there is no output: it was longer than what is kept.
	Dropped bool `json:"dropped,omitempty"`
	// NotKept says that the caller asked for the status only.
	NotKept bool `json:"notKept,omitempty"`
}

// Piece is a run of bytes on one stream; pieces are in the order in which they
// arrived.
type Piece struct {
	Stderr bool   `json:"stderr,omitempty"`
	Data   []byte `json:"data"`
}

// Run executes the program for the key, or plays back an earlier run
// (Result.Replayed). A status other than zero is an *[ExitError]; unless it is
// final it releases the key. While the program runs it finds in its environment
// IDEM_KEY, IDEM_DERIVED_KEY (for a call that it makes itself), IDEM_ATTEMPT,
// IDEM_FENCE and IDEM_TOOK_OVER (0 or 1). It is killed, children included where it
// has a group of its own, when the lease is lost. The end of ctx stops it: first
// with a request, then with a kill.
func (s *Spec) Run(ctx context.Context, store *idem.Store, scope idem.Scope, key idem.Key, opts ...idem.CallOption) (idem.Result[Outcome], error) {
	res, err := idem.Execute(ctx, store, scope, key, s.Hash, s.run, opts...)
	switch {
	case err != nil:
		return res, s.explain(err, scope)
	case res.Replayed && res.Value.Dropped:
		return res, &DroppedError{Scope: scope, Exit: res.Value.Exit, Attempt: res.Attempt, At: res.CompletedAt}
	case res.Replayed:
		if err := s.play(res.Value.Output); err != nil {
			return res, err
		}
	}
	if res.Value.Exit != 0 {
		return res, &ExitError{Code: res.Value.Exit, Final: true}
	}
	return res, nil
}

// play writes stored output. A reader that has closed its end has seen enough.
func (s *Spec) play(pieces []Piece) error {
	for _, p := range pieces {
		w := s.Stdout
		if p.Stderr {
			w = s.Stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(p.Data); err != nil && !isClosedPipe(err) {
			return fmt.Errorf("idem: writing the stored output: %w; nothing was run, run it again to get the output", err)
		}
	}
	return nil
}

// run starts the program and waits for it.
func (s *Spec) run(ctx context.Context) (Outcome, error) {
	a := idem.AttemptFrom(ctx)
	env := s.Env
	if env == nil {
		env = Environ()
	}
	env = append(env[:len(env):len(env)], environment(a)...)
	out := &output{stdout: s.Stdout, stderr: s.Stderr, keep: recorder{left: s.MaxOutput, none: s.NoOutput}}
	if out.keep.left == 0 {
		out.keep.left = DefaultMaxOutput
	}
	status, err := s.program(ctx, env, out)
	if err != nil {
		return Outcome{}, err
	}
	if s.Ended != nil {
		s.Ended()
	}
	if status != 0 && (s.Final == nil || !s.Final(status)) {
		return Outcome{}, &ExitError{Code: status}
	}
	o := out.keep.outcome()
	o.Exit = status
	return o, nil
}

// explain gives errors of the store the words of a command line.
func (s *Spec) explain(err error, scope idem.Scope) error {
	var signal *SignalError
	var unknown *RecoverError
	switch {
	case errors.As(err, &signal), errors.As(err, &unknown):
		return err
	case errors.Is(err, idem.ErrLeaseLost):
		return &LostError{Scope: scope, Err: err}
	}
	return err
}
