package backendtest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
)

// show prints what matters of a record in a failure.
func show(r backend.Record) string {
	if r.State == 0 {
		return "no record"
	}
	s := fmt.Sprintf("a record %v (attempt %d, fence %d, %v, body of %d bytes", r.State, r.Attempt, r.Fence, r.OnAbandoned, len(r.Body))
	for _, t := range []struct {
		name string
		t    time.Time
	}{{"lease until", r.LeaseUntil}, {"completed", r.CompletedAt}, {"replay until", r.ReplayUntil}, {"known until", r.KnownUntil}} {
		if !t.t.IsZero() {
			s += fmt.Sprintf(", %s %s", t.name, t.t.UTC().Format("15:04:05.000"))
		}
	}
	return s + ")"
}

// diff names the fields in which two records differ. Times may be tick apart; a
// missing time equals only a missing one.
func diff(a, b backend.Record, tick time.Duration) string {
	var d []string
	add := func(ok bool, name string, x, y any) {
		if !ok {
			d = append(d, fmt.Sprintf("%s was %v, is %v", name, x, y))
		}
	}
	add(a.ID == b.ID, "identity", a.ID, b.ID)
	add(a.Owner == b.Owner, "owner token", fmt.Sprintf("%x", a.Owner), fmt.Sprintf("%x", b.Owner))
	add(a.State == b.State, "state", a.State, b.State)
	add(bytes.Equal(a.Fingerprint, b.Fingerprint), "fingerprint", fmt.Sprintf("%x", a.Fingerprint), fmt.Sprintf("%x", b.Fingerprint))
	add(a.Fence == b.Fence, "fence", a.Fence, b.Fence)
	add(a.Attempt == b.Attempt, "attempt", a.Attempt, b.Attempt)
	add(a.TookOver == b.TookOver, "took over", a.TookOver, b.TookOver)
	add(a.OnAbandoned == b.OnAbandoned, "policy", a.OnAbandoned, b.OnAbandoned)
	add(a.Holder.Host == b.Holder.Host && a.Holder.PID == b.Holder.PID && near(a.Holder.Started, b.Holder.Started, tick), "holder", a.Holder, b.Holder)
	add(bytes.Equal(a.Body, b.Body), "body", quote(a.Body), quote(b.Body))
	add(a.Evidence == b.Evidence, "evidence", a.Evidence, b.Evidence)
	for _, t := range []struct {
		name string
		a, b time.Time
	}{
		{"reserved at", a.ReservedAt, b.ReservedAt}, {"lease until", a.LeaseUntil, b.LeaseUntil}, {"completed at", a.CompletedAt, b.CompletedAt},
		{"replay until", a.ReplayUntil, b.ReplayUntil}, {"known until", a.KnownUntil, b.KnownUntil},
	} {
		add(near(t.a, t.b, tick), t.name, t.a.UTC(), t.b.UTC())
	}
	return strings.Join(d, "; ")
}

func quote(b []byte) string {
	if len(b) > 60 {
		return fmt.Sprintf("%q... (%d bytes)", b[:60], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// near reports whether two times are at most tick apart.
func near(a, b time.Time, tick time.Duration) bool {
	if a.IsZero() || b.IsZero() {
		return a.IsZero() == b.IsZero()
	}
	return a.Sub(b).Abs() <= tick
}

// broken names what no stored record may look like, whatever happened to it.
func broken(r *backend.Record) string {
	ended := r.State == backend.Completed || r.State == backend.Failed
	switch {
	case r.State < backend.InFlight || r.State > backend.Open:
		return "it has no known state"
	case r.Fence == 0:
		return "it has no fence"
	case r.Attempt < 1:
		return "it has no attempt number"
	case r.OnAbandoned < backend.Rerun || r.OnAbandoned > backend.Hold:
		return "it has no policy for an abandoned attempt"
	case r.State == backend.InFlight && r.LeaseUntil.IsZero():
		return "it is in flight without a lease deadline (R14)"
	case r.State == backend.InFlight && r.OnAbandoned == backend.Rerun && !r.KnownUntil.After(r.LeaseUntil):
		return "it is abandoned under Rerun and would be gone at once (R22)"
	case r.State == backend.InFlight && r.OnAbandoned != backend.Rerun && !r.KnownUntil.IsZero():
		return "it has a window under Hold or Recover (R22)"
	case r.State == backend.Uncertain && !r.KnownUntil.IsZero():
		return "it is uncertain and has a window (R22)"
	case ended && (r.CompletedAt.IsZero() || r.ReplayUntil.IsZero() || r.KnownUntil.IsZero()):
		return "it is settled and lacks a time of completion or a window (R22)"
	case ended && r.KnownUntil.Before(r.ReplayUntil):
		return "its dedup window ends before its replay window (R22)"
	case !ended && (!r.CompletedAt.IsZero() || !r.ReplayUntil.IsZero()):
		return "it is not settled and has a time of completion or a replay window"
	case r.State == backend.Open && (len(r.Fingerprint) > 0 || len(r.Body) > 0):
		return "it is open and still bound to a fingerprint or a body (R2)"
	case r.State == backend.Open && r.KnownUntil.IsZero():
		return "it is open and has no end"
	}
	return ""
}

// invariants looks at every record that a subtest has left behind.
func (k *kit) invariants() {
	k.t.Helper()
	if k.planted || k.t.Skipped() {
		return
	}
	for rec, err := range k.open().List(k.ctx, backend.Filter{}) {
		k.check(err == nil, "List: %v", err)
		if fault := broken(&rec); fault != "" {
			k.fail("afterwards the store holds %s: %s", show(rec), fault)
		}
	}
}
