package leasemodel

// Edge is one step of an exploration.
type Edge struct {
	From, To *State
	Event    Event
}

// Invariant is a statement about every step, true when it holds.
type Invariant struct {
	Name  string
	Rule  string
	Means string
	Holds func(e Edge) bool
}

// Harms are what users would notice: a second effect, a lost or foreign result, a
// key that is stuck or given away.
//
// lint:const a table, never changed
var Harms = []Invariant{
	{"completion-stands", "R3 R12", "the first completion recorded for a key stays as it is until it expires or is forgotten", completionStands},
	{"acknowledged-result-stays", "R12 R15", "an attempt that was told that its completion stands finds its own result in the store", acknowledgedResultStays},
	{"completion-creates-nothing", "R12", "a completion never creates a record", completionCreatesNothing},
	{"start-on-live-grant", "R3", "when fn starts, the store holds the key for this attempt and its lease runs", startOnLiveGrant},
	{"one-live-holder", "R3 R6", "at most one running fn has a lease that runs by its own clock", oneLiveHolder},
	{"live-key-kept", "R6", "while a lease runs by the store's clock, only its owner or a forced Forget changes the record", liveKeyKept},
	{"hold-starts-no-second-fn", "R13", "under Hold no second fn starts, unless the first was released without effect or resolved as not applied", settledBefore(Hold)},
	{"recover-asks-first", "R13", "under Recover a second fn starts only after the world was asked about the attempt taken over", settledBefore(Recover)},
	{"recover-answer-holds", "R8 R13", "the world's answer under Recover is not outdated by an effect that the attempt taken over made within its lease", recoverAnswerHolds},
	{"rerun-after-lease-end", "R6 R13", "under Rerun a second fn starts only after the lease of the first is over by the store's clock, or its release without effect", settledBefore(Rerun)},
	{"fence-grows", "R4", "each fn started has a higher fence than all before it", fenceGrows},
	{"one-ownership-per-token", "R3", "an attempt whose ownership has ended never owns the key again", oneOwnership},
	{"fingerprint-bound", "R2", "a key bound to one fingerprint neither serves nor runs another", fingerprintBound},
	{"mismatch-only-when-bound", "R2", "a key that is bound to no other fingerprint is never refused as a mismatch", mismatchOnlyWhenBound},
	{"word-about-what-was-seen", "R3 R13", "a person's word changes only the attempt that the person saw", wordAboutWhatWasSeen},
	{"free-stays-free", "R3", "an open key is changed by a reserve only", freeStaysFree},
	{"uncertain-waits", "R13", "an uncertain key is settled by its own completion or a person only", uncertainWaits},
	{"holder-never-later", "R8", "a holder that counts on its lease has it in the store, for at least as long", holderNeverLater},
}

// Forms are R3's words themselves. A clause that breaks only these does no harm
// that the model can see.
//
// lint:const a table, never changed
var Forms = []Invariant{
	{"copies-change-nothing", "R3", "a copy of a move that meets its own token in another state, or another token, changes nothing", copiesChangeNothing},
}

// All returns the invariants that hold of the protocol as designed.
func All() []Invariant { return append(append([]Invariant{}, Harms...), Forms...) }

func completionStands(e Edge) bool {
	return e.To.Result == 0 || e.To.Rec.Phase == Completed && e.To.Rec.Result == e.To.Result
}

func acknowledgedResultStays(e Edge) bool {
	for id := int8(1); id <= Attempts; id++ {
		if e.To.at(id).Acked && (e.To.Rec.Phase != Completed || e.To.Rec.Result != e.To.at(id).Token) {
			return false
		}
	}
	return true
}

func completionCreatesNothing(e Edge) bool {
	completion := e.Event.Kind == deliver && e.Event.Msg&(msgComplete|msgMark) != 0
	return !completion || e.From.Rec.Phase != Absent || e.To.Rec.Phase == Absent
}

// started returns the attempt whose fn starts in this step, if one does.
func (e Edge) started() (int8, *Attempt) {
	if e.Event.Kind == read && e.To.at(e.Event.Who).Step == running {
		return e.Event.Who, e.To.at(e.Event.Who)
	}
	return 0, nil
}

func startOnLiveGrant(e Edge) bool {
	_, a := e.started()
	return a == nil || a.Cut || e.To.Rec.live() && e.To.Rec.Owner == a.Token
}

// counts reports whether a's fn runs and a counts on its lease. A record that was
// forgotten or has expired under it excuses everybody.
func (a *Attempt) counts() bool { return a.Step == running && a.Hold > 0 && !a.Cut }

func oneLiveHolder(e Edge) bool {
	n := 0
	for i := range e.To.Attempt {
		if e.To.Attempt[i].counts() {
			n++
		}
	}
	return n <= 1
}

func holderNeverLater(e Edge) bool {
	for id := int8(1); id <= Attempts; id++ {
		r := &e.To.Rec
		if a := e.To.at(id); a.counts() && (r.Owner != a.Token || !r.live() || a.Hold > r.Lease) {
			return false
		}
	}
	return true
}

func liveKeyKept(e Edge) bool {
	if !e.From.Rec.live() || e.From.Rec == e.To.Rec {
		return true
	}
	switch e.Event.Kind {
	case deliver:
		return e.Event.Who == attemptOf(e.From.Rec.Owner)
	case obey:
		return e.Event.Order == orderForce || e.Event.Order == orderResolve && e.From.Rec.Lease == noLease
	}
	return true
}

// settledBefore says that no fn starts where p governs while an earlier one is
// not settled.
func settledBefore(p Policy) func(Edge) bool {
	return func(e Edge) bool {
		id, a := e.started()
		for other := int8(1); id != 0 && !a.Cut && other <= Attempts; other++ {
			b := e.To.at(other)
			if other != id && b.Ran && !b.Settled && max(b.Stored, a.Policy) == p {
				return false
			}
		}
		return true
	}
}

func fenceGrows(e Edge) bool {
	id, a := e.started()
	return id == 0 || a.Cut || e.From.at(id).Reply.Fence > e.From.Last
}

func oneOwnership(e Edge) bool {
	r := &e.To.Rec
	if r.Phase != InFlight || r.Owner == 0 {
		return true
	}
	a, token := e.To.holder(r.Owner)
	return a.Over&token == 0
}

// told returns the answer that reaches an attempt through this step, to a reserve.
func (e Edge) told() (*Attempt, answer) {
	if e.Event.Kind != deliver || !e.Event.Answer || e.Event.Msg&(msgPlain|msgTake) == 0 {
		return nil, noAnswer
	}
	a := e.To.at(e.Event.Who)
	return a, a.Reply.Answer
}

func fingerprintBound(e Edge) bool {
	a, ans := e.told()
	served := ans == acquired || ans == finished
	return !served || e.From.Bound == 0 || e.From.Bound == a.Print
}

func mismatchOnlyWhenBound(e Edge) bool {
	a, ans := e.told()
	return ans != mismatch || e.From.Bound != 0 && e.From.Bound != a.Print
}

func wordAboutWhatWasSeen(e Edge) bool {
	if e.Event.Kind != obey || e.From.Rec == e.To.Rec {
		return true
	}
	return e.From.Rec.Owner == 0 || e.From.Rec.Owner == e.From.Operator.Owner
}

func freeStaysFree(e Edge) bool {
	return e.Event.Kind != deliver || e.From.Rec.Phase != Open || e.From.Rec == e.To.Rec ||
		e.Event.Msg&(msgPlain|msgTake) != 0
}

func uncertainWaits(e Edge) bool {
	return e.Event.Kind != deliver || e.From.Rec.Phase != Uncertain || e.To.Rec.Phase == Uncertain ||
		e.Event.Msg == msgComplete && e.mover() == e.From.Rec.Owner
}

// mover returns the token that the delivered request carries.
func (e Edge) mover() int8 {
	if e.Event.Msg == msgPlain {
		return e.Event.Who
	}
	return e.From.at(e.Event.Who).Token
}

func copiesChangeNothing(e Edge) bool {
	if e.Event.Kind != deliver || e.From.Rec == e.To.Rec {
		return true
	}
	own := e.From.Rec.Owner == e.mover() && e.From.Rec.Phase != Absent && !e.From.Rec.Over
	switch e.Event.Msg {
	case msgPlain, msgTake:
		return !own
	case msgComplete:
		return own && (e.From.Rec.Phase == InFlight || e.From.Rec.Phase == Uncertain)
	}
	return own && e.From.Rec.Phase == InFlight
}

func recoverAnswerHolds(e Edge) bool {
	id, a := e.started()
	for other := int8(1); id != 0 && a.Asked && other <= Attempts; other++ {
		if b := e.To.at(other); other != id && b.Ran && b.InTime {
			return false
		}
	}
	return true
}
