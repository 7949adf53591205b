package batch

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

// Kind is what became of a record.
type Kind int

// The kinds.
const (
	Executed    Kind = iota // its command was run and succeeded
	Replayed                // it was done before
	Failed                  // its command failed, or was not to be run
	InFlight                // another process is running it
	Unresolved              // nobody knows whether it happened
	Interrupted             // it was stopped
	NotStarted              // the batch ended before its turn
	NoStore                 // the store could not be used
	Gone                    // it was done before, its result is not kept
	kinds
)

// kindOf sorts an error.
func kindOf(err error) Kind {
	var signal *command.SignalError
	var status *command.ExitError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case err == nil:
		return Executed
	case errors.As(err, &status):
		return Failed
	case is(idem.ErrResultExpired), is(idem.ErrResultUnavailable):
		return Gone
	case is(idem.ErrUnresolved), is(idem.ErrOutcomeUnknown), is(idem.ErrLeaseLost):
		return Unresolved
	case is(context.Canceled), errors.As(err, &signal):
		return Interrupted
	case is(idem.ErrInFlight):
		return InFlight
	case is(idem.ErrUnavailable), is(idem.ErrCorruptRecord), is(idem.ErrUnknownVersion):
		return NoStore
	}
	return Failed
}

// Counts are how many records came to what. It is safe for concurrent use.
type Counts struct {
	of      [kinds]atomic.Int64
	running atomic.Int64
}

func (c *Counts) begin()     { c.running.Add(1) }
func (c *Counts) end(k Kind) { c.running.Add(-1); c.add(k) }
func (c *Counts) add(k Kind) { c.of[k].Add(1) }

// Of returns the number of one kind.
func (c *Counts) Of(k Kind) int64 { return c.of[k].Load() }

// Running returns how many commands are running.
func (c *Counts) Running() int64 { return c.running.Load() }

// Done returns how many records have had their turn.
func (c *Counts) Done() (n int64) {
	for k := range c.of {
		if Kind(k) != NotStarted {
			n += c.of[k].Load()
		}
	}
	return n
}

// Bad returns how many records have had their turn and did not succeed.
func (c *Counts) Bad() int64 { return c.Done() - c.Of(Executed) - c.Of(Replayed) }
