package combine

import (
	"errors"
	"fmt"
)

// ErrNoAnswer says that the batch of a call ended without an answer for it: run panicked,
// left by Goexit, or forgot the item. What became of the call is unknown.
//
// lint:const a sentinel error
var ErrNoAnswer = errors.New("combine: the batch ended without an answer")

// Error is what Do returns when it has no answer of run to return: the caller's context
// ended, or the batch broke. Err is the context's error or [ErrNoAnswer].
type Error struct {
	// Sent says that run had been given the call: its outcome is unknown. Otherwise
	// nothing of it was or will be sent, and a retry is safe.
	Sent bool

	Err error
}

// Error says whether a retry is safe.
func (e *Error) Error() string {
	if e.Sent {
		return fmt.Sprintf("combine: gave up after the call was sent, its outcome is unknown: %v", e.Err)
	}
	return fmt.Sprintf("combine: gave up before the call was sent, a retry is safe: %v", e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// PanicError is the value of the panic that Do raises when run panicked in a batch, which
// runs on another goroutine. A caller that goes direct sees run's own panic.
type PanicError struct {
	Value any    // what run panicked with
	Stack []byte // where
}

// Error shows the value and the stack: it is read in the report of a crash.
func (p *PanicError) Error() string {
	return fmt.Sprintf("combine: run panicked: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns the value if it is an error.
func (p *PanicError) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}
