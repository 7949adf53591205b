package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/goidem/idem/cmd/idem/internal/storage"
)

func newMigrate(store *string) *cobra.Command {
	var script, asJSON bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update the tables of a store on a database server",
		Long: `Brings the tables of a store on PostgreSQL or CockroachDB to the version of this
program. Migrations only add; any number of processes may migrate at the same time,
and where nothing is to be done, nothing is. The role must be allowed to create
tables.

--print writes the SQL instead and connects to nothing, for goose, atlas and the
like, and for whoever has to approve it; at its end stand the rights that a program
needs that does not migrate. A store in a file needs no migration.`,
		Example: `  idem migrate --store postgres://owner@db.internal/app
  idem migrate --store 'postgres://owner@db.internal/app?idem_schema=idem'
  idem migrate --print --store cockroach:// > 0001_idem.sql`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, ok, err := serverURL(*store)
			if err != nil {
				return err
			}
			if !ok {
				if script && cmp.Or(*store, os.Getenv(storage.Env)) == "" {
					return wrongCall(cmd, "idem: whose SQL? say --store postgres:// or --store cockroach://")
				}
				return wrongCall(cmd, "idem: a store in a file needs no migration; name a server with --store postgres://USER@HOST/DATABASE")
			}
			if !u.NeedsMigration() {
				return wrongCall(cmd, "idem: a store on Redis has no schema and needs no migration")
			}
			if script {
				text, err := storage.Script(u)
				if err != nil {
					return serverError(err, u)
				}
				if asJSON {
					return printJSON(map[string]string{"sql": text})
				}
				_, err = io.WriteString(os.Stdout, text)
				return err
			}
			if err := storage.Migrate(cmd.Context(), u); err != nil {
				if errors.Is(err, cmd.Context().Err()) {
					return err
				}
				return serverError(err, u)
			}
			if asJSON {
				return printJSON(map[string]string{"store": u.String(), "schema": "current"})
			}
			fmt.Printf("%s: the tables are those of this program\n", u)
			return nil
		},
	}
	cmd.Flags().BoolVar(&script, "print", false, "write the SQL and change nothing")
	jsonFlag(cmd, &asJSON)
	return cmd
}
