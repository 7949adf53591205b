package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

// runFlags are the flags of idem run besides those that it shares with idem each.
type runFlags struct {
	execFlags
	key       string
	hashFiles []string
	hashStdin bool
	noOutput  bool
	maxOutput int
	quiet     bool
}

func newRun(store *string) *cobra.Command {
	var o runFlags
	cmd := &cobra.Command{
		Use:   "run --op OPERATION --key KEY [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command once per key",
		Long: `Runs COMMAND once per key. A later call with the same key does not run it: it
replays what the command wrote and ends with the same status, and says so on
standard error. A command that ends with a status other than zero gives its key
back, and the next call runs it again, unless --final-codes names that status:
then it is stored and replayed like a success.

The same key with another command line is refused. --hash-file and --hash-stdin
compare the contents of files and of the input as well; --no-hash leaves the
command line out. While another process runs the command for the key, idem ends
with status 75, or waits with --wait.

What the command writes is shown at once, and up to --max-output bytes of it are
kept; beyond that the run counts all the same, and later calls end with status 74.
A reader that goes away does not stop the command. With --no-output only the
status is kept.

The command finds IDEM_KEY, IDEM_DERIVED_KEY, IDEM_ATTEMPT, IDEM_FENCE,
IDEM_TOOK_OVER, IDEM_OPERATION and IDEM_TENANT in its environment. Pass
IDEM_DERIVED_KEY to services that take an idempotency key of their own.

Signals are handed on to the command and its children; how it then ends decides. A
second Ctrl-C kills it. If the lease is lost or idem is killed, the command is
killed too; only a child that has left its process group (a daemon) or a set-uid
program can escape. At a terminal the command stays in idem's process group, so
that it can read; then only the command itself is stopped, not its children.

If idem is killed while the command runs, nobody knows how far it came. The key is
blocked until its lease ends. Then --on-abandoned decides: rerun runs the command
again, hold lets nothing run until idem resolve. --recover asks a shell command
first: status 0 says that it happened (its output becomes the result), 1 that it
did not; anything else leaves the key as it was.`,
		Example: `  idem run --op billing.close --key 2026-11 -- ./close-month.sh
  idem run --op demo.charge --key order-1001 -- sh -c 'echo charged >> ledger.txt; echo receipt-42'
  idem run --op backup --key "$(date +%F)" --wait 1m --no-output -- ./backup.sh /srv
  idem run --op payout --key "$ID" --on-abandoned hold --final-codes 3,10-19 -- ./payout "$ID"
  idem run --op import --key "$(idem key file data.csv)" --recover './imported.sh' -- ./import.sh data.csv
  idem run --op mail --key "$ID" --hash-stdin -- sendmail -t < message`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return &usageError{err: errors.New("idem: the command to run goes behind --; nothing was run"), hint: "idem help run"}
			}
			return requireFlags(cmd, "op", "key")
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runOnce(cmd, *store, &o, args) },
	}
	f := cmd.Flags()
	o.bind(cmd)
	f.StringVar(&o.key, "key", "", "idempotency key: the same for every retry of one intent")
	f.StringArrayVar(&o.hashFiles, "hash-file", nil, "compare the contents of this file, too (repeatable)")
	f.BoolVar(&o.hashStdin, "hash-stdin", false, "compare the input, too: read it all, at most 64 MiB, then give it to the command")
	f.BoolVar(&o.noOutput, "no-output", false, "keep the exit status only, not the output")
	f.IntVar(&o.maxOutput, "max-output", command.DefaultMaxOutput, "keep at most this many bytes of output")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not say that a result was replayed")
	return cmd
}

// Limits of what is kept in memory and in a record.
const (
	maxStdin  = 64 << 20
	maxOutput = 11 << 20 // as base64 it fits a record
)

// testEnded is called between a command's end and the record of it. Tests set it.
var testEnded func()

// runOnce is idem run behind its flags.
func runOnce(cmd *cobra.Command, storeName string, o *runFlags, args []string) error {
	if o.maxOutput < 0 || o.maxOutput > maxOutput {
		return &usageError{err: fmt.Errorf("idem: --max-output must be between 0 and %d bytes; nothing was run", maxOutput), hint: "idem help run"}
	}
	if o.maxOutput == 0 {
		o.noOutput = true
	}
	call, err := o.complete(cmd)
	if err != nil {
		return err
	}
	spec := &command.Spec{
		Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		MaxOutput: o.maxOutput, NoOutput: o.noOutput,
		Final: o.final, Timeout: o.timeout, OwnGroup: !term.IsTerminal(int(os.Stdin.Fd())),
		Ended: testEnded,
		LeftBehind: func() {
			fmt.Fprintln(os.Stderr, "idem: the command has ended and left a process behind that keeps its output open; what that writes from now on is lost")
		},
	}
	// From here on signals are this call's business.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer cancel(nil)
	defer spec.Forward(cancel)()

	if err := o.fingerprint(spec); err != nil {
		return err
	}
	options, err := o.options(o.noOutput)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, storeName, true, options)
	if err != nil {
		return err
	}
	key := idem.Key(o.key)
	if o.recover != "" {
		call = append(call, command.Recover(o.recover, o.scope, key, os.Stderr))
	}
	res, err := spec.Run(ctx, s, o.scope, key, call...)
	if res.Replayed && !o.quiet && !res.CompletedAt.IsZero() && (err == nil || silent(err)) {
		fmt.Fprintf(os.Stderr, "idem: replayed %v: attempt %d completed at %s%s\n", o.scope, res.Attempt,
			res.CompletedAt.Local().Format(time.DateTime), aside(&res.Value))
	}
	if err != nil && !silent(err) {
		if stopped := (*command.SignalError)(nil); errors.As(context.Cause(ctx), &stopped) {
			return stopped
		}
		return o.advise(err)
	}
	return err
}

// aside is what is worth a word about a replayed outcome.
func aside(out *command.Outcome) string {
	text := ""
	if out.Exit != 0 {
		text += fmt.Sprintf(" with status %d, which is final", out.Exit)
	}
	if out.NotKept {
		text += "; its output was not kept"
	}
	return text
}

// advise adds the command to type next, with the names filled in.
func (o *runFlags) advise(err error) error {
	named := (&target{scope: o.scope, key: o.key}).flags()
	is := func(target error) bool { return errors.Is(err, target) }
	var late *command.TimeoutError
	switch {
	case errors.As(err, &late):
		return withNext(err, "the same command again, with a longer --timeout")
	case is(idem.ErrInFlight):
		return withNext(err, "the same command again later, or with --wait 1m; who runs it: idem get %s", named)
	case is(idem.ErrFingerprintMismatch):
		return withNext(err, "idem get %s; a new intent needs a new key", named)
	case is(idem.ErrUnresolved), is(idem.ErrOutcomeUnknown), is(idem.ErrLeaseLost), is(idem.ErrResultExpired), is(idem.ErrResultUnavailable):
		return withNext(err, "idem get %s", named)
	}
	return err
}

// fingerprint decides what the call is compared by.
func (o *runFlags) fingerprint(spec *command.Spec) error {
	var in command.Inputs
	if !o.noHash {
		in.Args = spec.Args
	}
	for _, name := range o.hashFiles {
		sum, err := fileDigest(name)
		if err != nil {
			return err
		}
		in.Files = append(in.Files, sum)
	}
	if o.hashStdin {
		data, err := io.ReadAll(io.LimitReader(os.Stdin, maxStdin+1))
		switch {
		case err != nil:
			return &usageError{err: fmt.Errorf("idem: --hash-stdin: the input cannot be read: %w; nothing was run", err), hint: "idem help run"}
		case len(data) > maxStdin:
			return &usageError{err: fmt.Errorf("idem: --hash-stdin: the input is longer than %d MiB; nothing was run", maxStdin>>20), hint: "put it into a file and name that with --hash-file"}
		}
		in.Stdin, in.Piped = sha256.Sum256(data), true
		spec.Input = data // never nil
	}
	spec.Hash = in.Fingerprint()
	return nil
}

// fileDigest is the SHA-256 of a file's contents.
func fileDigest(name string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(name)
	if err == nil {
		defer f.Close()
		h := sha256.New()
		if _, err = io.Copy(h, f); err == nil {
			h.Sum(sum[:0])
			return sum, nil
		}
	}
	return sum, &usageError{err: fmt.Errorf("idem: the file to hash cannot be read: %w; nothing was run", err), hint: "check the path"}
}
