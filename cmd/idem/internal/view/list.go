package view

import (
	"io"
	"strconv"
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
