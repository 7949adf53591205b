package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make a key on purpose",
		Long: `Makes a key and prints it. A key names one intent and has to be the same on every
retry: make it once and keep it, or make it from what the intent is about. A key
made anew on each try protects from nothing, which is why idem run never makes one
up.`,
		Example: `  KEY=$(idem key uuid) && echo "$KEY" > order.key
  idem run --op invoice --key "$(idem key join customer-7 2026-11)" -- ./invoice.sh
  idem run --op import --key "$(idem key file data.csv)" -- ./import.sh data.csv
  idem key derive --op charge --key order-1001 receipt-mail`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().Bool("json", false, "print JSON")
	cmd.AddCommand(newKeyUUID(), newKeyJoin(), newKeyFile(), newKeyDerive())
	return cmd
}

// printKey prints a key that any store takes.
func printKey(cmd *cobra.Command, key idem.Key) error {
	if err := (backend.ID{Operation: "any", Key: string(key)}).Validate(); err != nil {
		return &usageError{err: fmt.Errorf("%w; no key was made", err), hint: "idem help key " + cmd.Name()}
	}
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]string{"key": string(key)})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), key)
	return err
}

func newKeyUUID() *cobra.Command {
	return &cobra.Command{
		Use:   "uuid",
		Short: "A new random key, which carries the time it was made (UUID version 7)",
		Long: `Prints a new key, different each time. Keep it before you use it: a retry needs the
same one.`,
		Example: `  test -s order.key || idem key uuid > order.key
  idem run --op charge --key "$(cat order.key)" -- ./charge.sh`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := uuid.NewV7()
			if err != nil {
				return fmt.Errorf("idem: no random numbers to be had: %w; no key was made", err)
			}
			return printKey(cmd, idem.Key(id.String()))
		},
	}
}

func newKeyJoin() *cobra.Command {
	return &cobra.Command{
		Use:   "join PART...",
		Short: "One key out of parts; different parts never make the same key",
		Long: `Joins the parts with a slash. Slashes and per cent signs inside of a part are
escaped, so that "a/b" "c" and "a" "b/c" differ. Empty parts are refused: they are
variables that were not set, as a rule, and every such call would share one key.`,
		Example: `  idem key join customer-7 2026-11`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongCall(cmd, "idem: parts are missing; no key was made")
			}
			for i, part := range args {
				if part == "" {
					return wrongCall(cmd, "idem: part %d of %d is empty, probably a variable that is not set; no key was made", i+1, len(args))
				}
			}
			return printKey(cmd, idem.JoinKey(args...))
		},
	}
}

func newKeyFile() *cobra.Command {
	return &cobra.Command{
		Use:   "file FILE",
		Short: "The SHA-256 of a file's contents: one key for one content",
		Long: `Prints the SHA-256 of the contents of FILE in hex, as sha256sum does: a file that
was changed is another intent, a copy under another name is the same one.`,
		Example: `  idem run --op import --key "$(idem key file data.csv)" -- ./import.sh data.csv`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrongCall(cmd, "idem: one file is needed; no key was made")
			}
			sum, err := fileDigest(args[0])
			if err != nil {
				return err
			}
			return printKey(cmd, idem.Key(hex.EncodeToString(sum[:])))
		},
	}
}

func newKeyDerive() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "derive --op OPERATION --key KEY STEP",
		Short: "The key for one step of an intent: the same for every retry",
		Long: `Prints the key that belongs to one step of an intent, in the form of a UUID: the
same on every machine and every retry, different for every step, operation, tenant
and key. It is what a Go program gets from Attempt.DeriveKey; the step "command" is
what a command finds in IDEM_DERIVED_KEY.`,
		Example: `  idem key derive --op charge --key order-1001 receipt-mail
  curl -H "Idempotency-Key: $(idem key derive --op charge --key order-1001 refund)" ...`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := requireFlags(cmd, "op", "key"); err != nil {
				return err
			}
			if len(args) != 1 || strings.TrimSpace(args[0]) == "" {
				return wrongCall(cmd, "idem: one step is needed, such as receipt-mail; no key was made")
			}
			if err := (backend.ID{Tenant: t.scope.Tenant, Operation: t.scope.Operation, Key: t.key}).Validate(); err != nil {
				return &usageError{err: err, hint: "idem help key derive"}
			}
			return printKey(cmd, command.DerivedKey(t.scope, idem.Key(t.key), args[0]))
		},
	}
	t.bind(cmd)
	return cmd
}
