package leasemodel

// Attempts is the largest number of attempts that a State has room for.
const Attempts = 3

// lease is the length of a lease in ticks. Two is the least that tells a renewal
// sent in time from one that arrives in time.
const lease = 2

// noLease is the lease of a record without a deadline (R14).
const noLease = -1

// operator is the author of a result that a person has written by Resolve.
const operator = 2*Attempts + 1

// An attempt has two tokens: id for its plain reserve, id+Attempts for its
// takeover. A reserve that asks for something else is another ownership, with
// another token: see TakeoverKeepsToken.

// attemptOf returns the attempt that made a token.
func attemptOf(token int8) int8 { return (token-1)%Attempts + 1 }

// plain is the observed fence of a reserve that only creates.
const plain = -1

// Phase is what a record says about the key.
type Phase int8

// The phases of a record, in the order of backend.State.
const (
	Absent Phase = iota
	InFlight
	Completed
	Failed
	Uncertain
	Open
)

// Policy says what happens to an abandoned attempt. Higher is stricter.
type Policy int8

// The policies, in the order of backend.Abandoned.
const (
	Rerun Policy = iota + 1
	Recover
	Hold
)

// Record is the store's record of the one key. Times are relative: Lease counts
// ticks down, Over says that the window of the record has ended, so that it reads
// as absent although it is still stored.
type Record struct {
	Phase  Phase
	Owner  int8 // token; 0 after a person has written the result
	Fence  int8
	Num    int8 // number of the attempt, from 1
	Took   bool // it took over an abandoned one
	Policy Policy
	Print  int8 // fingerprint; 0 when open
	Result int8 // token that made the stored result, or operator
	Lease  int8 // ticks left while in flight; noLease without a deadline
	Over   bool
}

// live reports whether an attempt is in flight and not abandoned.
func (r *Record) live() bool { return r.Phase == InFlight && r.Lease != 0 && !r.Over }

// abandoned reports whether an attempt is in flight and its lease is over.
func (r *Record) abandoned() bool { return r.Phase == InFlight && r.Lease == 0 }

// step is where an attempt stands in its program.
type step int8

const (
	idle       step = iota
	reserving       // plain reserve sent
	asking          // has seen an abandoned record under Recover
	taking          // takeover sent
	running         // fn runs
	completing      // completion sent
	marking         // completion to uncertain sent
	releasing       // release sent
	ended           // returned or crashed: it does nothing any more
)

// message is a set of requests that the network carries for one attempt. A
// request once sent stays: it can be delivered any number of times, at any later
// time, or never, which covers loss, delay and duplication.
type message uint8

const (
	msgPlain message = 1 << iota
	msgTake
	msgComplete
	msgMark
	msgRelease
	msgRenew
)

// answer classifies the reply to the call that an attempt waits for.
type answer int8

const (
	noAnswer   answer = iota
	acquired          // the key is this attempt's
	inFlight          // another attempt is live
	lapsed            // another attempt is abandoned
	free              // open or expired
	finished          // completed: replay the result
	unresolved        // uncertain
	mismatch          // bound to another fingerprint
	gone              // takeover found no record
	done              // complete, release or renew went through
	lost              // complete, release or renew met a record that is not its own
)

// reply is the answer under way to an attempt. One slot is enough: an attempt
// acts on the first reply to a call and ignores the rest, so the slot holds the
// one that will arrive, and each delivery may or may not replace it.
type reply struct {
	Answer answer
	Fence  int8
	Policy Policy // stored with an abandoned record
	Run    int8   // with CountsRecordLease: ticks of a grant's lease that had run when it was decided
}

// Attempt is one call of Execute: its program, its clock and its messages, and
// what the invariants remember about it.
type Attempt struct {
	Policy Policy
	Print  int8

	Step   step
	Hold   int8 // ticks of the lease left by its own clock
	Pend   int8 // the same for the renewal under way, from its sending
	Net    message
	Reply  reply // to the reserve, complete or release under way
	Renew  answer
	Take   int8 // fence that the takeover observed
	Asked  bool // RecoverWith has answered, about the attempt with fence Take
	Found  bool // ... that the operation took effect
	Token  int8 // that its moves carry
	Effect bool // the operation took effect in the world
	InTime bool // ... while the lease ran by its own clock; kept where somebody asks only

	// Memory of the invariants; no decision depends on it.
	Ran     bool   // fn was started
	Settled bool   // ... and a later fn may start, see remember
	Over    int8   // tokens whose ownership has ended: 1 the first, 2 the second
	Cut     bool   // the record was forgotten or expired under it
	Acked   bool   // it was told that its completion stands
	Stored  Policy // the policy that counts for it if it is abandoned
}

// Operator is a person with the command-line tool: one look at the record, then
// at most one Resolve and one Forget about what was seen.
type Operator struct {
	May     order // what he does in this scenario
	Fence   int8  // seen; 0 before the look
	Owner   int8  // token seen
	Net     order
	Applied bool // what Resolve says
}

// order is the set of the operator's requests in the network.
type order uint8

const (
	orderResolve order = 1 << iota
	orderForget
	orderForce
)

// State is one state of the whole system. It is comparable, and it holds no
// absolute time, which keeps the number of states finite.
type State struct {
	Rec      Record
	Counter  int8 // the store's highest fence so far
	Windows  int8 // ends of a window that may still happen
	Attempt  [Attempts]Attempt
	Operator Operator

	// Memory of the invariants.
	Result int8 // author of the completion that stands
	Bound  int8 // fingerprint that the key is bound to
	Last   int8 // fence of the last fn started
}

func (s *State) at(id int8) *Attempt { return &s.Attempt[id-1] }

// holder returns the attempt that made a token, and the token's bit in Over.
func (s *State) holder(token int8) (*Attempt, int8) {
	return s.at(attemptOf(token)), 1 + (token-1)/Attempts
}
