// Package view shows records: as JSON for programs, as tables for people.
package view

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

// Record is the JSON form of a record. Times that are not set are left out.
type Record struct {
	Tenant    string `json:"tenant,omitempty"`
	Operation string `json:"operation"`
	Key       string `json:"key"`
	State     string `json:"state"`
	// Abandoned: in flight, and its lease is over.
	Abandoned   bool       `json:"abandoned,omitempty"`
	Attempt     int        `json:"attempt"`
	Fence       uint64     `json:"fence"`
	TookOver    bool       `json:"tookOver,omitempty"`
	OnAbandoned string     `json:"onAbandoned,omitempty"`
	Holder      *Holder    `json:"holder,omitempty"`
	ReservedAt  *time.Time `json:"reservedAt,omitempty"`
	LeaseUntil  *time.Time `json:"leaseUntil,omitempty"`
	CompletedAt *time.Time `json:"completedAt,omitempty"`
	ReplayUntil *time.Time `json:"replayUntil,omitempty"`
	KnownUntil  *time.Time `json:"knownUntil,omitempty"`
	Failure     *Failure   `json:"failure,omitempty"`
	Evidence    string     `json:"evidence,omitempty"`
	Codec       string     `json:"codec,omitempty"`
	// Result is there where the stored result is JSON, ResultBytes where it is not.
	Result      json.RawMessage `json:"result,omitempty"`
	ResultBytes []byte          `json:"resultBytes,omitempty"`
}

// Holder says where an attempt runs.
type Holder struct {
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// Failure is the outcome of a failed record.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// JSON returns the JSON form of a record.
func JSON(r *idem.Record, now time.Time) Record {
	v := Record{
		Tenant: r.Scope.Tenant, Operation: r.Scope.Operation, Key: string(r.Key),
		State: r.State.String(), Abandoned: Abandoned(r, now),
		Attempt: r.Attempt, Fence: r.Fence, TookOver: r.TookOver, Evidence: r.Evidence, Codec: r.Codec,
		ReservedAt: set(r.ReservedAt), LeaseUntil: set(r.LeaseUntil), CompletedAt: set(r.CompletedAt),
		ReplayUntil: set(r.ReplayUntil), KnownUntil: set(r.KnownUntil),
	}
	if r.OnAbandoned != 0 {
		v.OnAbandoned = r.OnAbandoned.String()
	}
	if r.Holder.Host != "" {
		v.Holder = &Holder{Host: r.Holder.Host, PID: r.Holder.PID, Started: r.Holder.Started}
	}
	if r.Failure != nil {
		v.Failure = &Failure{Code: r.Failure.Code, Message: r.Failure.Message}
	}
	if json.Valid(r.Result) {
		v.Result = r.Result
	} else {
		v.ResultBytes = r.Result
	}
	return v
}

func set(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Abandoned reports whether a record is in flight with its lease over.
func Abandoned(r *idem.Record, now time.Time) bool {
	return r.State == idem.StateInFlight && !r.LeaseUntil.IsZero() && !now.Before(r.LeaseUntil)
}

// State is the state of a record as a cell.
func State(r *idem.Record, now time.Time) Cell { return stateCell(r.State, Abandoned(r, now)) }

func stateCell(state idem.State, abandoned bool) Cell {
	switch state {
	case idem.StateInFlight:
		if abandoned {
			return Cell{"abandoned", Yellow}
		}
		return Cell{"in flight", Cyan}
	case idem.StateCompleted:
		return Cell{"completed", Green}
	case idem.StateFailed, idem.StateUncertain:
		return Cell{state.String(), Red}
	}
	return Cell{state.String(), Dim}
}

// Lease is what is left of a record's lease.
func Lease(r *idem.Record, now time.Time) string {
	switch {
	case r.State != idem.StateInFlight:
		return ""
	case r.LeaseUntil.IsZero():
		return "no end: held for a person"
	case Abandoned(r, now):
		return "over for " + Age(now.Sub(r.LeaseUntil))
	}
	return Age(r.LeaseUntil.Sub(now)) + " left"
}

// Age is a duration as people read it: one or two units.
func Age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// HolderText names the process of an attempt.
func HolderText(r *idem.Record) string {
	if r.Holder.Host == "" {
		return ""
	}
	return fmt.Sprintf("%s, process %d", Text(r.Holder.Host), r.Holder.PID)
}

// Show prints a record for a person: one fact a line, times in the local zone, and
// what the state means.
func Show(w io.Writer, r *idem.Record, now time.Time) error {
	var t Table
	line := func(name string, c Cell) { t.Add(C(name), c) }
	at := func(name string, when time.Time) {
		if !when.IsZero() {
			line(name, C(when.Local().Format(time.DateTime)+" ("+relative(when, now)+")"))
		}
	}
	line("key", C(Text(string(r.Key))))
	line("operation", C(Text(r.Scope.Operation)))
	if r.Scope.Tenant != "" {
		line("tenant", C(Text(r.Scope.Tenant)))
	}
	state := State(r, now)
	state.Text += ": " + meaning(r, now)
	line("state", state)
	attempt := fmt.Sprintf("%d (fence %d)", r.Attempt, r.Fence)
	if r.TookOver {
		attempt += ", took over an abandoned one"
	}
	line("attempt", C(attempt))
	if r.Holder.Host != "" {
		line("holder", C(HolderText(r)+", started "+r.Holder.Started.Local().Format(time.DateTime)))
	}
	if r.State == idem.StateInFlight || r.State == idem.StateUncertain {
		line("if abandoned", C(r.OnAbandoned.String()))
	}
	at("began", r.ReservedAt)
	at("lease until", r.LeaseUntil)
	at("completed", r.CompletedAt)
	at("replayed until", r.ReplayUntil)
	at("known until", r.KnownUntil)
	if r.Failure != nil {
		line("failure", C(Text(r.Failure.Code)))
		if r.Failure.Message != "" {
			line("", C(Text(r.Failure.Message)))
		}
	}
	if r.Evidence != "" {
		line("evidence", C(Text(r.Evidence)))
	}
	result(&t, r)
	return t.Write(w)
}

// result adds what is stored of the outcome, never all of it.
func result(t *Table, r *idem.Record) {
	if r.Result == nil {
		return
	}
	if o, ok := Command(r); ok {
		stdout, stderr := 0, 0
		for _, p := range o.Output {
			if p.Stderr {
				stderr += len(p.Data)
			} else {
				stdout += len(p.Data)
			}
		}
		t.Add(C("exit status"), C(fmt.Sprint(o.Exit)))
		switch {
		case o.Dropped:
			t.Add(C("output"), C("was longer than what is kept"))
		case o.NotKept:
			t.Add(C("output"), C("was not to be kept"))
		default:
			t.Add(C("output"), C(fmt.Sprintf("%s on standard output, %s on standard error; shown by --output", Bytes(int64(stdout)), Bytes(int64(stderr)))))
		}
		return
	}
	t.Add(C("result"), C(fmt.Sprintf("%s (%s); shown by --json", Bytes(int64(len(r.Result))), Text(r.Codec))))
}

// Command returns what a record of idem run holds: how the command ended and what
// it wrote.
func Command(r *idem.Record) (command.Outcome, bool) {
	var o command.Outcome
	var shape map[string]json.RawMessage
	if json.Unmarshal(r.Result, &shape) != nil || shape["exit"] == nil {
		return o, false
	}
	return o, json.Unmarshal(r.Result, &o) == nil
}

func relative(when, now time.Time) string {
	if when.After(now) {
		return "in " + Age(when.Sub(now))
	}
	return Age(now.Sub(when)) + " ago"
}

// meaning is what a state says about the operation, in a few words.
func meaning(r *idem.Record, now time.Time) string {
	switch r.State {
	case idem.StateInFlight:
		switch {
		case r.LeaseUntil.IsZero():
			return "held without an end until a person resolves or forgets it"
		case !Abandoned(r, now):
			return "it is being run"
		case r.OnAbandoned == idem.Hold:
			return "its run ended without a word; the next call holds it for a person"
		case r.OnAbandoned == idem.Rerun:
			return "its run ended without a word; the next call runs it again"
		}
		return "its run ended without a word; the next call asks whether it happened"
	case idem.StateCompleted:
		if !r.ReplayUntil.IsZero() && !now.Before(r.ReplayUntil) {
			return "it happened; its result is not kept any more"
		}
		return "it happened; retries get the result"
	case idem.StateFailed:
		return "it is over for good and did not take effect"
	case idem.StateUncertain:
		return "nobody knows whether it happened; idem resolve settles it"
	case idem.StateOpen:
		return "the last run gave the key back; the next call runs it"
	}
	return ""
}

// ParseState reads the name of a state as people type it. abandoned asks for
// those in flight whose lease is over.
func ParseState(name string) (state idem.State, abandoned bool, err error) {
	switch strings.ReplaceAll(strings.ToLower(name), "-", " ") {
	case "":
		return 0, false, nil
	case "in flight", "inflight":
		return idem.StateInFlight, false, nil
	case "abandoned":
		return idem.StateInFlight, true, nil
	case "completed":
		return idem.StateCompleted, false, nil
	case "failed":
		return idem.StateFailed, false, nil
	case "uncertain":
		return idem.StateUncertain, false, nil
	case "open":
		return idem.StateOpen, false, nil
	}
	return 0, false, fmt.Errorf("idem: %q is no state; there are %s", name, strings.Join(States(), ", "))
}

// States are the names that ParseState reads.
func States() []string {
	return []string{"in-flight", "abandoned", "completed", "failed", "uncertain", "open"}
}
