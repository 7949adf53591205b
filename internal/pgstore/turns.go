package pgstore

import (
	"context"
	"errors"
	"time"
)

// turns bound how many connections of the pool the reserves hold that go alone. A
// storm of duplicates is many of those at once, and in the pool's queue they would come
// before the completions and renewals of the attempts that hold the keys, whose leases
// run out meanwhile: what begins must not stand in the way of what ends.
//
// Who looks needs a connection for a moment; who waits for another's open transaction
// may need one for as long as the caller wants. The second must not hold up the first.
type turns struct{ look, wait turn }

// newTurns leaves a quarter of the pool, and a connection at least, to everything else, a
// quarter to those who wait, and the rest to those who look. A pool of one or two is as
// many turns, one of each kind. Where reserves do not merge, all of them go alone: then
// looks are what the pool is for, and have no bound but its size.
func newTurns(conns int, merged bool) turns {
	if conns <= 0 {
		conns = unboundedTurns
	}
	t := turns{wait: newTurn(max(1, conns/4))}
	if merged {
		t.look = newTurn(max(1, conns-2*max(1, conns/4)))
	}
	return t
}

// unboundedTurns stands for the size of a pool without a bound: what a server without
// settings of its own has for one of many clients.
const unboundedTurns = 16

// turn is a semaphore. A channel's waiters are served in the order in which they came. A nil
// turn is no bound.
type turn chan struct{}

func newTurn(n int) turn { return make(turn, n) }

// errNoTurn says that a limited wait for a turn was over.
var errNoTurn = errors.New("idem: no connection was free for this in time") // lint:const sentinel

// do calls f in a turn. It waits for that until ctx ends or, where limit is positive, for
// that long, and does not call f otherwise.
func (t turn) do(ctx context.Context, limit time.Duration, f func()) error {
	if t != nil {
		if err := t.take(ctx, limit); err != nil {
			return err
		}
		defer func() { <-t }()
	}
	f()
	return nil
}

func (t turn) take(ctx context.Context, limit time.Duration) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-over:
		return errNoTurn
	case <-ctx.Done():
		return ctx.Err()
	}
}
