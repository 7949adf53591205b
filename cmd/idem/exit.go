package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/bench/benchcmd"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/cmd/idem/internal/command"
	"github.com/goidem/idem/cmd/idem/internal/storage"
	"github.com/goidem/idem/expiry/policyfile"
)

// Exit statuses of idem itself, taken from sysexits.h and the shell's own where
// one fits, so that they do not meet those that commands use by habit.
const (
	exitSomeFailed  = 1   // idem each: some records failed
	exitUsage       = 64  // the call is wrong
	exitMismatch    = 65  // the key was used for another command
	exitNotFound    = 66  // there is no record
	exitStore       = 69  // the store cannot be used
	exitInternal    = 70  // anything else
	exitDamaged     = 71  // the store, or a record in it, cannot be read
	exitStale       = 73  // the record is not the one to change
	exitGone        = 74  // it happened, its output is not kept any more
	exitInFlight    = 75  // another run is under way; try again later
	exitUnresolved  = 76  // nobody knows whether it happened; a person has to look
	exitConfig      = 78  // the file of policies, or what the store promises
	exitTimeout     = 124 // the command ran longer than --timeout
	exitNoCommand   = 127 // the command could not be started
	exitInterrupted = 130 // stopped by a signal
)

// exitCode explains one status.
type exitCode struct {
	Code    int    `json:"code"`
	Meaning string `json:"meaning"`
	Next    string `json:"next"`
}

// exitCodes is the page that people read.
func exitCodes() []exitCode {
	return []exitCode{
		{0, "done; for idem run also: the command ended with 0, now or earlier", "nothing"},
		{exitSomeFailed, "idem each: some records failed, the others are done; idem bench: a strategy broke its promise, or something got worse", "the same call again, or the file of --failed; look at the report"},
		{exitUsage, "the call is wrong; nothing was run or changed", "idem help COMMAND"},
		{exitMismatch, "the key was used before for another command; nothing was run", "another key, or the first command"},
		{exitNotFound, "there is no record of the key", "check --op, --tenant and --key: idem list"},
		{exitStore, "the store cannot be used: missing, locked, full, no store at all; nothing was run or changed, unless the message says so", "idem doctor"},
		{exitInternal, "anything else", "read the message"},
		{exitDamaged, "the store or a record in it is damaged, or newer than this program; nothing was run or changed", "idem check; restore a copy"},
		{exitStale, "the record is not, or no longer, the one to change; nothing was changed", "idem get, and decide again"},
		{exitGone, "it happened; its result is not kept any more", "nothing: do not run it again"},
		{exitInFlight, "somebody is running it; nothing was run or changed", "the same call later, or --wait"},
		{exitUnresolved, "nobody knows whether it happened, or the key is too old to tell; nothing was run", "find out, then idem resolve, or another key"},
		{exitConfig, "the file of policies is wrong, or the store promises less than required; nothing was run", "mend what the message names"},
		{exitTimeout, "the command was stopped after --timeout; the key is free, what it had done by then stays done", "the same call again, with more time"},
		{exitNoCommand, "the command could not be started; the key is free", "check the command"},
		{exitInterrupted, "stopped by Ctrl-C or a signal", "the same call again"},
	}
}

func newExitCodes() *cobra.Command {
	var long strings.Builder
	long.WriteString("idem run ends with the status of the command, now or on replay. idem's own:\n\n")
	for _, c := range exitCodes() {
		fmt.Fprintf(&long, "  %-4d %s\n       next: %s\n", c.Code, c.Meaning, c.Next)
	}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit statuses mean",
		Long:  strings.TrimSuffix(long.String(), "\n"),
		Example: `  idem help exit-codes
  idem exit-codes --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !asJSON {
				return cmd.Help()
			}
			for _, c := range exitCodes() {
				if err := printJSON(c); err != nil {
					return err
				}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
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

// nextError is an error together with what to type next.
type nextError struct {
	err  error
	next string
}

func (e *nextError) Error() string { return e.err.Error() }
func (e *nextError) Unwrap() error { return e.err }

// withNext says what to type next about an error; nil stays nil.
func withNext(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &nextError{err: err, next: fmt.Sprintf(format, args...)}
}

// errNotTheOne: a record is in a state that the command does not touch.
var errNotTheOne = errors.New("nothing was changed")

// exitStatus maps an error to the status that idem ends with.
func exitStatus(err error) int {
	var (
		exit   *command.ExitError
		start  *command.StartError
		late   *command.TimeoutError
		some   *batchError
		signal *command.SignalError
		usage  *usageError
		store  *storeError
		policy *policyfile.Error
		bench  *benchcmd.Error
	)
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &some):
		return some.code
	case errors.As(err, &bench):
		return bench.Code
	case errors.As(err, &start):
		return exitNoCommand
	case errors.As(err, &late):
		return exitTimeout
	case errors.As(err, &signal):
		return 128 + int(signal.Signal)
	case errors.As(err, &usage), is(idem.ErrInvalidKey, idem.ErrInvalidOption, backend.ErrInvalidRequest):
		return exitUsage
	case errors.As(err, &policy), is(idem.ErrGuarantee):
		return exitConfig
	case is(idem.ErrInFlight, idem.ErrLeaseLost):
		return exitInFlight
	case is(idem.ErrFingerprintMismatch):
		return exitMismatch
	case is(idem.ErrUnresolved, idem.ErrOutcomeUnknown, idem.ErrKeyExpired):
		return exitUnresolved
	case is(idem.ErrResultExpired, idem.ErrResultUnavailable):
		return exitGone
	case is(idem.ErrNotFound):
		return exitNotFound
	case is(idem.ErrStale, errNotTheOne):
		return exitStale
	case is(bolt.ErrDamaged, idem.ErrCorruptRecord, idem.ErrUnknownVersion):
		return exitDamaged
	case is(context.Canceled):
		return exitInterrupted
	case errors.As(err, &store), is(idem.ErrUnavailable):
		return exitStore
	}
	return exitInternal
}

// silent reports whether the error has been shown already: a command that failed
// has said so itself.
func silent(err error) bool {
	var exit *command.ExitError
	var some *batchError
	return errors.As(err, &exit) || errors.As(err, &some)
}

// message is what a person reads: one line that says what happened, and one that
// says what to type next.
func message(err error) string {
	text := err.Error()
	if !strings.HasPrefix(text, "idem:") {
		text = "idem: " + text
	}
	if n := next(err); n != "" {
		text += "\nnext: " + n
	}
	return text
}

// next is what to type after an error; empty where nobody can say.
func next(err error) string {
	var (
		usage   *usageError
		hinted  *nextError
		locked  *bolt.LockError
		missing *storage.MissingError
		bench   *benchcmd.Error
	)
	switch {
	case errors.As(err, &usage):
		return usage.hint
	case errors.As(err, &hinted):
		return hinted.next
	case errors.As(err, &bench):
		return bench.Next
	case errors.As(err, &locked):
		return "wait longer with --lock-wait 30s, or stop the process that keeps the file; nothing was run or changed"
	case errors.As(err, &missing):
		return "name the store with --store or IDEM_STORE, or make one with: idem run"
	case errors.Is(err, bolt.ErrNotStore):
		return "name another file with --store or IDEM_STORE; this one was not touched"
	case errors.Is(err, bolt.ErrDamaged):
		return "idem check; then restore a copy, never an empty file: it would forget every key"
	case errors.Is(err, idem.ErrUnknownVersion):
		return "update idem"
	case errors.Is(err, bolt.ErrFull):
		return "make room (idem sweep, idem compact), then the same command again"
	case errors.Is(err, idem.ErrStale):
		return "look again with idem get, and decide again"
	}
	switch idem.Advise(err) {
	case idem.AdviceRetry:
		return "the same command again, with the same key"
	case idem.AdviceAsk:
		return "look at it with: idem get --op OPERATION --key KEY"
	}
	return ""
}
