package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/view"
)

// target is the flags that name one key.
type target struct {
	scope idem.Scope
	key   string
}

func (t *target) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.scope.Operation, "op", "", "operation that the key belongs to")
	f.StringVar(&t.scope.Tenant, "tenant", "", "tenant that the key belongs to")
	f.StringVar(&t.key, "key", "", "idempotency key")
	completeOperations(cmd)
	_ = cmd.RegisterFlagCompletionFunc("key", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return fromStore(cmd, idem.Filter{Operation: t.scope.Operation, Tenant: t.scope.Tenant}, func(r *idem.Record) string { return string(r.Key) })
	})
}

func (t *target) check(cmd *cobra.Command) error {
	if t.scope.Operation == "" || t.key == "" {
		return wrongCall(cmd, "idem: --op and --key are both needed")
	}
	return nil
}

// flags is how the key is named on a command line, for hints.
func (t *target) flags() string {
	text := "--op " + quote(t.scope.Operation)
	if t.scope.Tenant != "" {
		text += " --tenant " + quote(t.scope.Tenant)
	}
	return text + " --key " + quote(t.key)
}

// quote makes a word of s that a shell reads as s.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	if view.Text(s) != s {
		return "$" + "'" + strings.Trim(strings.ReplaceAll(view.Text(s), "'", `\'`), `"`) + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// wrongCall is an error of the person who types.
func wrongCall(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), hint: helpFor(cmd)}
}

// exclusive refuses two flags that say different things.
func exclusive(cmd *cobra.Command, a, b string) error {
	if cmd.Flags().Changed(a) && cmd.Flags().Changed(b) {
		return wrongCall(cmd, "idem: --%s and --%s exclude each other", a, b)
	}
	return nil
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

// printJSON prints one value on one line.
func printJSON(v any) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printOneJSON prints one value for programs and people alike.
func printOneJSON(v any) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Prints the version of idem and of the Go release that built it.",
		Example: `  idem version
  idem version --json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return errors.New("idem: this program was built without its version")
			}
			if asJSON {
				return printJSON(map[string]string{"version": info.Main.Version, "go": info.GoVersion})
			}
			_, err := fmt.Printf("idem %s, built with %s\n", info.Main.Version, info.GoVersion)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// completeOperations makes a shell complete --op from what is in the store.
func completeOperations(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("op", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return fromStore(cmd, idem.Filter{}, func(r *idem.Record) string { return r.Scope.Operation })
	})
}

// Bounds of a completion: who presses a key does not wait.
const (
	completeLooks = 20000
	completeNames = 100
)

// fromStore returns names for a completion. What cannot be read gives none: a
// completion has no place for a message.
func fromStore(cmd *cobra.Command, f idem.Filter, name func(*idem.Record) string) ([]string, cobra.ShellCompDirective) {
	s, err := lookStore(cmd.Context(), cmd.Root().PersistentFlags().Lookup("store").Value.String())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	seen, looks := make(map[string]bool), 0
	for r, err := range s.List(cmd.Context(), f) {
		if looks++; err != nil || looks > completeLooks || len(seen) == completeNames {
			break
		}
		if text := name(&r); view.Text(text) == text {
			seen[text] = true
		}
	}
	return slices.Sorted(maps.Keys(seen)), cobra.ShellCompDirectiveNoFileComp
}
