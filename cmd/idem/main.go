// Command idem runs commands once per idempotency key and shows what is known
// about a key. This is a first cut: `run` and `get` over a bolt file.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(realMain()) }

func realMain() int {
	// SIGHUP belongs to the list: a closed terminal must stop the command and give
	// its key back, not leave it in flight.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	if err != nil && !silent(err) {
		fmt.Fprintln(os.Stderr, message(err))
	}
	return exitStatus(err)
}

func newRoot() *cobra.Command {
	var store string
	root := &cobra.Command{
		Use:   "idem",
		Short: "Run a command once per key, and replay its result to every retry",
		Long: `idem runs a command once per key. The first run's output and exit status are
stored; every later run with the same key replays them without running anything.

The store is a file, named by --store or IDEM_STORE. By default it lies in your
state folder. Any number of commands may use one file at the same time.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&store, "store", "", "store file (default: $IDEM_STORE, else idem/idem.db in your state folder)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: err, hint: "idem help " + cmd.Name()}
	})
	root.AddCommand(newRun(&store), newGet(&store), newExitCodes())
	return root
}

// noArgs refuses stray arguments with the status for a wrong call.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return &usageError{err: fmt.Errorf("idem: unknown command %q", args[0]), hint: "idem help"}
	}
	return &usageError{err: fmt.Errorf("idem: unexpected argument %q", args[0]), hint: "idem help " + cmd.Name()}
}
