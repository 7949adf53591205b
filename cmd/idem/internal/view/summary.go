package view

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// Summary counts records.
type Summary struct {
	Records    int64            `json:"records"`
	Bytes      int64            `json:"bytes"` // of results
	States     map[string]int64 `json:"states"`
	Operations []Operation      `json:"operations"`
	Oldest     *time.Time       `json:"oldest,omitempty"` // when the oldest attempt began
	File       File             `json:"file,omitzero"`
	Store      string           `json:"store,omitempty"` // the URL of a store that is no file
	Backlog    *Backlog         `json:"backlog,omitempty"`
}

// Backlog is what waits for a sweep in a store that is no file.
type Backlog struct {
	Due           int64   `json:"due"`
	Capped        bool    `json:"capped,omitempty"` // at least so many
	OldestSeconds float64 `json:"oldestSeconds"`    // how long the oldest has been due
}

// SetBacklog notes what waits for a sweep.
func (s *Summary) SetBacklog(b backend.Backlog) {
	s.Backlog = &Backlog{Due: b.Due, Capped: b.Capped, OldestSeconds: b.Oldest.Seconds()}
}

// String is the backlog in words.
func (b *Backlog) String() string {
	least := ""
	if b.Capped {
		least = "at least "
	}
	age := Age(time.Duration(b.OldestSeconds * float64(time.Second)))
	return fmt.Sprintf("%s%d records to look at, the oldest for %s", least, b.Due, age)
}

// Operation counts the records of one operation, all tenants together.
type Operation struct {
	Operation string           `json:"operation"`
	Records   int64            `json:"records"`
	Bytes     int64            `json:"bytes"`
	States    map[string]int64 `json:"states"`
}

// File is what is known about the store's file.
type File struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Used  int64  `json:"used"`
	// Expired records are still on disk; Due are those that a sweep would remove.
	Expired int `json:"expired"`
	Due     int `json:"due"`
	// StaleResults are past their replay window; sweeps drop them, group by group.
	StaleResults int `json:"staleResults"`
}

// Summarise counts what a listing yields.
func Summarise(records iter.Seq2[idem.Record, error]) (*Summary, error) {
	type group struct {
		operation string
		state     idem.State
		abandoned bool
	}
	groups := make(map[group]*backend.Tally)
	now := time.Now()
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		g := group{r.Scope.Operation, r.State, Abandoned(&r, now)}
		t := groups[g]
		if t == nil {
			t = &backend.Tally{Operation: g.operation, State: g.state, Abandoned: g.abandoned, Oldest: r.ReservedAt}
			groups[g] = t
		}
		t.Records, t.Bytes = t.Records+1, t.Bytes+int64(len(r.Result))
		if r.ReservedAt.Before(t.Oldest) {
			t.Oldest = r.ReservedAt
		}
	}
	tallies := make([]backend.Tally, 0, len(groups))
	for _, t := range groups {
		tallies = append(tallies, *t)
	}
	return Sum(tallies), nil
}

// Sum adds up what was counted by operation and state.
func Sum(tallies []backend.Tally) *Summary {
	s := &Summary{States: map[string]int64{}, Operations: []Operation{}}
	at := make(map[string]int)
	for _, t := range tallies {
		i, ok := at[t.Operation]
		if !ok {
			i = len(s.Operations)
			at[t.Operation] = i
			s.Operations = append(s.Operations, Operation{Operation: t.Operation, States: map[string]int64{}})
		}
		o := &s.Operations[i]
		state := stateCell(t.State, t.Abandoned).Text
		s.Records, s.Bytes, s.States[state] = s.Records+t.Records, s.Bytes+t.Bytes, s.States[state]+t.Records
		o.Records, o.Bytes, o.States[state] = o.Records+t.Records, o.Bytes+t.Bytes, o.States[state]+t.Records
		if s.Oldest == nil || t.Oldest.Before(*s.Oldest) {
			s.Oldest = &t.Oldest
		}
	}
	slices.SortFunc(s.Operations, func(a, b Operation) int { return strings.Compare(a.Operation, b.Operation) })
	return s
}

// stateColours are the states in the order in which they are shown.
func stateColours() []Cell {
	return []Cell{
		{"completed", Green}, {"failed", Red}, {"in flight", Cyan},
		{"abandoned", Yellow}, {"uncertain", Red}, {"open", Dim},
	}
}

// Write prints the summary for a person.
func (s *Summary) Write(w io.Writer) error {
	t := Table{Header: []string{"OPERATION"}}
	var shown []Cell
	for _, c := range stateColours() {
		if s.States[c.Text] > 0 {
			shown = append(shown, c)
			t.Header = append(t.Header, strings.ToUpper(c.Text))
		}
	}
	t.Header = append(t.Header, "RECORDS", "RESULTS")
	row := func(name string, states map[string]int64, records, bytes int64) {
		cells := []Cell{C(name)}
		for _, c := range shown {
			cell := Cell{"-", Dim}
			if n := states[c.Text]; n > 0 {
				cell = Cell{fmt.Sprint(n), c.Colour}
			}
			cells = append(cells, cell)
		}
		t.Add(append(cells, C(fmt.Sprint(records)), C(Bytes(bytes)))...)
	}
	for _, o := range s.Operations {
		row(Text(o.Operation), o.States, o.Records, o.Bytes)
	}
	if len(s.Operations) != 1 {
		row("all", s.States, s.Records, s.Bytes)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	f := &s.File
	var facts Table
	if s.Store != "" {
		facts.Add(C("store"), C(Text(s.Store)))
	} else {
		facts.Add(C("file"), C(Text(f.Path)))
		facts.Add(C("size"), C(fmt.Sprintf("%s, of which %s are in use", Bytes(f.Bytes), Bytes(f.Used))))
	}
	if s.Oldest != nil {
		facts.Add(C("oldest"), C("began "+Age(time.Since(*s.Oldest))+" ago"))
	}
	if s.Backlog != nil && s.Backlog.Due > 0 {
		facts.Add(C("due"), C(s.Backlog.String()))
	}
	if f.Expired > 0 {
		facts.Add(C("expired"), C(fmt.Sprintf("%d records still on disk, %d of them due", f.Expired, f.Due)))
	}
	if f.StaleResults > 0 {
		facts.Add(C("stale"), C(fmt.Sprintf("%d results past their replay window; sweeps drop them, group by group", f.StaleResults)))
	}
	_, _ = io.WriteString(w, "\n")
	if err := facts.Write(w); err != nil {
		return err
	}
	for _, hint := range s.hints() {
		if _, err := fmt.Fprintln(w, hint); err != nil {
			return err
		}
	}
	return nil
}

// hints say what is worth doing.
func (s *Summary) hints() (hints []string) {
	if s.File.Due > 0 || s.Backlog != nil && s.Backlog.Due > 0 {
		hints = append(hints, "next: idem sweep, to free the room of what is due")
	}
	if free := s.File.Bytes - s.File.Used; free > 4<<20 && free > s.File.Bytes/2 {
		hints = append(hints, fmt.Sprintf("next: idem compact, to give %s back", Bytes(free)))
	}
	if s.States["uncertain"] > 0 {
		hints = append(hints, "next: idem list --state uncertain, to see what waits for a person")
	}
	return hints
}

// diagnosis is the JSON form of what doctor says.
type diagnosis struct {
	Path         string    `json:"path"`
	ProcessCrash string    `json:"processCrash"`
	MachineCrash string    `json:"machineCrash"`
	Failover     string    `json:"failover"`
	Atomic       bool      `json:"atomic"`
	ServerClock  bool      `json:"serverClock"`
	Shared       bool      `json:"shared"`
	Findings     []finding `json:"findings"`
}

type finding struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Want    string `json:"want,omitempty"`
	Text    string `json:"text"`
}

// Doctor prints what a store promises.
func Doctor(w io.Writer, path string, g *backend.Guarantees, asJSON bool) error {
	if asJSON {
		d := diagnosis{
			Path: path, ProcessCrash: g.ProcessCrash.String(), MachineCrash: g.MachineCrash.String(), Failover: g.Failover.String(),
			Atomic: g.Atomic, ServerClock: g.ServerClock, Shared: g.Shared,
		}
		for _, f := range g.Findings {
			d.Findings = append(d.Findings, finding(f))
		}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(d)
	}
	var t Table
	grade := func(what string, s backend.Survival) {
		colour := Red
		switch s {
		case backend.Survives:
			colour = Green
		case backend.Recent, backend.Unchecked:
			colour = Yellow
		}
		t.Add(C(what), Cell{s.String(), colour})
	}
	flag := func(what string, is bool, yes, no string) {
		if is {
			t.Add(C(what), C("yes: "+yes))
		} else {
			t.Add(C(what), C("no: "+no))
		}
	}
	t.Add(C("store"), C(Text(path)))
	grade("crash of the process", g.ProcessCrash)
	grade("crash of the machine", g.MachineCrash)
	grade("failover", g.Failover)
	flag("effect and record in one commit", g.Atomic, "ExecuteTx and ExecuteIn", "a command's effect lies outside of the store; a crash in between is settled by policy")
	flag("the store's own clock", g.ServerClock, "clocks of callers do not matter", "leases and windows are judged by this machine's clock")
	flag("several processes", g.Shared, "they may use it at the same time", "one process keeps it to itself")
	if err := t.Write(w); err != nil {
		return err
	}
	var found Table
	found.Header = []string{"LOOKED AT", "FOUND", "BETTER", ""}
	short := 0
	for _, f := range g.Findings {
		want := C(f.Want)
		if f.Want != "" {
			short++
			want.Colour = Yellow
		}
		found.Add(C(f.Setting), C(f.Value), want, C(f.Text))
	}
	_, _ = io.WriteString(w, "\n")
	if err := found.Write(w); err != nil {
		return err
	}
	verdict := "\nNothing falls short."
	if short == 1 {
		verdict = "\nOne thing falls short: see BETTER."
	} else if short > 1 {
		verdict = fmt.Sprintf("\n%d things fall short: see BETTER.", short)
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}
