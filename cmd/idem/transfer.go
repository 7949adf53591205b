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
)

func newExport(store *string) *cobra.Command {
	var (
		sel    selection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write records as JSON lines",
		Long: `Writes records to standard output, one JSON object a line, with every field that
the store keeps; bytes are in base64. Expired records are left out. Nothing is
changed. The lines hold stored results: keep them as private as the store.

idem import reads them.`,
		Example: `  idem export > backup.jsonl
  idem export --op-prefix billing. --state completed | gzip > billing.jsonl.gz`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sel.check(cmd); err != nil {
				return err
			}
			file, err := openBackend(cmd.Context(), *store, storage.Look)
			if err != nil {
				return err
			}
			keep := func(r *backend.Record) bool {
				return sel.match(&idem.Record{
					Scope: idem.Scope{Tenant: r.ID.Tenant, Operation: r.ID.Operation},
					State: r.State, LeaseUntil: r.LeaseUntil,
				}, time.Now())
			}
			n, err := bulk.Export(cmd.Context(), file, backend.Filter(sel.filter), keep, os.Stdout)
			if err != nil {
				return &storeError{err: fmt.Errorf("idem: the export is not complete: it ended after %s: %w", count(n, "record"), err)}
			}
			fmt.Fprintf(os.Stderr, "idem: exported %s\n", count(n, "record"))
			return nil
		},
	}
	sel.bind(cmd, true)
	jsonFlag(cmd, &asJSON)
	cmd.Flag("json").Usage = "print JSON lines, which it always does"
	return cmd
}

func newImport(store *string) *cobra.Command {
	var dryRun, asJSON bool
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Restore records that idem export wrote",
		Long: `Restores settled and uncertain records from the lines of idem export, from FILE or
standard input. The store is created if it is not there. What it has stays as it is:
lines whose key it knows are skipped, and so are lines that were in flight or open,
and those whose time is over.

A restored record keeps its result, its request's fingerprint, the evidence of a
person, and what is left of its windows. It is a new record all the same: it gets a
new fence, attempt number 1, and the time of the import. Systems that compare
fences must be told. An import that dies on the way is run again; the key that it
was at may be left uncertain, and is never run.

The store's file is kept locked meanwhile.`,
		Example: `  idem import backup.jsonl
  gunzip -c billing.jsonl.gz | idem import --store bolt:/srv/idem/billing.db
  idem import --dry-run backup.jsonl`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return wrongCall(cmd, "idem: one file at a time; %d are given", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "-"
			if len(args) == 1 {
				name = args[0]
			}
			in, err := openInput(name)
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }()
			mode := storage.Build
			if dryRun {
				mode = storage.Look
			}
			file, err := openBackend(cmd.Context(), *store, mode)
			if err != nil {
				return err
			}
			done, err := bulk.Import(cmd.Context(), file, in, dryRun, time.Now)
			if closed := file.Close(); err == nil && closed != nil {
				err = &storeError{err: closed}
			}
			if asJSON {
				return importError(first(err, printJSON(done)))
			}
			restored := "restored"
			if dryRun {
				restored = "would be restored"
			}
			for i, c := range []struct {
				name string
				n    int
			}{
				{restored, done.Restored},
				{"skipped: known already", done.Known},
				{"skipped: known, and of another request", done.Different},
				{"skipped: in flight or abandoned in the store", done.Busy},
				{"skipped: in flight or open when it was exported", done.Unsettled},
				{"skipped: its time is over", done.Expired},
			} {
				if i == 0 || c.n > 0 {
					fmt.Printf("%8d  %s\n", c.n, c.name)
				}
			}
			return importError(err)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// importError tells bad input from a store that fails.
func importError(err error) error {
	var line *bulk.LineError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &line):
		return &usageError{err: fmt.Errorf("%w; the lines before it count", err), hint: "mend the input and import it again: what is there is skipped"}
	}
	return &storeError{err: err}
}
