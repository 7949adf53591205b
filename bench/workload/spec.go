package workload

import (
	"errors"
	"fmt"

	"github.com/goidem/idem/bench/result"
)

// Spec is what to ask of a strategy.
//
// Of [result.Workload], Length is that of one round, and Rate makes the loop open: an
// operation is due at its time, whatever became of those before it.
type Spec struct {
	result.Workload

	Rounds int // 0 means 1
	// Warmup is how many operations a round does before it counts anything.
	Warmup int
	// Operations ends a round after so many; 0 means by Length alone.
	Operations int64
	// Conflicts is the share of operations that take an earlier key for another payload.
	Conflicts float64
	// Failures is the share of operations that fail by themselves, before their effect.
	Failures float64
	// PIDs are the servers' processes, whose CPU time is reported, descendants included.
	PIDs []int
}

// check fills in what was left out and refuses what cannot be run.
func (s *Spec) check() error {
	s.Callers, s.Rounds = max(s.Callers, 1), max(s.Rounds, 1)
	switch {
	case s.Length <= 0 && s.Operations <= 0:
		return errors.New("workload: neither Length nor Operations says when a round ends")
	case s.Rate < 0 || s.Payload < 0 || s.Result < 0 || s.Warmup < 0:
		return errors.New("workload: a negative rate, size or number")
	case !share(s.Duplicates) || !share(s.Hot) || !share(s.Conflicts) || !share(s.Failures):
		return errors.New("workload: a share is from 0 to 1")
	case s.Duplicates+s.Conflicts > 0.99:
		return fmt.Errorf("workload: %.2f of the operations would repeat a key; 0.99 at most, or hardly any key is left to repeat", s.Duplicates+s.Conflicts)
	case s.Conflicts > 0 && s.Payload == 0:
		return errors.New("workload: conflicts differ in their payload, so Payload must be at least 1")
	}
	return nil
}

func share(x float64) bool { return x >= 0 && x <= 1 }
