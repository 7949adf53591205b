package experiment

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// killed returns the experiment in which a worker process is killed at a point.
func killed(at strategy.Point) func(context.Context, *lab, strategy.Strategy, int, *rand.Rand, *tally) error {
	return func(ctx context.Context, l *lab, s strategy.Strategy, rounds int, rnd *rand.Rand, t *tally) error {
		if !s.Info().Reaches(at) {
			return errSkip{"nothing has left the process by then: reserve, effect, completion and commit are sent together", true}
		}
		for range rounds {
			if err := killedRound(ctx, l, s, at, rnd, t); err != nil {
				return err
			}
		}
		return nil
	}
}

func killedRound(ctx context.Context, l *lab, s strategy.Strategy, at strategy.Point, rnd *rand.Rand, t *tally) error {
	const keys = 6
	w, err := l.world(s, keys)
	if err != nil {
		return err
	}
	defer w.close(ctx)
	// One caller, so that no other key is at another point when the process dies.
	victim, err := w.worker(ctx, orders{Callers: 1, Kill: at, KillAfter: 1 + rnd.Int64N(keys-1)})
	if err != nil {
		return err
	}
	fired, err := victim.wait()
	if err != nil {
		return err
	}
	struck := time.Now()
	r, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	// Who delivers the requests does not know which of them got through, and delivers
	// all of them again.
	w.acked(settleAll(ctx, r, w.ops("survivor"), keys))
	took := time.Since(struck)
	before, err := r.Effects().Counts(ctx)
	if err != nil {
		return err
	}
	lost := w.lost(before)
	// And once more, when no lease and no lock is left of the dead.
	time.Sleep(time.Until(struck.Add(w.env.LeaseTTL * 6 / 5)))
	settleAll(ctx, r, w.ops("late"), keys)
	return t.count(ctx, w, r, fired, took, lost)
}
