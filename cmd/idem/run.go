package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

func newRun(store *string) *cobra.Command {
	var (
		scope idem.Scope
		key   string
		wait  time.Duration
		lease time.Duration
	)
	cmd := &cobra.Command{
		Use:   "run --op OPERATION --key KEY -- COMMAND [ARGUMENT...]",
		Short: "Run a command once per key",
		Long: `Runs COMMAND once per key. A later call with the same key does not run it: it
replays what the command wrote and ends with the same status, and says so on
standard error. A command that ends with a status other than zero gives its key
back: the next call runs it again.

The same key with another command line is refused. While another process runs the
command for the key, idem ends with status 75, or waits with --wait.

The command finds IDEM_KEY, IDEM_DERIVED_KEY, IDEM_ATTEMPT, IDEM_FENCE and
IDEM_TOOK_OVER in its environment. If idem is killed while the command runs, the
key is free again when its lease ends.`,
		Example: `  idem run --op billing.close --key 2026-11 -- ./close-month.sh
  idem run --op demo.charge --key order-1001 -- sh -c 'echo charged >> ledger.txt; echo receipt-42'
  idem run --op backup --key "$(date +%F)" --wait 1m -- ./backup.sh /srv`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return &usageError{err: errors.New("idem: the command to run goes behind --"), hint: "idem help run"}
			}
			for _, name := range []string{"op", "key"} {
				if !cmd.Flags().Changed(name) {
					return &usageError{err: fmt.Errorf("idem: --%s is missing; a key is never made up, because a made-up key is a new one on every retry", name), hint: "idem help run"}
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := openStore(*store, true, nil)
			if err != nil {
				return err
			}
			spec := &command.Spec{
				Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
				OwnGroup: !isTerminal(os.Stdin),
			}
			res, err := spec.Run(cmd.Context(), s, scope, idem.Key(key), idem.Wait(wait), idem.LeaseTTL(lease))
			if err != nil {
				return err
			}
			if res.Replayed {
				fmt.Fprintf(os.Stderr, "idem: replayed %v: attempt %d completed at %s\n", scope, res.Attempt, res.CompletedAt.Local().Format(time.DateTime))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&scope.Operation, "op", "", "operation that the key belongs to, such as billing.close")
	f.StringVar(&scope.Tenant, "tenant", "", "tenant that the key belongs to")
	f.StringVar(&key, "key", "", "idempotency key: the same for every retry of one intent")
	f.DurationVar(&wait, "wait", 0, "how long to wait for another run of the same key")
	f.DurationVar(&lease, "lease", idem.DefaultLeaseTTL, "how long a crash blocks the key; renewed while the command runs")
	return cmd
}

// isTerminal reports whether f is a terminal. A program that reads one has to stay
// in the foreground process group.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && info.Mode()&os.ModeDevice != 0 && f.Name() != os.DevNull && !isNull(info)
}

func isNull(info os.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}
