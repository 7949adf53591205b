package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/goidem/idem/backend"
)

// moveWait is how long a move waits behind another transaction's lock on its row, where
// no wait policy says it: a takeover that is not committed yet, or a sweeper that is
// just committing. The move fails then, nothing is changed, and the core sends it again
// as long as that can help.
const moveWait = 2 * time.Second

// lone is a reserve that goes alone: one that may have to wait for another's open
// transaction, or that takes a record over. Of all who do that for one key in this
// process only one holds a connection; the others wait at the gate, where transactions
// on the key wait, too (R20). ask is one try, within the Wait of its request.
func (s *Store[Tx]) lone(ctx context.Context, r *backend.ReserveRequest, ask func(context.Context, *backend.ReserveRequest) (backend.Reservation, error)) (res backend.Reservation, err error) {
	busy := backend.Reservation{Outcome: backend.Busy}
	began := now()
	p, ok, err := s.tx.gates.enter(ctx, token(r.ID.Sum()), r.Wait, s.c.LockWait)
	if err != nil || !ok {
		return busy, err
	}
	answered := false
	// A row that is there answers everybody; only one that cannot be seen holds up.
	defer func() { p.leave(answered) }()

	look := *r
	try := func() { res, err = ask(ctx, &look) }
	for {
		look.Wait = min(r.Wait, s.c.LockWait)
		if over := s.turns.look.do(ctx, 0, try); over != nil {
			return busy, over
		}
		left := r.Wait - now().Sub(began)
		if err != nil || res.Outcome != backend.Busy || left <= 0 {
			break
		}
		p.works() // who fails fast need not wait for somebody who waits
		over := s.turns.wait.do(ctx, min(left, lookAgain), func() {
			look.Wait = max(r.Wait-now().Sub(began), s.c.LockWait)
			try()
		})
		if over == nil {
			break
		}
		if !errors.Is(over, errNoTurn) {
			return busy, over
		}
	}
	answered = err == nil && res.Outcome != backend.Busy
	return res, err
}

// lookAgain is how often a caller looks at its key that finds all turns to wait taken: by
// callers whose keys may be held for much longer.
const lookAgain = 250 * time.Millisecond
