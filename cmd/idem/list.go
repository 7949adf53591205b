package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/view"
	"github.com/goidem/idem/expiry"
)

// selection is the flags that select records.
type selection struct {
	tenant, op, opPrefix, state string
	olderThan                   age
	abandoned                   bool // set by check
	filter                      idem.Filter
}

// age is a duration flag that knows days.
type age time.Duration

// Set implements pflag.Value.
func (a *age) Set(text string) error {
	d, err := expiry.ParseWindow(text)
	if err == nil && d <= 0 {
		err = fmt.Errorf("it must be positive")
	}
	*a = age(d)
	return err
}

// String implements pflag.Value.
func (a *age) String() string {
	if *a == 0 {
		return ""
	}
	return time.Duration(*a).String()
}

// Type implements pflag.Value.
func (a *age) Type() string { return "age" }

func (s *selection) bind(cmd *cobra.Command, states bool) {
	f := cmd.Flags()
	f.StringVar(&s.tenant, "tenant", "", "only this tenant")
	f.StringVar(&s.op, "op", "", "only this operation")
	f.StringVar(&s.opPrefix, "op-prefix", "", "only operations that begin so")
	completeOperations(cmd)
	if states {
		f.Var(&s.olderThan, "older-than", "only attempts that began at least so long ago, such as 90s, 12h or 30d")
		f.StringVar(&s.state, "state", "", "only this state: "+strings.Join(view.States(), ", "))
		_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(view.States(), cobra.ShellCompDirectiveNoFileComp))
	}
}

func (s *selection) check(cmd *cobra.Command) error {
	state, abandoned, err := view.ParseState(s.state)
	if err != nil {
		return wrongCall(cmd, "%w", err)
	}
	if err := exclusive(cmd, "op", "op-prefix"); err != nil {
		return err
	}
	s.abandoned = abandoned
	s.filter = idem.Filter{Tenant: s.tenant, Operation: s.op, State: state, OlderThan: time.Duration(s.olderThan)}
	return nil
}

// match applies what the store's own filter does not know.
func (s *selection) match(r *idem.Record, now time.Time) bool {
	return strings.HasPrefix(r.Scope.Operation, s.opPrefix) && (!s.abandoned || view.Abandoned(r, now))
}

// each calls fn for every selected record until it returns false.
func (s *selection) each(ctx context.Context, store *idem.Store, fn func(*idem.Record) bool) error {
	for rec, err := range store.List(ctx, s.filter) {
		if err != nil {
			return err
		}
		if s.match(&rec, time.Now()) && !fn(&rec) {
			return nil
		}
	}
	return nil
}

// oldest returns the selected records, oldest first, without their results; at
// most limit of them if that is positive. more counts those beyond it.
func (s *selection) oldest(ctx context.Context, store *idem.Store, limit int, bodies bool) (found []idem.Record, more int, err error) {
	n := 0
	trim := func(to int) {
		slices.SortFunc(found, func(a, b idem.Record) int {
			if c := a.ReservedAt.Compare(b.ReservedAt); c != 0 {
				return c
			}
			return strings.Compare(string(a.Key), string(b.Key))
		})
		if to > 0 && len(found) > to {
			clear(found[to:])
			found = found[:to]
		}
	}
	err = s.each(ctx, store, func(r *idem.Record) bool {
		n++
		if !bodies {
			r.Result = nil
		}
		found = append(found, *r)
		if limit > 0 && len(found) >= 2*limit+1000 {
			trim(limit)
		}
		return true
	})
	trim(limit)
	return found, n - len(found), err
}

func newList(store *string) *cobra.Command {
	var (
		sel    selection
		limit  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records",
		Long: `Lists records, oldest first: all of them, or those that every given flag selects.
Names are compared as they are; there are no patterns. Nothing is changed.

With --json each record is one line, in the form that get prints. Without --limit
the lines are printed as they are read, in no particular order.`,
		Example: `  idem list --state uncertain
  idem list --state abandoned --older-than 1h
  idem list --op-prefix billing. --tenant acme --limit 20
  idem list --json | jq -r 'select(.attempt > 1) | .key'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sel.check(cmd); err != nil {
				return err
			}
			if limit < 0 {
				return wrongCall(cmd, "idem: --limit must not be negative")
			}
			s, err := lookStore(cmd.Context(), *store)
			if err != nil {
				return err
			}
			if asJSON && limit == 0 {
				var failed error
				err := sel.each(cmd.Context(), s, func(r *idem.Record) bool {
					failed = printJSON(view.JSON(r, time.Now()))
					return failed == nil
				})
				return first(failed, err)
			}
			found, more, err := sel.oldest(cmd.Context(), s, limit, asJSON)
			if asJSON {
				for i := range found {
					if err := printJSON(view.JSON(&found[i], time.Now())); err != nil {
						return err
					}
				}
				return err
			}
			if len(found) > 0 {
				if err := view.List(os.Stdout, found, time.Now()); err != nil {
					return err
				}
			}
			switch {
			case err != nil:
				return err
			case len(found) == 0:
				fmt.Fprintln(os.Stderr, "idem: no record matches")
			case more > 0:
				fmt.Fprintf(os.Stderr, "idem: %d more; --limit 0 lists them all\n", more)
			}
			return nil
		},
	}
	sel.bind(cmd, true)
	cmd.Flags().IntVar(&limit, "limit", 0, "the oldest so many only; 0: all")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
