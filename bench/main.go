// Command bench compares strategies of keeping an operation from taking effect twice, by
// what they cost and by what they keep. See README.md beside it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/goidem/idem/bench/benchcmd"
)

func main() { os.Exit(run()) }

func run() int {
	logging.Disable() // servers are killed on purpose: what the client says of that is no news
	benchcmd.Child()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The first signal ends the run in order; a second one ends the program.
	context.AfterFunc(ctx, stop)
	cmd := benchcmd.New("bench")
	cmd.SetContext(ctx)
	return benchcmd.Main(cmd)
}
