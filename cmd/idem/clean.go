package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cmd/idem/internal/bulk"
	"github.com/goidem/idem/cmd/idem/internal/storage"
	"github.com/goidem/idem/cmd/idem/internal/view"
	"github.com/goidem/idem/expiry"
)

func newSweep(store *string) *cobra.Command {
	var (
		dryRun, asJSON bool
		every          time.Duration
	)
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove what has expired",
		Long: `Removes records whose time is over: those read as absent already, so that nothing
changes but the room they take. Live attempts and records that wait for a person
are never removed. Settled records in a file go a group at a time, so that some that
have expired may stay for a while.

With --every it goes on until it is interrupted, in small batches and with rests while
the store is busy. Of many such sweepers on one store, on any number of machines, one
works; another follows when it dies. A program that embeds idem runs the same with
expiry.Sweeper.

A file does not shrink: what is freed is used again. See idem compact.`,
		Example: `  idem sweep
  idem sweep --dry-run
  0 4 * * * idem sweep --json >> /var/log/idem-sweep.log
  idem sweep --every 1m --store postgres://idem@db/app`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, show := cmd.Context(), sweepText
			if asJSON {
				show = sweepJSON
			}
			switch keep := cmd.Flags().Changed("every"); {
			case keep && dryRun:
				return wrongCall(cmd, "idem: --every and --dry-run exclude each other: a dry run looks once")
			case keep && every < time.Second:
				return wrongCall(cmd, "idem: --every must be at least 1s, such as 1m")
			case keep:
				return sweepEvery(ctx, *store, every, show)
			case dryRun:
				return sweepDry(cmd, *store, show)
			}
			b, err := openBackend(ctx, *store, storage.Mend)
			if err != nil {
				return err
			}
			var total backend.ExpireResult
			for more := true; more; {
				done, err := b.Expire(ctx, backend.ExpireRequest{})
				total.Removed += done.Removed
				total.Bodies += done.Bodies
				if err != nil {
					fmt.Fprintf(os.Stderr, "idem: %s removed before the error\n", count(total.Removed, "record"))
					return &storeError{err: err}
				}
				more = done.More
			}
			return show(sweepReport{Removed: total.Removed, Bodies: total.Bodies})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	cmd.Flags().DurationVar(&every, "every", 0, "go on, a round each so long (at least 1s), until interrupted")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// sweepDry says what a sweep would find.
func sweepDry(cmd *cobra.Command, store string, show func(sweepReport) error) error {
	ctx := cmd.Context()
	u, ok, err := serverURL(store)
	if err != nil {
		return err
	}
	if ok {
		b, err := openServer(ctx, u)
		if err != nil {
			return err
		}
		l, ok := b.(backend.Backlogger)
		if !ok {
			return wrongCall(cmd, "idem: sweep --dry-run has nothing to look for: %s removes what has expired by itself", u)
		}
		due, err := l.Backlog(ctx)
		if err != nil {
			return &storeError{err: err}
		}
		return show(sweepReport{DryRun: true, Removed: int(due.Due), Capped: due.Capped, Oldest: due.Oldest.Seconds(), server: true})
	}
	file, err := openFile(store, storage.Look)
	if err != nil {
		return err
	}
	s, err := file.Stats(ctx)
	if err != nil {
		return &storeError{err: err}
	}
	return show(sweepReport{DryRun: true, Removed: s.Due, Bodies: s.StaleDue, Left: s.Expired - s.Due})
}

// sweepEvery sweeps until ctx ends. It fails only where it cannot begin: a store that
// is away for a while is swept when it is back, and the failures are told.
func sweepEvery(ctx context.Context, store string, every time.Duration, show func(sweepReport) error) error {
	b, err := openBackend(ctx, store, storage.Mend)
	if err != nil {
		return err
	}
	s, err := expiry.NewSweeper(b, &expiry.SweeperOptions{
		Interval: every,
		OnRound: func(r expiry.Round) {
			if r.Err != nil {
				fmt.Fprintln(os.Stderr, message(&storeError{err: r.Err}))
				return
			}
			_ = show(sweepReport{
				Removed: r.Removed, Bodies: r.Bodies, Waiting: !r.Leading, Batches: r.Batches, Seconds: r.Took.Seconds(),
				Backlog: r.Backlog.Due, Capped: r.Backlog.Capped, Oldest: r.Backlog.Oldest.Seconds(),
			})
		},
		OnFailing: func(n int, _ error) {
			fmt.Fprintf(os.Stderr, "idem: %d rounds have failed in a row; what has expired piles up meanwhile\n", n)
		},
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// sweepReport is the JSON form of what sweep did, or one round of it.
type sweepReport struct {
	DryRun  bool    `json:"dryRun"`
	Removed int     `json:"removed"`
	Bodies  int     `json:"bodies,omitempty"`  // results dropped from records that stay known
	Left    int     `json:"left,omitempty"`    // expired, and not due yet
	Waiting bool    `json:"waiting,omitempty"` // another sweeper works, or the server by itself
	Batches int     `json:"batches,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`       // that the round took
	Backlog int64   `json:"backlog,omitempty"`       // due after the round
	Capped  bool    `json:"capped,omitempty"`        // there are more than were counted
	Oldest  float64 `json:"oldestSeconds,omitempty"` // how long the oldest has been due

	server bool
}

func sweepJSON(r sweepReport) error { return printJSON(r) }

func sweepText(r sweepReport) (err error) {
	most := ""
	if r.Capped {
		most = "at least "
	}
	switch {
	case r.DryRun && r.server:
		_, err = fmt.Printf("would look at %s%s, the oldest due for %s; a few of them may stay\n", most, count(r.Removed, "record"), view.Age(seconds(r.Oldest)))
	case r.DryRun:
		_, err = fmt.Printf("would remove %s and %s; %s would stay until their group is due\n", count(r.Removed, "expired record"), count(r.Bodies, "expired result"), count(r.Left, "expired record"))
	case r.Waiting:
		_, err = fmt.Println("nothing to do here: another sweeper works on this store, or its server by itself")
	case r.Batches > 0:
		left := ""
		if r.Backlog > 0 {
			left = fmt.Sprintf("; %s%d left, the oldest due for %s", most, r.Backlog, view.Age(seconds(r.Oldest)))
		}
		_, err = fmt.Printf("removed %s and %s in %s%s\n", count(r.Removed, "expired record"), count(r.Bodies, "expired result"), view.Age(seconds(r.Seconds)), left)
	case r.Bodies > 0:
		_, err = fmt.Printf("removed %s and %s\n", count(r.Removed, "expired record"), count(r.Bodies, "expired result"))
	default:
		_, err = fmt.Printf("removed %s\n", count(r.Removed, "expired record"))
	}
	return err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func newPrune(store *string) *cobra.Command {
	var (
		sel         selection
		olderThan   age
		yes, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "prune --older-than AGE",
		Short: "Forget settled records that are older than you need",
		Long: `Forgets records that settled (completed or failed) at least so long ago, before
their time is over. The next call with such a key runs the operation again: prune
only what can never be retried any more.

Without --yes it only says what it would do. Live attempts, abandoned ones and
records that wait for a person are never pruned. A record that changes meanwhile is
left alone. The store's file is kept locked for short spells.`,
		Example: `  idem prune --older-than 30d
  idem prune --older-than 30d --op-prefix report. --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sel.check(cmd); err != nil {
				return err
			}
			if olderThan == 0 {
				return wrongCall(cmd, "idem: --older-than is missing: how long ago a record must have settled, such as 30d")
			}
			s, err := lookStore(cmd.Context(), *store)
			if err != nil {
				return err
			}
			found, err := settledBefore(cmd.Context(), s, &sel, time.Now().Add(-time.Duration(olderThan)))
			if err != nil {
				return err
			}
			r := pruneReport{DryRun: !yes, Matched: len(found)}
			if yes {
				open := func() (bulk.Backend, error) { return openBackend(cmd.Context(), *store, storage.Bulk) }
				r.Removed, r.Changed, err = bulk.Forget(cmd.Context(), open, found)
			}
			if asJSON {
				return first(err, printJSON(r))
			}
			switch {
			case !yes:
				fmt.Printf("would forget %s; the next call with such a key would run the operation again\nnext: the same command with --yes\n", count(len(found), "record"))
			case r.Changed > 0:
				fmt.Printf("forgot %s; %s had changed meanwhile and stay\n", count(r.Removed, "record"), count(r.Changed, "other"))
			default:
				fmt.Printf("forgot %s\n", count(r.Removed, "record"))
			}
			return err
		},
	}
	sel.bind(cmd, false)
	cmd.Flags().Var(&olderThan, "older-than", "only records that settled at least so long ago, such as 12h or 30d")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// pruneReport is the JSON form of what prune did.
type pruneReport struct {
	DryRun  bool `json:"dryRun"`
	Matched int  `json:"matched"`
	Removed int  `json:"removed"`
	Changed int  `json:"changed"` // meanwhile, and left alone
}

// settledBefore returns the fences of the selected records that settled before
// the given time.
func settledBefore(ctx context.Context, s *idem.Store, sel *selection, before time.Time) (found []backend.ForgetRequest, err error) {
	err = sel.each(ctx, s, func(r *idem.Record) bool {
		if (r.State == idem.StateCompleted || r.State == idem.StateFailed) && !r.CompletedAt.After(before) {
			id := backend.ID{Tenant: r.Scope.Tenant, Operation: r.Scope.Operation, Key: string(r.Key)}
			found = append(found, backend.ForgetRequest{ID: id, Fence: r.Fence})
		}
		return true
	})
	return found, err
}

func newCompact(store *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "Give back the room that removed records have left in the file",
		Long: `Rewrites the store's file without its unused pages: the file never shrinks by
itself. The copy is complete and synced before it takes the place of the file, so
that a crash leaves one or the other. It needs room for the copy. The file is kept
locked meanwhile: other commands wait, and give up in the end.

idem stats says whether it would pay.`,
		Example: `  idem sweep && idem compact
  idem compact --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := onlyFile(cmd, *store, "compact", "the server's own vacuum gives room back", "the server gives memory back by itself"); err != nil {
				return err
			}
			file, err := openFile(*store, storage.Mend)
			if err != nil {
				return err
			}
			before, err := os.Stat(file.Path())
			if err == nil {
				err = file.Compact(cmd.Context())
			}
			if err != nil {
				if errors.Is(err, context.Canceled) {
					return err
				}
				return &storeError{err: fmt.Errorf("idem: the file was left as it was: %w", err)}
			}
			after, err := os.Stat(file.Path())
			if err != nil {
				return &storeError{err: err}
			}
			if asJSON {
				return printJSON(map[string]int64{"before": before.Size(), "after": after.Size()})
			}
			fmt.Printf("%s: %s before, %s now\n", file.Path(), view.Bytes(before.Size()), view.Bytes(after.Size()))
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
