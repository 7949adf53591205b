package leasemodel

// This file is the core: what an attempt does next.

// yield receives the possible steps out of a state.
type yield func(Event, State)

// attemptSteps gives the steps that attempt id can take by itself.
func (sw Switch) attemptSteps(s State, id int8, out yield) {
	a := s.at(id)
	one := func(ev Event, change func(a *Attempt)) {
		next := s
		ev.Who = id
		change(next.at(id))
		out(ev, next)
	}
	end := func(k kind, net message) {
		one(Event{Kind: k}, func(a *Attempt) { a.Net |= net; a.end() })
	}
	switch a.Step {
	case idle:
		one(Event{Kind: begin}, func(a *Attempt) {
			a.call(reserving, msgPlain)
			a.Hold, a.Token = lease, id
		})
	case reserving, taking:
		end(crash, 0)
		end(giveUp, msgRelease)
		if sw.off(CountFromLastSend) && a.Hold < lease {
			// Another sending is another call: it takes no reply to the one before.
			one(Event{Kind: resend}, func(a *Attempt) { a.Hold, a.Reply = lease, reply{} })
		}
		if a.Reply.Answer != noAnswer {
			next := s
			sw.readReserve(&next, id)
			out(Event{Kind: read, Who: id}, next)
		}
	case asking:
		end(crash, 0)
		end(askFails, 0)
		next := s
		b := next.at(id)
		b.Asked, b.Found = true, s.effect()
		sw.takeOver(b, id)
		out(Event{Kind: ask, Who: id}, next)
	case running:
		sw.fnSteps(a, s.recovers(), one)
		sw.renewalSteps(a, one)
	case completing, marking, releasing:
		if a.Step == completing && sw.off(StoreErrorReleases) {
			one(Event{Kind: giveUp}, func(a *Attempt) { a.call(releasing, msgRelease) })
		}
		end(crash, 0)
		if a.Reply.Answer != noAnswer {
			one(Event{Kind: read}, func(a *Attempt) {
				a.Acked = a.Step == completing && a.Reply.Answer == done && !a.Cut
				a.end()
			})
		}
	}
}

// fnSteps gives the outcomes of a running fn.
func (sw Switch) fnSteps(a *Attempt, recovers bool, one func(Event, func(*Attempt))) {
	outcome := func(k kind, effect bool, then func(a *Attempt)) {
		one(Event{Kind: k, Effect: effect}, func(a *Attempt) {
			a.Effect = a.Effect || effect
			a.InTime = a.InTime || effect && recovers && a.Hold > 0
			then(a)
		})
	}
	mark := func(a *Attempt) { a.call(marking, msgMark) }
	outcome(fnReturns, true, func(a *Attempt) { a.call(completing, msgComplete) })
	outcome(fnUncertain, true, mark)
	outcome(fnUncertain, false, mark)
	outcome(crash, true, (*Attempt).end)
	outcome(crash, false, (*Attempt).end)
	release := func(a *Attempt) { a.call(releasing, msgRelease) }
	if a.Hold > 0 {
		outcome(fnFails, false, release)
		return
	}
	// The lease was lost and fn's context cancelled: its error does not say
	// whether the operation took effect, and nothing is released.
	then := (*Attempt).end
	if sw.off(ReleaseAfterLoss) {
		then = release
	}
	outcome(fnFails, true, then)
	outcome(fnFails, false, then)
}

// renewalSteps gives the steps of the renewal in the background. Renewals sent while
// a completion is under way are covered by the copies of earlier ones.
func (sw Switch) renewalSteps(a *Attempt, one func(Event, func(*Attempt))) {
	if a.Hold > 0 && a.Pend == 0 && a.Hold < lease {
		one(Event{Kind: renew}, func(a *Attempt) {
			a.Net |= msgRenew
			a.Pend, a.Renew = lease, noAnswer
		})
	}
	if a.Renew != noAnswer { // a.Pend is above 0
		one(Event{Kind: readRenew}, func(a *Attempt) {
			switch {
			case a.Renew == lost:
				a.Hold = 0
			case a.Hold > 0 || sw.off(LateRenewalRevives):
				a.Hold = max(a.Hold, a.Pend)
			}
			a.Pend, a.Renew = 0, noAnswer
		})
	}
}

// readReserve acts on the reply to a reserve.
func (sw Switch) readReserve(s *State, id int8) {
	a := s.at(id)
	r := a.Reply
	tookOver := a.Step == taking
	switch r.Answer {
	case acquired:
		a.Hold = max(a.Hold-r.Run, 0)
		switch {
		case a.Hold == 0 && !sw.off(LateGrantStarts):
			// Too late: never start fn, open the key again.
			a.Net |= msgRelease
			a.end()
		case a.Found:
			a.call(completing, msgComplete)
		default:
			a.call(running, 0)
			if !a.Cut {
				a.Ran, a.Settled = true, false
				s.Last = max(s.Last, r.Fence)
			}
		}
	case free, lapsed:
		if tookOver {
			a.end()
			return
		}
		a.Take = r.Fence
		ask := r.Answer == lapsed && sw.governing(r.Policy, a.Policy) == Recover
		if ask && !sw.off(RecoverUnasked|RecoverLied) {
			a.call(asking, 0)
			return
		}
		sw.takeOver(a, id)
	default:
		a.end()
	}
}

// takeOver sends a takeover of the fence that a has seen, with a token of its own
// and a lease that counts from now.
func (sw Switch) takeOver(a *Attempt, id int8) {
	a.call(taking, msgTake)
	a.Hold = lease
	if !sw.off(TakeoverKeepsToken) {
		a.Token = id + Attempts
	}
}

// call moves the attempt to its next step and sends msg; replies to earlier
// calls no longer matter.
func (a *Attempt) call(next step, msg message) {
	a.Step = next
	a.Net |= msg
	a.Reply = reply{}
	a.Pend, a.Renew = 0, noAnswer
	if next != running {
		a.Hold = 0 // nothing is decided by it outside reserve and fn
	}
}

// end leaves of an attempt what others can still meet: its messages, its effect,
// and what the invariants remember.
func (a *Attempt) end() {
	a.Step = ended
	a.Hold, a.Pend, a.Renew, a.Reply, a.Found = 0, 0, noAnswer, reply{}, false
	if a.Net&msgTake == 0 {
		a.Take, a.Asked = 0, false
	}
}

// recovers reports whether any attempt asks the world.
func (s *State) recovers() bool {
	for i := range s.Attempt {
		if s.Attempt[i].Policy == Recover {
			return true
		}
	}
	return false
}

// effect reports whether the operation has taken effect in the world.
func (s *State) effect() bool {
	for i := range s.Attempt {
		if s.Attempt[i].Effect {
			return true
		}
	}
	return false
}
