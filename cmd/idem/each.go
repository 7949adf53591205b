package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/batch"
	"github.com/goidem/idem/cmd/idem/internal/command"
	"github.com/goidem/idem/cmd/idem/internal/storage"
)

// eachFlags are the flags of idem each besides those that it shares with idem run.
type eachFlags struct {
	execFlags
	format     string
	key        string
	jobs       int
	failed     string
	progress   string
	failFast   bool
	json       bool
	dryRun     bool
	shared     bool
	keepOutput bool
}

func newEach(store *string) *cobra.Command {
	var o eachFlags
	cmd := &cobra.Command{
		Use:   "each --op OPERATION --key TEMPLATE [flags] [FILE] -- COMMAND [ARGUMENT...]",
		Short: "Run a command once per record of a file",
		Long: `Runs COMMAND once for each record of FILE, or of standard input: a line, a row of a
CSV file with a header, or a JSON object on a line of its own. The key of a record
and each argument are Go templates over its fields: {{.line}} and {{.number}} for
lines, column names for CSV, members for JSON lines; join, lower, upper, trim and
env may be called. A field that is not there is refused before anything is run.

To resume after a crash, a kill or Ctrl-C, run the same call again: records that
are done are passed over. Records with the same key are run once. A record whose
command fails gives its key back; --failed FILE collects such records in the
format of the input, so that they can be fed in again.

The store's file is kept open by this call alone, which is fast: what many records
have to store is written together, and a batch that was killed can be resumed at
once. Other commands have to wait meanwhile; --shared opens the file for each step
instead. Under --on-abandoned hold and --recover each start is written down first.

What a command writes is passed on when it has ended, in one piece. Only its status
is kept, unless --keep-output is given; then it is replayed, too. The commands read
nothing: their standard input is empty.

The first Ctrl-C starts nothing more and waits for what is running; a second one,
or a TERM signal, stops that as well. Statuses: 0 all records are done, 1 some
failed, 75 others are running some, 76 some are unresolved; 130 stopped.`,
		Example: `  idem each --op thumbs --key '{{.line}}' files.txt -- convert {{.line}} {{.line}}.png
  idem each --op payout --key '{{.id}}' --format csv --jobs 8 --failed again.csv payouts.csv -- ./pay {{.id}} {{.amount}}
  jq -c '.users[]' all.json | idem each --op invite --key '{{join .team .mail}}' --format jsonl -- ./invite {{.mail}}
  idem each --op payout --key '{{.id}}' --format csv --dry-run payouts.csv -- ./pay {{.id}} {{.amount}}`,
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash < 0 || dash == len(args) {
				return &usageError{err: errors.New("idem: the command to run goes behind --; nothing was run"), hint: "idem help each"}
			}
			if dash > 1 {
				return &usageError{err: fmt.Errorf("idem: one FILE is read, not %d; nothing was run", dash), hint: "cat " + args[0] + " ... | idem each"}
			}
			return requireFlags(cmd, "op", "key")
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			name := "-"
			if dash == 1 {
				name = args[0]
			}
			return runEach(cmd, *store, &o, name, args[dash:])
		},
	}
	o.bind(cmd)
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "template of the key, such as '{{.id}}'")
	f.StringVar(&o.format, "format", "lines", "what the records are: lines, csv or jsonl")
	f.IntVarP(&o.jobs, "jobs", "j", runtime.GOMAXPROCS(0), "how many commands run at the same time")
	f.StringVar(&o.failed, "failed", "", "write records that did not succeed to this file")
	f.StringVar(&o.progress, "progress", "auto", "how progress is shown: auto, plain or none")
	f.BoolVar(&o.json, "json", false, "no progress; the summary as JSON on standard error")
	f.BoolVar(&o.failFast, "fail-fast", false, "start nothing more after a failure")
	f.BoolVarP(&o.dryRun, "dry-run", "n", false, "run nothing: say what would be run and what is done")
	f.BoolVar(&o.shared, "shared", false, "share the store's file with other commands meanwhile (slower)")
	f.BoolVar(&o.keepOutput, "keep-output", false, "keep what the commands write, and replay it")
	return cmd
}

// batchError is a batch in which not all came out well. The summary has said so.
type batchError struct{ code int }

func (e *batchError) Error() string {
	return fmt.Sprintf("idem: the batch ended with status %d", e.code)
}

// runEach is idem each behind its flags.
func runEach(cmd *cobra.Command, storeName string, o *eachFlags, name string, args []string) error {
	call, err := o.complete(cmd)
	if err != nil {
		return err
	}
	progress := batch.Progress(o.progress)
	switch {
	case o.json && o.dryRun:
		return o.wrong("--json is for the summary of a run; a dry run has none")
	case o.jobs < 1:
		return o.wrong("--jobs must be at least 1")
	case progress != batch.Auto && progress != batch.Plain && progress != batch.None:
		return o.wrong("--progress takes auto, plain or none, not %q", o.progress)
	}
	if o.json {
		progress = batch.JSON
	}
	templates, err := batch.Parse(o.key, args)
	if err != nil {
		return &usageError{err: fmt.Errorf("%w; nothing was run", err), hint: "idem help each"}
	}
	in, err := openRecords(name, o.format, templates)
	if err != nil {
		return err
	}
	defer in.Close()
	if o.dryRun {
		return o.rehearse(cmd, storeName, in, templates)
	}
	path := ""
	if program, same := templates.Program(); same {
		if path, err = exec.LookPath(program); err != nil {
			return &command.StartError{Err: err}
		}
	}
	failed, err := o.openFailed(in)
	if err != nil {
		return err
	}
	if failed != nil {
		defer failed.Close()
	}
	s, done, err := o.open(cmd.Context(), storeName)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer cancel(nil)
	counts := new(batch.Counts)
	b := &batch.Batch{
		Source: in.source, Templates: templates, Jobs: o.jobs, FailFast: o.failFast,
		Screen: batch.NewScreen(os.Stdout, os.Stderr, progress, in.total, counts), Counts: counts,
	}
	if failed != nil {
		b.Failed = failed
	}
	env := command.Environ()
	b.Do = func(ctx context.Context, key idem.Key, args []string, stdout, stderr io.Writer) (idem.Result[command.Outcome], error) {
		spec := &command.Spec{
			Args: args, Path: path, Env: env, Stdout: stdout, Stderr: stderr,
			NoOutput: !o.keepOutput, Final: o.final, Timeout: o.timeout, OwnGroup: true, Ended: testEnded,
			Hash: idem.NoFingerprint(),
		}
		if !o.noHash {
			spec.Hash = (&command.Inputs{Args: args}).Fingerprint()
		}
		opts := call
		if o.recover != "" {
			opts = append(call[:len(call):len(call)], command.Recover(o.recover, o.scope, key, stderr))
		}
		return spec.Run(ctx, s, o.scope, key, opts...)
	}
	interrupted := o.watch(b, cancel)
	err = b.Run(ctx)
	sig := interrupted()
	b.Screen.Close()
	if cerr := done(); err == nil && cerr != nil {
		err = &storeError{err: cerr}
	}
	switch {
	case err != nil:
		return err
	case sig != 0:
		return &batchError{code: 128 + int(sig)}
	case counts.Of(batch.Unresolved) > 0:
		return &batchError{code: exitUnresolved}
	case counts.Of(batch.Failed) > 0:
		return &batchError{code: exitSomeFailed}
	case counts.Of(batch.InFlight) > 0:
		return &batchError{code: exitInFlight}
	case counts.Bad() > 0:
		return &batchError{code: exitSomeFailed}
	}
	return nil
}

// open opens the store: for this call alone, unless it is to be shared. done closes
// it.
func (o *eachFlags) open(ctx context.Context, name string) (s *idem.Store, done func() error, err error) {
	options, err := o.options(!o.keepOutput)
	if err != nil {
		return nil, nil, err
	}
	if o.shared {
		s, err = openStore(ctx, name, true, options)
		return s, func() error { return nil }, err
	}
	file, err := openBackend(ctx, name, storage.Build)
	if err != nil {
		return nil, nil, err
	}
	if s, err = over(file, options); err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return s, file.Close, nil
}

// watch hands signals to the batch. The returned function ends that and says which
// signal there was, if any.
func (o *eachFlags) watch(b *batch.Batch, cancel context.CancelCauseFunc) func() syscall.Signal {
	list := []os.Signal{syscall.SIGPIPE}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			list = append(list, sig)
		}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, list...)
	var first syscall.Signal
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s := range signals {
			sig, _ := s.(syscall.Signal)
			if sig == syscall.SIGPIPE {
				continue
			}
			b.Stop()
			switch {
			case first == 0 && sig == syscall.SIGINT:
				b.Screen.Say("idem: starting nothing more, waiting for %d commands; Ctrl-C again stops them", b.Counts.Running())
			default:
				cancel(&command.SignalError{Signal: sig})
			}
			if first == 0 {
				first = sig
			}
		}
	}()
	return func() syscall.Signal {
		signal.Stop(signals)
		close(signals)
		<-ended
		return first
	}
}
