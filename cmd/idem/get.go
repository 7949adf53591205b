package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/view"
)

func newGet(store *string) *cobra.Command {
	var (
		at             target
		asJSON, output bool
	)
	cmd := &cobra.Command{
		Use:   "get --op OPERATION --key KEY",
		Short: "Show what is known about a key",
		Long: `Shows the record of a key: its state and what that means, its attempt, who holds
it, and how long it is remembered. Nothing is changed. The status is 66 when there
is no record.

Of a key that idem run used, it shows how the command ended and how much it wrote;
--output writes what is stored, each piece to the stream that it came from. With
--json, a result that is JSON stands in "result"; its "output" is a list of pieces
in the order of their arrival, "data" in base64, "stderr" true where it came from
there. Any other result stands in "resultBytes", in base64.`,
		Example: `  idem get --op billing.close --key 2026-11
  idem get --op billing.close --key 2026-11 --output
  idem get --op billing.close --key 2026-11 --json | jq -r .state
  idem get --op billing.close --key 2026-11 --json | jq .result.exit`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := first(at.check(cmd), exclusive(cmd, "output", "json")); err != nil {
				return err
			}
			s, err := lookStore(cmd.Context(), *store)
			if err != nil {
				return err
			}
			rec, err := s.Get(cmd.Context(), at.scope, idem.Key(at.key))
			switch {
			case err != nil:
				return withNextIf(err, idem.ErrNotFound, "idem list --op %s", quote(at.scope.Operation))
			case output:
				return writeOutput(cmd, &rec)
			case asJSON:
				return printOneJSON(view.JSON(&rec, time.Now()))
			}
			return view.Show(os.Stdout, &rec, time.Now())
		},
	}
	at.bind(cmd)
	cmd.Flags().BoolVar(&output, "output", false, "write the stored output of a command, and nothing else")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// writeOutput writes the stored output of a command to the streams that it came
// from.
func writeOutput(cmd *cobra.Command, rec *idem.Record) error {
	o, ok := view.Command(rec)
	if !ok {
		return withNext(notTheOne("idem: %v: the key is %v and holds no output of a command", rec.Scope, rec.State), "idem help %s", cmd.Name())
	}
	for _, p := range o.Output {
		w := os.Stdout
		if p.Stderr {
			w = os.Stderr
		}
		if _, err := w.Write(p.Data); err != nil {
			return err
		}
	}
	return nil
}
