package leasemodel

// This file is the store: each move is a pure function from record to record,
// written down from the rules and independent of package backend, which a test
// holds against it.

// ReserveRequest asks for the key.
type ReserveRequest struct {
	Owner, Print int8
	Policy       Policy
	Take         int8 // observed fence; plain: only create
	Recovered    bool
	Seed         int8 // least fence of a new attempt
}

// Reserve returns the record after a reserve and the answer; the answer to an
// existing record describes the returned one.
func (sw Switch) Reserve(cur Record, q ReserveRequest) (Record, answer) {
	if sw.off(NoFenceCounter) {
		q.Seed = 1
	}
	if cur.Phase == Absent {
		if q.Take != plain {
			return cur, gone
		}
		return sw.begin(cur, q, max(q.Seed, 1)), acquired
	}
	bound := cur.Phase != Open || sw.off(OpenKeepsFingerprint)
	if !cur.Over && bound && cur.Print != q.Print && !sw.off(FingerprintIgnored) {
		return cur, mismatch
	}
	if cur.Owner == q.Owner {
		return sw.reserveAgain(cur)
	}

	abandoned := sw.abandoned(cur)
	available := cur.Over || cur.Phase == Open || abandoned || sw.off(TakeoverAnyLease) && cur.Phase == InFlight
	switch {
	case q.Take == plain:
		available = available && sw.off(PlainTakesOver)
	case q.Take != cur.Fence:
		available = available && sw.off(TakeoverAnyFence)
	}
	if !available {
		return cur, sw.classify(cur)
	}
	if abandoned && !cur.Over {
		switch sw.governing(cur.Policy, q.Policy) {
		case Hold:
			cur.Phase, cur.Policy, cur.Lease = Uncertain, Hold, 0
			return cur, unresolved
		case Recover:
			if !q.Recovered && !sw.off(RecoverUnchecked) {
				return cur, lapsed
			}
		}
	}
	return sw.begin(cur, q, max(cur.Fence+1, q.Seed)), acquired
}

// reserveAgain answers a repeated copy of a reserve that meets its own token.
func (sw Switch) reserveAgain(cur Record) (Record, answer) {
	switch {
	case cur.Over:
	case cur.Phase == InFlight:
		if sw.off(RepeatedReserveExtends) {
			cur.Lease = lease
		}
		return cur, acquired
	case cur.Phase == Open && sw.off(ReserveCopyReopens):
		cur.Phase, cur.Lease = InFlight, lease
		return cur, acquired
	}
	return cur, sw.classify(cur)
}

// abandoned reports whether the store takes an attempt for abandoned.
func (sw Switch) abandoned(r Record) bool {
	return r.abandoned() || r.Phase == InFlight && r.Lease == noLease && sw.off(NoDeadlineIsOver)
}

// governing returns the policy that decides about an abandoned attempt.
func (sw Switch) governing(stored, caller Policy) Policy {
	switch {
	case sw.off(CallerPolicyIgnored):
		return stored
	case sw.off(PolicyNotStored):
		return caller
	}
	return max(stored, caller)
}

// begin returns the record of a new attempt.
func (sw Switch) begin(cur Record, q ReserveRequest, fence int8) Record {
	next := Record{
		Phase: InFlight, Owner: q.Owner, Fence: fence, Num: 1,
		Policy: q.Policy, Print: q.Print, Lease: lease,
	}
	if cur.Phase != Absent && !cur.Over {
		next.Num = cur.Num + 1
		if next.Took = cur.Phase == InFlight; next.Took {
			next.Policy = max(cur.Policy, q.Policy)
		}
	}
	return next
}

// classify says what a caller other than the owner reads in a stored record.
func (sw Switch) classify(r Record) answer {
	switch {
	case r.Over || r.Phase == Open:
		return free
	case sw.abandoned(r):
		return lapsed
	case r.Phase == InFlight:
		return inFlight
	case r.Phase == Uncertain:
		return unresolved
	}
	return finished
}

// Complete returns the record after a completion by owner to phase to.
func (sw Switch) Complete(cur Record, owner int8, to Phase) (Record, answer) {
	if cur.Phase == Absent && sw.off(CompleteCreates) {
		return Record{Phase: to, Owner: owner, Fence: 1, Num: 1, Result: owner}, done
	}
	if cur.Phase == Absent || cur.Over || cur.Owner != owner && !sw.off(CompleteAnyOwner) {
		return cur, lost
	}
	if !sw.off(CompleteAnyState) {
		switch cur.Phase {
		case Completed, Failed:
			return cur, done
		case Open:
			return cur, lost
		case Uncertain:
			if to == Uncertain {
				return cur, done
			}
		}
	}
	cur.Phase, cur.Lease, cur.Result = to, 0, owner
	if to == Uncertain {
		cur.Result = 0
	}
	return cur, done
}

// Release returns the record after a release by owner.
func (sw Switch) Release(cur Record, owner int8) (Record, answer) {
	if cur.Phase == Absent || cur.Over || cur.Owner != owner && !sw.off(ReleaseAnyOwner) {
		return cur, done
	}
	switch {
	case cur.Phase == InFlight, cur.Phase == Uncertain && sw.off(ReleaseUncertain):
		return sw.open(cur), done
	case cur.Phase == Uncertain:
		return cur, lost
	}
	return cur, done
}

// open returns the released form of a record.
func (sw Switch) open(cur Record) Record {
	cur.Phase, cur.Result, cur.Lease = Open, 0, 0
	if !sw.off(OpenKeepsFingerprint) {
		cur.Print = 0
	}
	if sw.off(OpenForgetsFence) {
		cur.Fence = 0
	}
	if sw.off(OpenForgetsToken) {
		cur.Owner = 0
	}
	return cur
}

// Renew returns the record after a renewal by owner.
func (sw Switch) Renew(cur Record, owner int8) (Record, answer) {
	if cur.Phase == Absent || cur.Over || cur.Owner != owner {
		return cur, lost
	}
	if cur.Phase != InFlight && !sw.off(RenewAnyState) {
		return cur, lost
	}
	cur.Phase = InFlight
	if cur.Lease != noLease {
		cur.Lease = lease
	}
	return cur, done
}

// Resolve returns the record after a person's word about the attempt with fence.
func (sw Switch) Resolve(cur Record, fence int8, applied bool) (Record, answer) {
	if cur.Phase == Absent || cur.Over || cur.Fence != fence && !sw.off(ResolveAnyFence) {
		return cur, lost
	}
	switch {
	case cur.Phase == InFlight && cur.Lease > 0 && !sw.off(ResolveLive):
		return cur, lost
	case cur.Phase == Open && !applied, cur.Phase == Completed && applied && cur.Owner == 0:
		return cur, done
	case cur.Phase != InFlight && cur.Phase != Uncertain:
		return cur, lost
	case !applied:
		return sw.open(cur), done
	}
	cur.Phase, cur.Lease, cur.Result = Completed, 0, operator
	if !sw.off(ResolveKeepsToken) {
		cur.Owner = 0
	}
	return cur, done
}

// Forget returns the record after a deletion.
func (sw Switch) Forget(cur Record, fence int8, force bool) (Record, answer) {
	switch {
	case cur.Phase == Absent || cur.Over,
		cur.Fence != fence && !sw.off(ForgetAnyFence),
		cur.live() && !force && !sw.off(ForgetLive):
		return cur, lost
	}
	return Record{}, done
}

// Sweep returns the record after a round of removal.
func (sw Switch) Sweep(cur Record) Record {
	if cur.Over {
		return Record{}
	}
	return cur
}
