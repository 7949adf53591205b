package view

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/goidem/idem"
)

// List prints records as a table, one a line. Columns that nothing is in are left
// out.
func List(w io.Writer, found []idem.Record, now time.Time) error {
	tenants := false
	for i := range found {
		tenants = tenants || found[i].Scope.Tenant != ""
	}
	t := Table{Header: []string{"STATE", "OPERATION"}}
	if tenants {
		t.Header = append(t.Header, "TENANT")
	}
	t.Header = append(t.Header, "KEY", "ATTEMPT", "BEGAN", "")
	for i := range found {
		r := &found[i]
		row := []Cell{State(r, now), C(Text(r.Scope.Operation))}
		if tenants {
			tenant := ""
			if r.Scope.Tenant != "" {
				tenant = Text(r.Scope.Tenant)
			}
			row = append(row, C(tenant))
		}
		row = append(row, C(Text(string(r.Key))), C(strconv.Itoa(r.Attempt)), C(Age(now.Sub(r.ReservedAt))+" ago"), Cell{note(r, now), Dim})
		t.Add(row...)
	}
	return t.Write(w)
}

// note is the last column: what matters about the state.
func note(r *idem.Record, now time.Time) string {
	switch r.State {
	case idem.StateInFlight:
		return HolderText(r) + ", lease " + Lease(r, now)
	case idem.StateUncertain:
		return HolderText(r)
	case idem.StateFailed:
		if r.Failure != nil {
			return Text(r.Failure.Code)
		}
	case idem.StateCompleted:
		if !r.KnownUntil.IsZero() {
			return "known for " + Age(r.KnownUntil.Sub(now))
		}
	}
	return ""
}

// Watch prints what is in flight. With screen it draws over the whole terminal.
func Watch(w io.Writer, found []idem.Record, now time.Time, screen bool) error {
	var out strings.Builder
	if screen {
		out.WriteString("\x1b[H\x1b[2J")
	}
	fmt.Fprintf(&out, "%s  %d in flight\n", now.Local().Format(time.DateTime), len(found))
	if _, err := io.WriteString(w, out.String()); err != nil || len(found) == 0 {
		return err
	}
	t := Table{Header: []string{"STATE", "LEASE", "FOR", "HOLDER", "OPERATION", "TENANT", "KEY"}}
	for i := range found {
		r := &found[i]
		tenant := ""
		if r.Scope.Tenant != "" {
			tenant = Text(r.Scope.Tenant)
		}
		t.Add(State(r, now), C(Lease(r, now)), C(Age(now.Sub(r.ReservedAt))), C(HolderText(r)), C(Text(r.Scope.Operation)), C(tenant), C(Text(string(r.Key))))
	}
	return t.Write(w)
}
