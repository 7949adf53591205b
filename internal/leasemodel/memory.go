package leasemodel

// remember updates what the invariants know after a step. It is written from the
// rules and asks the store nothing: it sees which record became which.
func (s *State) remember(from *State, ev Event) {
	if ev.Kind != deliver && ev.Kind != obey || s.Rec == from.Rec || s.Rec.Phase == Absent {
		return
	}
	before, after := from.Rec, s.Rec
	held := before.Phase == InFlight || before.Phase == Uncertain
	if ev.Kind == deliver && ev.Msg&(msgPlain|msgTake) != 0 && after.Phase == InFlight &&
		(before.Phase != InFlight || before.Owner == 0 || attemptOf(before.Owner) != ev.Who || before.Fence != after.Fence) {
		s.grant(before, ev.Who)
	}
	if held && before.Owner != 0 && !before.Over && (after.Owner != before.Owner || after.Phase == Open) {
		owner, token := s.holder(before.Owner)
		owner.Over |= token
		if after.Phase == Open {
			s.Bound = 0
			released := ev.Kind == deliver && ev.Who == attemptOf(before.Owner) && !owner.Effect
			resolved := ev.Kind == obey && from.Operator.Owner == before.Owner
			owner.Settled = owner.Settled || released || resolved
		}
	}
	for i := range s.Attempt {
		if a := &s.Attempt[i]; a.Ran && a.Settled && a.Over != 0 {
			a.Stored = 0 // nobody asks any more
		}
	}
	if after.Phase == Completed && s.Result == 0 {
		s.Result = after.Result
	}
}

// grant notes that the store has given the key to id over the record before. An
// abandoned attempt is settled by that if its lease was over and the stricter of
// the two policies allows it.
func (s *State) grant(before Record, id int8) {
	a := s.at(id)
	a.Stored, s.Bound = a.Policy, a.Print
	if before.Phase != InFlight || before.Over || before.Owner == 0 {
		return
	}
	prev, _ := s.holder(before.Owner)
	a.Stored = max(prev.Stored, a.Policy)
	asked := a.Asked && a.Take == before.Fence
	if before.Lease == 0 && (a.Stored == Rerun || a.Stored == Recover && asked) {
		prev.Settled = true
	}
}
