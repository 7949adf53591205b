package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/goidem/idem"
)

// ExitError is a program that ended with a status other than zero. Unless it is
// final the key was released: the next call runs it again.
type ExitError struct {
	Code  int
	Final bool
}

// Error names the status.
func (e *ExitError) Error() string {
	if e.Final {
		return fmt.Sprintf("idem: the command ended with exit status %d, which is final", e.Code)
	}
	return fmt.Sprintf("idem: the command ended with exit status %d; its key is free again", e.Code)
}

// StartError is a program that could not be started.
type StartError struct{ Err error }

// Error names the cause.
func (e *StartError) Error() string {
	return "idem: the command could not be started, its key is free again: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// TimeoutError is a program that was stopped because its time was over.
type TimeoutError struct{ After time.Duration }

// Error names the time.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("idem: the command was stopped after %v (--timeout); its key is free again, and what it had done by then stays done", e.After)
}

// SignalError is a signal that arrived while no program was running.
type SignalError struct{ Signal syscall.Signal }

// Error names the signal.
func (e *SignalError) Error() string {
	return fmt.Sprintf("idem: stopped by a signal (%v) before the command was started; nothing was run", e.Signal)
}

// LostError is a program that was killed because its lease could not be kept.
type LostError struct {
	Scope idem.Scope
	Err   error
}

// Error says what it means.
func (e *LostError) Error() string {
	return fmt.Sprintf("idem: lease lost: %v: the store could not be reached for a whole lease, or somebody took the key; the command was killed, how far it came was not recorded, and another run may have begun", e.Scope)
}

// Unwrap returns the store's error.
func (e *LostError) Unwrap() error { return e.Err }

// DroppedError is an earlier run whose output was longer than what is kept. It
// matches [idem.ErrResultUnavailable].
type DroppedError struct {
	Scope         idem.Scope
	Exit, Attempt int
	At            time.Time
}

// Error tells about the run.
func (e *DroppedError) Error() string {
	return fmt.Sprintf("idem: output was not kept: %v: the command ran at %s (attempt %d) and ended with status %d; it wrote more than --max-output, so there is nothing to replay, and it is not run again",
		e.Scope, e.At.Local().Format(time.DateTime), e.Attempt, e.Exit)
}

// Is reports whether target is idem.ErrResultUnavailable.
func (e *DroppedError) Is(target error) bool { return target == idem.ErrResultUnavailable }

// RecoverError is a --recover command that could not say whether the abandoned
// run took effect. It matches [idem.ErrUnresolved].
type RecoverError struct {
	Scope idem.Scope
	Err   error // how the command ended
}

// Error tells how the command ended.
func (e *RecoverError) Error() string {
	return fmt.Sprintf("idem: unresolved: %v: an earlier run was cut off, and --recover could not say whether it took effect (%v; 0 means it did, 1 that it did not); nothing was run, the key stays as it was", e.Scope, e.Err)
}

// Is reports whether target is idem.ErrUnresolved.
func (e *RecoverError) Is(target error) bool { return target == idem.ErrUnresolved }

// Unwrap returns how the command ended.
func (e *RecoverError) Unwrap() error { return e.Err }

// isClosedPipe reports whether a write failed because nobody reads any more.
func isClosedPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed)
}
