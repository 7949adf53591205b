// Command idem runs commands once per idempotency key, and shows and mends what is
// known about keys, over a bolt file or a
// database server. See docs/cli.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/goidem/idem/bench/benchcmd"
)

func main() { os.Exit(realMain()) }

func realMain() int {
	logging.Disable() // a Redis that cannot be reached is told once, by the command's own error
	benchcmd.Child()  // does not return in a worker of idem bench
	// SIGHUP belongs to the list: a closed terminal must stop the command and give
	// its key back, not leave it in flight.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	defer closeServers()
	err := newRoot().ExecuteContext(ctx)
	if err != nil && !silent(err) {
		fmt.Fprintln(os.Stderr, message(err))
	}
	return exitStatus(err)
}

// Groups of commands in the help.
const (
	groupRun     = "run"
	groupLook    = "look"
	groupMend    = "mend"
	groupMeasure = "measure"
)

func newRoot() *cobra.Command {
	var store string
	root := &cobra.Command{
		Use:   "idem",
		Short: "Run a command once per key, and replay its result to every retry",
		Long: `idem runs a command once per key. The first run's output and exit status are
stored; every later run with the same key replays them without running anything.

The store is named by --store or IDEM_STORE. It is a file (PATH, bolt:PATH or
bolt:///PATH), by default one in your state folder, or on a server:
postgres://USER@HOST/DATABASE or cockroach://USER@HOST:26257/DATABASE, where idem
migrate makes the tables first, or redis://HOST:6379/DB (rediss:// for TLS). Any number
of commands may use one store at the same time; a service that keeps a file open keeps
it for itself.

Keep the password out of the URL, which other users of the machine can see on the
command line: in PGPASSWORD, in the file that PGPASSFILE names, or in IDEM_STORE.
The parameters idem_schema and idem_table_prefix of a database's URL say where the
tables are. Those of a redis URL are idem_prefix (of all keys), idem_accept_eviction (a
maxmemory-policy to accept although it may lose records), idem_ack_replicas and
idem_ack_fsync (what must have a write before it counts).`,
		Example: `  idem run --op billing.close --key 2026-11 -- ./close-month.sh
  idem get --op billing.close --key 2026-11
  idem list --state uncertain
  idem help exit-codes`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              noArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := root.PersistentFlags()
	f.StringVar(&store, "store", "", "store: a PATH, bolt:PATH, postgres://..., cockroach://... or redis://... (default: $IDEM_STORE, else idem/idem.db in your state folder)")
	f.StringVar(&global.config, "config", "", "file of policies by operation (default: $IDEM_CONFIG, else none)")
	f.DurationVar(&global.lockWait, "lock-wait", 0, "how long to wait for a process that keeps the store's file (default 1.5s)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: fmt.Errorf("idem: %w", err), hint: helpFor(cmd)}
	})
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Running:"},
		&cobra.Group{ID: groupLook, Title: "Looking, without changing anything:"},
		&cobra.Group{ID: groupMend, Title: "Mending and cleaning:"},
		&cobra.Group{ID: groupMeasure, Title: "Measuring, before choosing a store:"},
	)
	group := func(id string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	group(groupRun, newRun(&store), newEach(&store), newKey())
	group(groupLook, newGet(&store), newList(&store), newWatch(&store), newStats(&store), newDoctor(&store), newCheck(&store), newExport(&store), newPolicy())
	group(groupMend, newResolve(&store), newForget(&store), newSweep(&store), newPrune(&store), newCompact(&store), newMigrate(&store), newImport(&store))
	root.AddCommand(newBench(), newExitCodes(), newVersion(), newCompletion(), newMan())
	return root
}

// noArgs refuses stray arguments with the status for a wrong call.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return &usageError{err: fmt.Errorf("idem: unknown command %q", args[0]), hint: helpFor(cmd)}
	}
	return &usageError{err: fmt.Errorf("idem: unexpected argument %q", args[0]), hint: helpFor(cmd)}
}

// helpFor is what to type for the help of a command.
func helpFor(cmd *cobra.Command) string {
	return strings.Replace(cmd.CommandPath(), "idem", "idem help", 1)
}
