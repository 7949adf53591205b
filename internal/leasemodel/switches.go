package leasemodel

import "strings"

// Switch turns clauses of the protocol off, one bit each. The zero Switch is the
// protocol as designed.
type Switch uint64

// The clauses that can be turned off.
const (
	ReserveCopyReopens Switch = 1 << iota
	RepeatedReserveExtends
	CompleteAnyOwner
	CompleteAnyState
	CompleteCreates
	RenewAnyState
	ReleaseAnyOwner
	ReleaseUncertain
	TakeoverAnyFence
	TakeoverAnyLease
	PlainTakesOver
	OpenForgetsFence
	OpenForgetsToken
	OpenKeepsFingerprint
	OpenKeptTooShort
	FingerprintIgnored
	ResolveAnyFence
	ResolveKeepsToken
	ResolveLive
	ForgetAnyFence
	ForgetLive
	CallerPolicyIgnored
	PolicyNotStored
	RecoverUnchecked
	RecoverUnasked
	RecoverLied
	NoDeadlineIsOver
	NoFenceCounter
	LateGrantStarts
	CountFromLastSend
	ReleaseAfterLoss
	StoreErrorReleases
	TakeoverKeepsToken
	LateRenewalRevives

	// CountsRecordLease is not a clause turned off but one added, in place of two
	// others: the holder takes off its lease what the record says has run of it
	// when the grant was decided. It is what the core does.
	CountsRecordLease
)

// Clause describes a switch: its name, the rule that it breaks, and what the
// protocol does once it is broken.
type Clause struct {
	Switch Switch
	Name   string
	Rule   string
	Broken string
}

// Clauses lists every clause that can be turned off.
//
// lint:const a table, never changed
var Clauses = []Clause{
	{ReserveCopyReopens, "reserve-copy-reopens-open-record", "R3", "a copy of a reserve that meets its own token in an open record puts it back in flight"},
	{RepeatedReserveExtends, "repeated-reserve-extends-lease", "R3", "a copy of a reserve starts the lease again"},
	{CompleteAnyOwner, "complete-without-owner-check", "R3 R12", "a completion does not compare the token"},
	{CompleteAnyState, "complete-without-state-check", "R3 R12", "a completion does not compare the state"},
	{CompleteCreates, "complete-creates-record", "R12", "a completion that meets no record writes one"},
	{RenewAnyState, "renew-outside-flight", "R3", "a renewal puts its token's record in flight whatever its state"},
	{ReleaseAnyOwner, "release-without-token", "R3", "a release does not compare the token"},
	{ReleaseUncertain, "release-of-uncertain", "R3 R13", "a release opens an uncertain key"},
	{TakeoverAnyFence, "takeover-without-CAS-on-fence", "R6", "a takeover does not compare the fence that was observed"},
	{TakeoverAnyLease, "takeover-without-lease-check-in-same-step", "R6", "a takeover trusts the caller's look at the lease"},
	{PlainTakesOver, "plain-reserve-takes-over", "R6", "a plain reserve takes over what is free"},
	{OpenForgetsFence, "open-forgets-fence", "R4", "a release drops the fence"},
	{OpenForgetsToken, "open-forgets-token", "R3", "a release drops the token"},
	{OpenKeepsFingerprint, "open-keeps-fingerprint", "R2", "a release does not unbind the fingerprint"},
	{OpenKeptTooShort, "open-kept-too-short", "section 4", "an open record ends while requests of its attempt are under way"},
	{FingerprintIgnored, "fingerprint-ignored", "R2", "a reserve does not compare the fingerprint"},
	{ResolveAnyFence, "resolve-without-fence", "R3", "Resolve does not compare the fence that the operator saw"},
	{ResolveKeepsToken, "resolve-keeps-token", "R3 R13", "Resolve(applied) leaves the attempt's token in the record"},
	{ResolveLive, "resolve-of-live", "R13", "Resolve does not refuse an attempt whose lease runs"},
	{ForgetAnyFence, "forget-without-fence", "R3", "Forget does not compare the fence that the operator saw"},
	{ForgetLive, "forget-live-without-force", "R3", "Forget does not refuse a live attempt"},
	{CallerPolicyIgnored, "stricter-policy-ignored", "R13", "only the stored policy counts"},
	{PolicyNotStored, "hold-not-stored", "R13", "only the caller's policy counts"},
	{RecoverUnchecked, "recover-flag-unchecked", "R13", "the store does not check that the caller has asked"},
	{RecoverUnasked, "core-skips-the-question", "R13", "the core does not ask, and does not say that it has"},
	{RecoverLied, "recover-without-asking", "R13", "the core does not ask, and says that it has"},
	{NoDeadlineIsOver, "no-deadline-is-over", "R14", "a record without a lease deadline reads as abandoned"},
	{NoFenceCounter, "fence-from-record-alone", "R4", "a new record's fence starts at 1 again"},
	{LateGrantStarts, "late-grant-starts-fn", "R3", "a grant whose lease is over by the holder's clock starts fn"},
	{CountFromLastSend, "lease-counted-from-last-send", "R3", "the holder counts its lease from the last copy sent"},
	{ReleaseAfterLoss, "release-after-lease-lost", "R11", "fn's error releases the key although the lease was lost"},
	{StoreErrorReleases, "store-error-releases", "R10", "a completion without an answer is followed by a release"},
	{TakeoverKeepsToken, "takeover-keeps-token", "R3", "a takeover carries the token of the plain reserve before it"},
	{LateRenewalRevives, "late-renewal-revives", "R8", "a renewal answered after the lease was over by the holder's clock brings the lease back"},
}

// String returns the names of the clauses that are turned off.
func (s Switch) String() string {
	var names []string
	for _, c := range Clauses {
		if s&c.Switch != 0 {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, " + ")
}

// off reports whether one of the clauses in c is turned off.
func (s Switch) off(c Switch) bool { return s&c != 0 }
