package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

// Exit statuses of idem itself, taken from sysexits.h and the shell's own where
// one fits, so that they do not meet those that commands use by habit.
const (
	exitUsage      = 64  // the call is wrong
	exitMismatch   = 65  // the key was used for another command
	exitStore      = 69  // the store cannot be used
	exitInternal   = 70  // anything else
	exitGone       = 74  // it happened, its output is not kept any more
	exitInFlight   = 75  // another run is under way; try again later
	exitUnresolved = 76  // nobody knows whether it happened; a person has to look
	exitNotFound   = 66  // there is no record
	exitNoCommand  = 127 // the command could not be started
)

func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit statuses mean",
		Long: `idem run ends with the status of the command, now or on replay. idem's own:

  64   the call is wrong
  65   the key was used before for another command
  66   there is no record of the key
  69   the store cannot be used; nothing was run, unless the message says so
  70   anything else
  74   the command ran earlier, its output is not kept any more
  75   the command is being run by somebody else; try again later
  76   nobody knows whether the command took effect; a person has to look
  127  the command could not be started`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// exitStatus maps an error to the status that idem ends with.
func exitStatus(err error) int {
	var (
		exit  *command.ExitError
		start *command.StartError
		usage *usageError
		store *storeError
	)
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &start):
		return exitNoCommand
	case errors.As(err, &usage), is(idem.ErrInvalidKey), is(idem.ErrInvalidOption):
		return exitUsage
	case is(idem.ErrInFlight), is(idem.ErrLeaseLost):
		return exitInFlight
	case is(idem.ErrFingerprintMismatch):
		return exitMismatch
	case is(idem.ErrUnresolved), is(idem.ErrOutcomeUnknown):
		return exitUnresolved
	case is(idem.ErrResultExpired), is(idem.ErrResultUnavailable):
		return exitGone
	case is(idem.ErrNotFound):
		return exitNotFound
	case errors.As(err, &store), is(idem.ErrUnavailable), is(idem.ErrCorruptRecord), is(idem.ErrUnknownVersion):
		return exitStore
	case is(context.Canceled):
		return 130
	}
	return exitInternal
}

// silent reports whether the error has been shown already: a command that failed
// has said so itself.
func silent(err error) bool {
	var exit *command.ExitError
	return errors.As(err, &exit)
}

// message is what a person reads: the error, and what to type next.
func message(err error) string {
	var usage *usageError
	if errors.As(err, &usage) {
		return fmt.Sprintf("%v\nsee: %s", err, usage.hint)
	}
	switch idem.Advise(err) {
	case idem.AdviceRetry:
		return fmt.Sprintf("%v\nrun the same command again with the same key", err)
	case idem.AdviceAsk:
		return fmt.Sprintf("%v\nlook at it with: idem get", err)
	}
	return err.Error()
}
