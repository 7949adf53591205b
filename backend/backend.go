package backend

import (
	"context"
	"iter"
	"time"
)

// Backend stores records. Each method except List is one atomic step on one
// record; see the package comment for what an implementation owes.
type Backend interface {
	// Reserve tries to make an attempt the owner of a key. A plain reserve only
	// creates (R1, R6); with TakeOver it is compare-and-set on the fence. What
	// happened is in Reservation.Outcome.
	Reserve(ctx context.Context, r ReserveRequest) (Reservation, error)

	// Complete settles the attempt's record and returns it as stored. It never
	// creates a record (R12). ErrLeaseLost: the record no longer names the token.
	Complete(ctx context.Context, r CompleteRequest) (Record, error)

	// Release opens the key again. A token that owns nothing releases
	// successfully, absent records included. ErrLeaseLost: the key has turned
	// uncertain meanwhile.
	Release(ctx context.Context, ref Ref) error

	// Renew moves the end of the lease to ttl from now; it never brings it
	// forward. ErrLeaseLost: the token does not own the key in flight.
	Renew(ctx context.Context, ref Ref, ttl time.Duration) error

	// Get returns the record as a reader sees it now (Record.At), or ErrNotFound.
	Get(ctx context.Context, id ID) (Record, error)

	// List yields the records that match f, in no particular order. It holds no
	// lock, transaction or connection between two yields; records that change
	// meanwhile may be seen in either form or not at all. It ends at the first
	// error.
	List(ctx context.Context, f Filter) iter.Seq2[Record, error]

	// Resolve settles an uncertain, abandoned or deadline-less record by a
	// person's word. It is compare-and-set on the fence that the person saw
	// (ErrStale). ErrInFlight: the attempt is live.
	Resolve(ctx context.Context, r ResolveRequest) (Record, error)

	// Forget deletes a record; compare-and-set on the fence (ErrStale). A live
	// attempt is refused with ErrInFlight unless forced.
	Forget(ctx context.Context, r ForgetRequest) error

	// Expire removes what is due: records past KnownUntil, bodies past
	// ReplayUntil. Each removal checks state, expiry and fence again in its own
	// atomic step (R24). Live attempts and records without a window stay.
	Expire(ctx context.Context, r ExpireRequest) (ExpireResult, error)

	// Guarantees returns what was found out about the store when it was opened.
	// It does no I/O.
	Guarantees() Guarantees
}

// Transactional is a Backend whose records can commit together with the caller's
// effect. Tx is the native transaction of the store.
//
// The shape gives a backend the whole of one attempt, so that it can join begin
// with reserve and complete with commit in one round trip, put savepoints where
// its server has them, retry what its server wants retried, and settle a commit
// whose outcome is unknown, without the core knowing any of this.
type Transactional[Tx any] interface {
	Backend

	// Transact runs one attempt in one transaction: reserve; if acquired, work;
	// write the completion; commit. An Acquired reservation carries the completed
	// record. Any other outcome means that work did not run or was rolled back.
	//
	// work may run several times before the one commit that counts. Its error
	// rolls everything back and is returned as it is. A transaction of another
	// caller that holds the key is waited for up to r.Wait, then the outcome is
	// Busy. An unknown commit is settled by the backend: it comes back with the
	// truth, or with ErrOutcomeUnknown when the store stays unreachable.
	//
	// ctx governs the wait, the reserve and work. Once work has returned, commit and
	// roll-back run on a context detached from it, with a limit of their own (R9).
	Transact(ctx context.Context, r ReserveRequest, work Work[Tx]) (Reservation, error)

	// Join does the same inside a transaction of the caller, which stays usable
	// whatever happens. Nothing is committed; the result is provisional until the
	// caller commits. ErrRetryTransaction: the caller's snapshot cannot see a
	// newer record of the key.
	Join(ctx context.Context, tx Tx, r ReserveRequest, work Work[Tx]) (Reservation, error)

	// Finish completes an attempt that was reserved with Reserve: work and the
	// completion commit together. ErrLeaseLost: nothing was committed. A repeated
	// copy, sent after an unknown outcome, finds its own completion standing: it
	// returns that record and does not run work.
	Finish(ctx context.Context, ref Ref, work Work[Tx]) (Record, error)
}

// Work is what a caller does between reserve and complete, inside tx. The
// reservation is the one that Transact or Join acquired; for Finish it holds the
// record of the attempt.
type Work[Tx any] func(ctx context.Context, tx Tx, r Reservation) (Completion, error)

// Completion is the outcome that Work wants stored.
type Completion struct {
	State               State // Completed, Failed or Uncertain
	Body                []byte
	ReplayFor, KnownFor time.Duration // as in CompleteRequest
	// Undo asks that the effects of this Work are rolled back while the outcome
	// is stored: a permanent failure, or an uncertain one.
	Undo bool
}
