package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/cmd/idem/internal/view"
)

func newWatch(store *string) *cobra.Command {
	var (
		sel          selection
		interval     time.Duration
		once, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Watch what is in flight",
		Long: `Shows what is in flight, again and again: since when, who holds it, and what is
left of the lease. On a terminal it draws over what it drew before; elsewhere it
appends lines. Nothing is changed. It ends with Ctrl-C, or after the first look
with --once.

While another process keeps the file to itself, watch says so and tries again.`,
		Example: `  idem watch
  idem watch --op-prefix billing. --interval 10s
  idem watch --once --json | jq -r 'select(.abandoned) | .key'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sel.check(cmd); err != nil {
				return err
			}
			if interval < 100*time.Millisecond {
				return wrongCall(cmd, "idem: an interval of %v; it must be at least 100ms", interval)
			}
			sel.filter.State = idem.StateInFlight
			s, err := lookStore(cmd.Context(), *store)
			if err != nil {
				return err
			}
			screen := view.IsTerminal(os.Stdout) && !once && !asJSON
			for ctx := cmd.Context(); ; {
				err := watchOnce(ctx, s, &sel, asJSON, screen)
				switch {
				case ctx.Err() != nil:
					return nil
				case err != nil && (once || !errors.Is(err, bolt.ErrLocked)):
					return err
				case err != nil:
					fmt.Fprintln(os.Stderr, strings.TrimSuffix(message(err), "\nnext: "+next(err)))
				case once:
					return nil
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(interval):
				}
			}
		},
	}
	sel.bind(cmd, false)
	f := cmd.Flags()
	f.DurationVar(&interval, "interval", 2*time.Second, "how long between two looks")
	f.BoolVar(&once, "once", false, "look once")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// watched is a line of watch --json: a record, and when it was looked at.
type watched struct {
	At time.Time `json:"at"`
	view.Record
}

func watchOnce(ctx context.Context, s *idem.Store, sel *selection, asJSON, screen bool) error {
	found, _, err := sel.oldest(ctx, s, 0, false)
	if err != nil {
		return err
	}
	now := time.Now()
	if asJSON {
		for i := range found {
			if err := printJSON(watched{At: now, Record: view.JSON(&found[i], now)}); err != nil {
				return err
			}
		}
		return nil
	}
	return view.Watch(os.Stdout, found, now, screen)
}
