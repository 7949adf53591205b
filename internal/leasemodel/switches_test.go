package leasemodel

import "testing"

// bite says where a clause that is turned off is missed, and by which invariant.
type bite struct {
	off    Switch
	in     Scenario
	breaks string
}

// More scenarios, for the clauses that the others do not reach.
var (
	holdAndRerun = Scenario{Attempts: 2, Policies: []Policy{Rerun, Hold}, Prints: 1}
	holdOnly     = Scenario{Attempts: 2, Policies: onlyHold, Prints: 1}
	recoverOnly  = Scenario{Attempts: 2, Policies: []Policy{Recover}, Prints: 1}
	forgetRerun  = Scenario{Attempts: 2, Policies: onlyRerun, Prints: 1, Forget: true}
	threeReruns  = Scenario{Attempts: 3, Policies: onlyRerun, Prints: 1}
)

// bites holds every clause that the model finds necessary.
var bites = []bite{
	{ReserveCopyReopens, plainTwo, "one-ownership-per-token"},
	{CompleteAnyOwner, plainTwo, "live-key-kept"},
	{CompleteAnyState, resolve, "free-stays-free"},
	{CompleteCreates, windows, "completion-creates-nothing"},
	{RenewAnyState, plainTwo, "completion-stands"},
	{ReleaseAnyOwner, plainTwo, "live-key-kept"},
	{ReleaseUncertain, plainTwo, "uncertain-waits"},
	{TakeoverAnyFence, plainTwo, "one-ownership-per-token"},
	{TakeoverAnyLease, plainTwo, "live-key-kept"},
	{PlainTakesOver, plainTwo, "one-ownership-per-token"},
	{OpenKeepsFingerprint, plainTwo, "mismatch-only-when-bound"},
	{OpenKeptTooShort, windows, "one-ownership-per-token"},
	{FingerprintIgnored, plainTwo, "fingerprint-bound"},
	{ResolveAnyFence, resolve, "word-about-what-was-seen"},
	{ResolveKeepsToken, resolve, "acknowledged-result-stays"},
	{ResolveLive, resolve, "live-key-kept"},
	{ForgetLive, forget, "live-key-kept"},
	{CallerPolicyIgnored, holdAndRerun, "hold-starts-no-second-fn"},
	{PolicyNotStored, holdAndRerun, "hold-starts-no-second-fn"},
	{RecoverLied, plainTwo, "recover-asks-first"},
	{NoDeadlineIsOver, resolve, "live-key-kept"},
	{NoFenceCounter, windows, "fence-grows"},
	{LateGrantStarts, plainTwo, "start-on-live-grant"},
	{CountFromLastSend, plainTwo, "holder-never-later"},
	{ReleaseAfterLoss, holdOnly, "hold-starts-no-second-fn"},
	{StoreErrorReleases, holdOnly, "hold-starts-no-second-fn"},
	{TakeoverKeepsToken, plainTwo, "one-ownership-per-token"},
	{LateRenewalRevives, plainTwo, "recover-answer-holds"},
	{OpenForgetsFence, threeReruns, "one-ownership-per-token"},
	{ForgetAnyFence, forgetRerun, "word-about-what-was-seen"},
}

// backup is a clause that the model does not miss while the clause in front of it
// stands: a second line of defence.
type backup struct {
	off, front Switch
	in         Scenario
	breaks     string // once both are off
}

var backups = []backup{
	{OpenForgetsToken, PlainTakesOver, alone, "one-ownership-per-token"},
	{RecoverUnchecked, RecoverUnasked, recoverOnly, "recover-asks-first"},
}

// harmless holds the clauses that are missed by the letter of a rule only.
var harmless = []bite{
	{RepeatedReserveExtends, recoverOnly, "copies-change-nothing"},
}

// TestModelSwitches turns every clause off, one after the other, and expects the
// model to show what goes wrong; run it with -v to read the traces.
func TestModelSwitches(t *testing.T) {
	var covered Switch
	check := func(t *testing.T, off Switch, in Scenario, invariants []Invariant, breaks string) {
		t.Helper()
		rep := (&Model{Off: off, Start: in.Start(), Invariants: invariants}).Explore()
		switch {
		case breaks == "" && rep.Broken != nil:
			t.Errorf("with %v: want nothing broken; the model %v", off, rep)
		case breaks != "" && rep.Broken == nil:
			t.Errorf("with %v: want %s broken; the model finds %v", off, breaks, rep)
		case breaks != "" && rep.Broken.Name != breaks:
			t.Errorf("with %v: want %s broken; the model %v", off, breaks, rep)
		case breaks != "":
			t.Logf("with %v, after %d states, %d steps: the protocol %v", off, rep.States, len(rep.Trace), rep)
		default:
			t.Logf("with %v: %v", off, rep)
		}
	}
	for _, b := range bites {
		covered |= b.off
		t.Run(b.off.String(), func(t *testing.T) {
			check(t, b.off, b.in, Harms, b.breaks)
		})
	}
	for _, b := range backups {
		covered |= b.off | b.front
		t.Run(b.off.String(), func(t *testing.T) {
			check(t, b.off, b.in, All(), "")
			check(t, b.front, b.in, All(), "")
			check(t, b.off|b.front, b.in, Harms, b.breaks)
		})
	}
	for _, b := range harmless {
		covered |= b.off
		t.Run(b.off.String(), func(t *testing.T) {
			check(t, b.off, b.in, Harms, "")
			check(t, b.off, b.in, Forms, b.breaks)
		})
	}
	for _, c := range Clauses {
		if covered&c.Switch == 0 {
			t.Errorf("no test turns %s off", c.Name)
		}
	}
}

// TestModelRecordLease shows that a holder may keep one token through a call and
// count from its latest sending, if it takes off its lease what the record says
// has run of it. Only the letter of R3 misses something: a token that never ran fn
// can own the key a second time.
func TestModelRecordLease(t *testing.T) {
	var harms []Invariant
	for _, inv := range Harms {
		if inv.Name != "one-ownership-per-token" {
			harms = append(harms, inv)
		}
	}
	off := TakeoverKeepsToken | CountFromLastSend
	for _, in := range []Scenario{alone, holdAndRerun, recoverOnly, forget, windows} {
		if rep := (&Model{Off: off | CountsRecordLease, Start: in.Start(), Invariants: harms}).Explore(); rep.Broken != nil {
			t.Errorf("with the record's lease counted, the protocol %v", rep)
		}
	}
	rep := (&Model{Off: TakeoverKeepsToken, Start: windows.Start(), Invariants: harms}).Explore()
	if rep.Broken == nil {
		t.Fatal("one token for a call, counted from the takeover: want a violation, found none")
	}
	t.Logf("one token for a call, counted from the takeover: the protocol %v", rep)
}
