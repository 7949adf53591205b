package leasemodel

import "fmt"

// kind names what happens in one step of the whole system.
type kind int8

const (
	tick        kind = iota // a tick of time passes for the store and every holder
	windowEnds              // the record's window ends
	sweep                   // an expired record is removed
	begin                   // the attempt sends its plain reserve
	resend                  // ... again
	giveUp                  // the attempt stops waiting and sends a release
	crash                   // the process dies
	read                    // the attempt reads the reply to its call
	readRenew               // ... to its renewal
	ask                     // RecoverWith answers
	askFails                // RecoverWith returns an error
	fnReturns               // fn took effect and returned
	fnFails                 // fn returned an error
	fnUncertain             // fn returned Uncertain
	renew                   // the attempt sends a renewal
	deliver                 // a request reaches the store
	look                    // the operator reads the record
	sendOrder               // the operator sends Resolve or Forget
	obey                    // an operator's request reaches the store
)

// Event is one step of the whole system.
type Event struct {
	Kind   kind
	Who    int8    // attempt, where there is one
	Msg    message // for deliver
	Order  order   // for sendOrder and obey
	Answer bool    // for deliver: the reply will reach the attempt
	Effect bool    // for crash and the outcomes of fn: the operation took effect
}

// lint:const a table, never changed
var messageNames = map[message]string{
	msgPlain: "reserve", msgTake: "takeover", msgComplete: "complete",
	msgMark: "complete (uncertain)", msgRelease: "release", msgRenew: "renew",
}

// lint:const a table, never changed
var orderNames = map[order]string{
	orderResolve: "resolve", orderForget: "forget", orderForce: "forget (forced)",
}

// name returns the name of an attempt or a token; a takeover's token has a prime.
func name(id int8) string {
	switch id {
	case 0:
		return "nobody"
	case operator:
		return "operator"
	}
	if id > Attempts {
		return name(attemptOf(id)) + "'"
	}
	return string(rune('A' + id - 1))
}

// describe renders the step from one state to the next, and what became of the
// record.
func describe(from *State, ev Event, to *State) string {
	line := happens(from, ev, to)
	switch {
	case to.Rec != from.Rec:
		line += fmt.Sprintf("  [%v]", to.Rec)
	case ev.Kind == deliver || ev.Kind == obey:
		line += "  [unchanged]"
	}
	return line
}

// happens renders the step itself.
func happens(from *State, ev Event, to *State) string {
	who := name(ev.Who)
	var a, b Attempt
	if ev.Who > 0 {
		a, b = *from.at(ev.Who), *to.at(ev.Who)
	}
	switch ev.Kind {
	case tick:
		return "a tick of time passes"
	case windowEnds:
		return "the record's window ends"
	case sweep:
		return "the expired record is removed"
	case begin:
		return fmt.Sprintf("%s sends a plain reserve under %v", who, a.Policy)
	case resend:
		return who + " sends its reserve again"
	case giveUp:
		return who + " waits no longer, sends a release and returns"
	case crash:
		return fmt.Sprintf("%s crashes%s", who, effect(a.Step == running, ev.Effect))
	case read:
		return fmt.Sprintf("%s reads %q and %s", who, a.Reply.Answer, b.doing())
	case readRenew:
		return fmt.Sprintf("%s reads %q to its renewal", who, a.Renew)
	case ask:
		return fmt.Sprintf("%s asks the world (took effect: %t) and sends a takeover of fence %d", who, b.Found, b.Take)
	case askFails:
		return who + "'s question to the world fails; it returns"
	case fnReturns, fnFails, fnUncertain:
		what := map[kind]string{fnReturns: "returns", fnFails: "fails", fnUncertain: "cannot say what happened"}[ev.Kind]
		return fmt.Sprintf("%s's fn %s%s; %s %s", who, what, effect(true, ev.Effect), who, b.doing())
	case renew:
		return who + " sends a renewal"
	case deliver:
		return fmt.Sprintf("the store receives a copy of %s's %s", who, messageNames[ev.Msg])
	case look:
		return fmt.Sprintf("the operator sees %s with fence %d", name(from.Rec.Owner), from.Rec.Fence)
	case sendOrder:
		return "the operator sends " + orderNames[ev.Order] + applied(ev.Order, to)
	case obey:
		return "the store receives a copy of the operator's " + orderNames[ev.Order] + applied(ev.Order, to)
	}
	return "?"
}

func applied(o order, s *State) string {
	switch {
	case o != orderResolve:
		return ""
	case s.Operator.Applied:
		return " (applied)"
	}
	return " (not applied)"
}

func effect(mayHave, has bool) string {
	switch {
	case !mayHave:
		return ""
	case has:
		return ", the operation took effect"
	}
	return ", the operation took no effect"
}

// doing says what an attempt does after it has read a reply.
func (a *Attempt) doing() string {
	switch a.Step {
	case idle:
		return "waits"
	case reserving:
		return "sends a plain reserve again"
	case asking:
		return fmt.Sprintf("asks the world about fence %d", a.Take)
	case taking:
		return fmt.Sprintf("sends a takeover of fence %d", a.Take)
	case running:
		return "starts fn"
	case completing:
		return "sends a completion"
	case marking:
		return "sends a completion to uncertain"
	case releasing:
		return "sends a release"
	}
	return "returns"
}

func (a answer) String() string {
	return [...]string{"nothing", "acquired", "in flight", "abandoned", "free", "finished",
		"uncertain", "mismatch", "gone", "done", "lease lost"}[a]
}

// String returns the policy's name.
func (p Policy) String() string {
	return [...]string{"no policy", "Rerun", "Recover", "Hold"}[p]
}

// String renders a record as people read it.
func (r Record) String() string {
	if r.Phase == Absent {
		return "no record"
	}
	s := [...]string{"", "in flight", "completed", "failed", "uncertain", "open"}[r.Phase]
	s = fmt.Sprintf("%s, owner %s, fence %d", s, name(r.Owner), r.Fence)
	switch {
	case r.Phase == InFlight && r.Lease == noLease:
		s += ", no deadline"
	case r.Phase == InFlight:
		s += fmt.Sprintf(", lease %d", r.Lease)
	case r.Result != 0:
		s += ", result of " + name(r.Result)
	}
	if r.Over {
		s += ", expired"
	}
	return s
}
