package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
)

func newGet(store *string) *cobra.Command {
	var (
		scope  idem.Scope
		key    string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "get --op OPERATION --key KEY",
		Short: "Show what is known about a key",
		Long: `Shows the record of a key: its state, its attempt, who holds it, and how long it is
remembered. Nothing is changed. The status is 66 when there is no record.`,
		Example: `  idem get --op billing.close --key 2026-11
  idem get --op billing.close --key 2026-11 --json | jq .state`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if scope.Operation == "" || key == "" {
				return &usageError{err: errors.New("idem: --op and --key are both needed"), hint: "idem help get"}
			}
			s, err := openStore(*store, false, nil)
			if err != nil {
				return err
			}
			rec, err := s.Get(cmd.Context(), scope, idem.Key(key))
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(os.Stdout)
				enc.SetIndent("", "  ")
				return enc.Encode(view(&rec))
			}
			return show(os.Stdout, &rec)
		},
	}
	f := cmd.Flags()
	f.StringVar(&scope.Operation, "op", "", "operation that the key belongs to")
	f.StringVar(&scope.Tenant, "tenant", "", "tenant that the key belongs to")
	f.StringVar(&key, "key", "", "idempotency key")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// recordView is the JSON form of a record. Times that are not set are left out.
type recordView struct {
	Tenant      string          `json:"tenant,omitempty"`
	Operation   string          `json:"operation"`
	Key         string          `json:"key"`
	State       string          `json:"state"`
	Attempt     int             `json:"attempt"`
	Fence       uint64          `json:"fence"`
	OnAbandoned string          `json:"onAbandoned,omitempty"`
	Holder      *holderView     `json:"holder,omitempty"`
	ReservedAt  *time.Time      `json:"reservedAt,omitempty"`
	LeaseUntil  *time.Time      `json:"leaseUntil,omitempty"`
	CompletedAt *time.Time      `json:"completedAt,omitempty"`
	ReplayUntil *time.Time      `json:"replayUntil,omitempty"`
	KnownUntil  *time.Time      `json:"knownUntil,omitempty"`
	Failure     string          `json:"failure,omitempty"`
	Evidence    string          `json:"evidence,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
}

type holderView struct {
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

func view(r *idem.Record) recordView {
	v := recordView{
		Tenant: r.Scope.Tenant, Operation: r.Scope.Operation, Key: string(r.Key), State: r.State.String(),
		Attempt: r.Attempt, Fence: r.Fence, Evidence: r.Evidence,
		ReservedAt: set(r.ReservedAt), LeaseUntil: set(r.LeaseUntil), CompletedAt: set(r.CompletedAt),
		ReplayUntil: set(r.ReplayUntil), KnownUntil: set(r.KnownUntil),
	}
	if r.OnAbandoned != 0 {
		v.OnAbandoned = r.OnAbandoned.String()
	}
	if r.Holder.Host != "" {
		v.Holder = &holderView{Host: r.Holder.Host, PID: r.Holder.PID, Started: r.Holder.Started}
	}
	if r.Failure != nil {
		v.Failure = r.Failure.Error()
	}
	if json.Valid(r.Result) {
		v.Result = r.Result
	}
	return v
}

func set(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// show prints a record for a person: one fact a line, times in the local zone.
func show(w io.Writer, r *idem.Record) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	at := func(name string, when time.Time) {
		if !when.IsZero() {
			line(name, "%s", when.Local().Format(time.DateTime))
		}
	}
	line("key", "%s", r.Key)
	line("scope", "%v", r.Scope)
	line("state", "%v", r.State)
	line("attempt", "%d (fence %d)", r.Attempt, r.Fence)
	if r.Holder.Host != "" {
		line("holder", "%s, process %d, started %s", r.Holder.Host, r.Holder.PID, r.Holder.Started.Local().Format(time.DateTime))
	}
	at("reserved", r.ReservedAt)
	at("lease until", r.LeaseUntil)
	at("completed", r.CompletedAt)
	at("replayed until", r.ReplayUntil)
	at("known until", r.KnownUntil)
	if r.Failure != nil {
		line("failure", "%v", r.Failure)
	}
	if r.Evidence != "" {
		line("evidence", "%s", r.Evidence)
	}
	if r.Result != nil {
		line("result", "%d bytes (%s); shown by --json", len(r.Result), r.Codec)
	}
	return t.Flush()
}
