package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/view"
)

// notTheOne is the error about a record that a command does not touch.
func notTheOne(format string, args ...any) error {
	return fmt.Errorf("%w; %w", fmt.Errorf(format, args...), errNotTheOne)
}

// withNextIf is withNext for one kind of error.
func withNextIf(err, kind error, format string, args ...any) error {
	if errors.Is(err, kind) {
		return withNext(err, format, args...)
	}
	return err
}

// beforeAfter is what resolve and forget print with --json.
type beforeAfter struct {
	Before view.Record  `json:"before"`
	After  *view.Record `json:"after"` // null: there is no record any more
}

// change looks at a record, shows it, applies act to the fence that was seen, and
// shows what stands afterwards.
type change struct {
	target
	fence  uint64 // given by the person; 0: the one that is seen
	asJSON bool
}

func (c *change) bind(cmd *cobra.Command) {
	c.target.bind(cmd)
	cmd.Flags().Uint64Var(&c.fence, "fence", 0, "only if the record has this fence, as get showed it (default: the fence that this call sees)")
	jsonFlag(cmd, &c.asJSON)
}

func (c *change) run(ctx context.Context, s *idem.Store, check func(*idem.Record) error, act func(fence uint64) error, done *string) error {
	key := idem.Key(c.key)
	before, err := s.Get(ctx, c.scope, key)
	if err != nil {
		return withNextIf(err, idem.ErrNotFound, "idem list --op %s", quote(c.scope.Operation))
	}
	show := func(title string, r *idem.Record) error {
		if c.asJSON {
			return nil
		}
		if title != "" {
			fmt.Println(title)
		}
		if r == nil {
			return nil
		}
		return view.Show(os.Stdout, r, time.Now())
	}
	if err := show("before:", &before); err != nil {
		return err
	}
	fence := before.Fence
	if c.fence != 0 {
		fence = c.fence
	}
	if fence == before.Fence {
		if err := check(&before); err != nil {
			return withNext(err, "idem get %s", c.flags())
		}
	}
	if err := act(fence); err != nil {
		if errors.Is(err, idem.ErrStale) {
			err = fmt.Errorf("%w: its fence is not %d, or its state has moved on; nothing was changed", err, fence)
		}
		return withNext(err, "idem get %s", c.flags())
	}
	after, err := s.Get(ctx, c.scope, key)
	gone := errors.Is(err, idem.ErrNotFound)
	if err != nil && !gone {
		return fmt.Errorf("idem: it is done, but the record could not be read again: %w", err)
	}
	if c.asJSON {
		out := beforeAfter{Before: view.JSON(&before, time.Now())}
		if !gone {
			v := view.JSON(&after, time.Now())
			out.After = &v
		}
		return printOneJSON(out)
	}
	fmt.Println("\nafter:")
	if gone {
		fmt.Println("no record")
	} else if err := show("", &after); err != nil {
		return err
	}
	fmt.Println("\n" + *done)
	return nil
}

func newResolve(store *string) *cobra.Command {
	var (
		c                    change
		applied, notApplied  bool
		result, file, reason string
	)
	cmd := &cobra.Command{
		Use:   "resolve --op OPERATION --key KEY (--applied | --not-applied) --evidence TEXT",
		Short: "Settle a key of which nobody knows whether it happened",
		Long: `Settles an uncertain or abandoned key by a person's word, which is kept with the
record as evidence.

--applied says that the operation took effect: the key is completed, and retries
are given the result of --result or --result-file (JSON), or none. For a key of
idem run the result is how the command ended and what it wrote, and without one a
replay writes nothing and ends with 0.

--not-applied says that it did not take effect, and that the attempt shown is dead
or fenced off: the key opens, and the next call runs the operation.

The word counts for the record that was looked at. If another attempt has begun or
the record has moved on, nothing is changed and the status is 73. A live attempt is
refused with 75. The record is shown before and after.`,
		Example: `  idem resolve --op bank.transfer --key t-17 --not-applied --evidence "bank's log of 3:12 shows no transfer"
  idem resolve --op bank.transfer --key t-17 --fence 42 --applied --evidence "statement line 9"
  idem resolve --op report.send --key 2026-11 --applied --result '{"exit":0,"output":[]}' --evidence "mail arrived"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := first(c.check(cmd), exclusive(cmd, "result", "result-file")); err != nil {
				return err
			}
			switch {
			case applied == notApplied:
				return wrongCall(cmd, "idem: say one of --applied (it happened) and --not-applied (it did not)")
			case reason == "":
				return wrongCall(cmd, "idem: --evidence is missing: say why you are sure, for the person who asks next")
			case notApplied && (cmd.Flags().Changed("result") || file != ""):
				return wrongCall(cmd, "idem: what was not applied has no result")
			}
			resolution := idem.NotApplied(reason)
			done := "The key is open: the next call with it runs the operation."
			if applied {
				value, err := resultValue(cmd, result, file)
				if err != nil {
					return err
				}
				resolution = idem.Applied(value, reason)
				done = "The key is completed: the operation is not run again, and retries get the result."
			}
			s, err := openStore(cmd.Context(), *store, false, nil)
			if err != nil {
				return err
			}
			check := func(r *idem.Record) error {
				switch {
				case r.State == idem.StateInFlight && !r.LeaseUntil.IsZero() && !view.Abandoned(r, time.Now()):
					return fmt.Errorf("%w: %v is being run by %s, lease %s; wait for it, or stop that process and its lease ends; nothing was changed",
						idem.ErrInFlight, r.Scope, view.HolderText(r), view.Lease(r, time.Now()))
				case r.State != idem.StateInFlight && r.State != idem.StateUncertain:
					return notTheOne("idem: %v: the key is %v, there is nothing to resolve", r.Scope, r.State)
				}
				return nil
			}
			act := func(fence uint64) error {
				return s.Resolve(cmd.Context(), c.scope, idem.Key(c.key), fence, resolution)
			}
			return c.run(cmd.Context(), s, check, act, &done)
		},
	}
	c.bind(cmd)
	f := cmd.Flags()
	f.BoolVar(&applied, "applied", false, "the operation took effect")
	f.BoolVar(&notApplied, "not-applied", false, "the operation did not take effect, and its attempt is dead")
	f.StringVar(&reason, "evidence", "", "why you are sure; kept with the record")
	f.StringVar(&result, "result", "", "result for retries, as JSON")
	f.StringVar(&file, "result-file", "", "file with the result for retries, as JSON; - is standard input")
	return cmd
}

// resultValue is the result that a person gives: nil for none.
func resultValue(cmd *cobra.Command, text, file string) (any, error) {
	data := []byte(text)
	switch {
	case file != "":
		var err error
		if data, err = readInput(file); err != nil {
			return nil, err
		}
	case !cmd.Flags().Changed("result"):
		return nil, nil
	}
	if !json.Valid(data) {
		return nil, wrongCall(cmd, "idem: the result is not JSON; a text is written with quotes: --result '\"text\"'")
	}
	return json.RawMessage(data), nil
}

func newForget(store *string) *cobra.Command {
	var (
		c     change
		force bool
	)
	cmd := &cobra.Command{
		Use:   "forget --op OPERATION --key KEY",
		Short: "Delete the record of a key",
		Long: `Deletes the record of a key. The next call with this key runs the operation again,
as if it had never happened: forget a key only if that is what you want. To settle
a key of which nobody knows whether it happened, use idem resolve.

A live attempt is refused with 75 unless --force is given: its command goes on, its
outcome is lost, and the next call runs the operation beside it.

If the record has moved on since it was looked at, nothing is changed and the
status is 73.`,
		Example: `  idem forget --op billing.close --key 2026-11
  idem forget --op billing.close --key 2026-11 --fence 42 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(cmd); err != nil {
				return err
			}
			s, err := openStore(cmd.Context(), *store, false, nil)
			if err != nil {
				return err
			}
			done := "The next call with this key runs the operation again."
			check := func(r *idem.Record) error {
				live := r.State == idem.StateInFlight && !view.Abandoned(r, time.Now())
				if live && !force {
					return fmt.Errorf("%w: %v is being run by %s, lease %s; --force forgets it all the same, and the next call then runs the operation beside it; nothing was changed",
						idem.ErrInFlight, r.Scope, view.HolderText(r), view.Lease(r, time.Now()))
				}
				if live {
					done += " The attempt that was running goes on, and its outcome will be lost."
				}
				return nil
			}
			act := func(fence uint64) error {
				return s.Forget(cmd.Context(), c.scope, idem.Key(c.key), fence, &idem.ForgetOptions{Force: force})
			}
			return c.run(cmd.Context(), s, check, act, &done)
		},
	}
	c.bind(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also forget a live attempt")
	return cmd
}
