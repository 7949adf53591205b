package leasemodel

// This file is what happens outside the attempts: time, the network between them
// and the store, and the operator.

// Next gives every possible step out of s.
func (sw Switch) Next(s State, out yield) {
	out2 := func(ev Event, next State) {
		if next != s {
			next.remember(&s, ev)
			out(ev, next)
		}
	}
	sw.timeSteps(s, out2)
	for id := int8(1); id <= Attempts; id++ {
		if s.at(id).Policy == 0 {
			continue // not in this scenario
		}
		sw.attemptSteps(s, id, out2)
		sw.deliveries(s, id, out2)
	}
	sw.operatorSteps(s, out2)
}

// timeSteps gives the steps that time takes.
func (sw Switch) timeSteps(s State, out yield) {
	next := s
	if next.Rec.Phase == InFlight && next.Rec.Lease > 0 {
		next.Rec.Lease--
	}
	for i := range next.Attempt {
		a := &next.Attempt[i]
		a.Hold, a.Pend = max(a.Hold-1, 0), max(a.Pend-1, 0)
		if a.Pend == 0 {
			a.Renew = noAnswer
		}
	}
	out(Event{Kind: tick}, next)

	next = s
	next.Rec = sw.Sweep(s.Rec)
	out(Event{Kind: sweep}, next)

	// A window ends long after the last move of the attempts that it is about, so
	// none of their requests is under way any more.
	r := s.Rec
	windowed := r.Phase == Completed || r.Phase == Open || r.abandoned() && r.Policy == Rerun
	if s.Windows == 0 || r.Over || !windowed {
		return
	}
	next = s
	next.Windows--
	next.Rec.Over = true
	for id := int8(1); id <= Attempts; id++ {
		a := next.at(id)
		if r.Phase == Open && sw.off(OpenKeptTooShort) {
			continue
		}
		past := a.Step == ended && (a.Ran || a.Over != 0 || r.Owner != 0 && attemptOf(r.Owner) == id)
		if past {
			a.Net, a.Take, a.Asked = 0, 0, false
		} else if a.Over&1 != 0 {
			a.Net &^= msgPlain
		}
	}
	next.newLife(false)
	out(Event{Kind: windowEnds}, next)
}

// deliveries gives the arrivals of id's requests at the store.
func (sw Switch) deliveries(s State, id int8, out yield) {
	a := s.at(id)
	for msg := msgPlain; msg <= msgRenew; msg <<= 1 {
		if a.Net&msg == 0 {
			continue
		}
		next := s
		rec, ans := sw.apply(s.Rec, a, id, msg, s.Counter+1)
		next.Rec = rec
		next.Counter = max(next.Counter, rec.Fence)
		ev := Event{Kind: deliver, Who: id, Msg: msg}
		awaited, renewal := a.awaits(msg)
		if !awaited {
			out(ev, next)
			continue
		}
		old := next
		b := next.at(id)
		if renewal {
			b.Renew = ans
		} else {
			b.Reply = reply{Answer: ans}
			switch ans {
			case acquired, free:
				b.Reply.Fence = rec.Fence
				if ans == acquired && sw.off(CountsRecordLease) {
					b.Reply.Run = lease - rec.Lease
				}
			case lapsed:
				b.Reply.Fence, b.Reply.Policy = rec.Fence, rec.Policy
			}
		}
		ev.Answer = true
		out(ev, next)
		// The reply is lost, or an earlier one arrives in its place.
		ev.Answer = false
		out(ev, old)
	}
}

// apply is the store's handling of one request.
func (sw Switch) apply(cur Record, a *Attempt, id int8, msg message, seed int8) (Record, answer) {
	switch msg {
	case msgPlain, msgTake:
		q := ReserveRequest{Owner: id, Print: a.Print, Policy: a.Policy, Take: plain, Seed: seed}
		if msg == msgTake {
			q.Owner = a.Token
			q.Take, q.Recovered = a.Take, a.Asked || sw.off(RecoverLied)
		}
		return sw.Reserve(cur, q)
	case msgComplete:
		return sw.Complete(cur, a.Token, Completed)
	case msgMark:
		return sw.Complete(cur, a.Token, Uncertain)
	case msgRelease:
		return sw.Release(cur, a.Token)
	}
	return sw.Renew(cur, a.Token)
}

// awaits reports whether the attempt still waits for the reply to msg, and
// whether that is its renewal.
func (a *Attempt) awaits(msg message) (awaited, renewal bool) {
	switch msg {
	case msgPlain:
		return a.Step == reserving, false
	case msgTake:
		return a.Step == taking, false
	case msgComplete:
		return a.Step == completing, false
	case msgMark:
		return a.Step == marking, false
	case msgRelease:
		return a.Step == releasing, false
	}
	return a.Pend > 0, true
}

// operatorSteps gives the steps of the operator. He says what is true of the
// world: applied once the operation took effect, not applied only of an attempt
// that is dead.
func (sw Switch) operatorSteps(s State, out yield) {
	op := s.Operator
	if op.May == 0 {
		return // no operator in this scenario
	}
	next := s
	if op.Fence == 0 {
		if s.Rec.Phase != Absent && !s.Rec.Over && s.Rec.Phase != Open && s.Rec.Owner != 0 && s.Rec.Fence > 0 {
			next.Operator.Fence, next.Operator.Owner = s.Rec.Fence, s.Rec.Owner
			out(Event{Kind: look}, next)
		}
		return
	}
	send := func(o order) {
		next := s
		next.Operator.Net |= o
		if o == orderResolve {
			next.Operator.Applied = s.effect()
		}
		out(Event{Kind: sendOrder, Order: o}, next)
	}
	if op.May&^op.Net&orderResolve != 0 && (s.effect() || s.at(attemptOf(op.Owner)).Step == ended) {
		send(orderResolve)
	}
	if op.Net&(orderForget|orderForce) == 0 && op.May&orderForget != 0 {
		send(orderForget)
		send(orderForce)
	}
	for o := orderResolve; o <= orderForce; o <<= 1 {
		if op.Net&o == 0 {
			continue
		}
		next := s
		if o == orderResolve {
			next.Rec, _ = sw.Resolve(s.Rec, op.Fence, op.Applied)
		} else if rec, ans := sw.Forget(s.Rec, op.Fence, o == orderForce); ans == done {
			next.newLife(true)
			next.Rec = rec
		}
		out(Event{Kind: obey, Order: o}, next)
	}
}

// newLife makes the invariants forget a record that has expired or was forgotten.
// Which tokens have had their ownership is forgotten with a forgotten record only:
// an expired one has been kept for longer than their requests live.
func (s *State) newLife(forgotten bool) {
	s.Result, s.Bound = 0, 0
	for i := range s.Attempt {
		a := &s.Attempt[i]
		a.Cut = a.Cut || a.Ran || s.Rec.Owner != 0 && s.Rec.Owner == a.Token
		a.Ran, a.Settled, a.Acked, a.Stored = false, false, false, 0
		if forgotten {
			a.Over = 0
		}
	}
}
