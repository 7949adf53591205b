package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

func measureExpiry(r *report) error {
	return r.all([]part{
		{"policy", policyLookup}, {"pgsweep", pgSweep}, {"pgforeground", pgSweepForeground}, {"pgrounds", pgSweepRounds}, {"bytes", recordBytes},
		{"boltsweep", boltSweep}, {"boltrounds", boltRounds},
	})
}

// policyLookup: the window of a settled key, with 10 rules and with 1,000.
func policyLookup(r *report) error {
	policy := func(n int) (*expiry.Policy, []backend.ID, error) {
		rules := []expiry.Rule{{Operation: "*"}}
		var ids []backend.ID
		for i := range n - 1 {
			op := fmt.Sprintf("service%d.call", i)
			rule := expiry.Rule{Operation: op}
			switch i % 3 {
			case 1:
				rule.Operation = fmt.Sprintf("service%d.*", i)
			case 2:
				rule.Tenant = fmt.Sprintf("tenant%d", i)
			}
			rules = append(rules, rule)
			ids = append(ids, backend.ID{Tenant: rule.Tenant, Operation: op, Key: "k"})
		}
		p, err := expiry.New(rules...)
		return p, ids, err
	}
	small, few, err := policy(10)
	if err != nil {
		return err
	}
	large, many, err := policy(1000)
	if err != nil {
		return err
	}
	// As many names are asked for on both sides: what the caches of the machine hold of
	// a workload is not the policy's doing.
	rand.Shuffle(len(many), func(i, j int) { many[i], many[j] = many[j], many[i] })
	many = many[:len(few)]
	lookup := func(p *expiry.Policy, ids []backend.ID) func() error {
		var sum time.Duration
		return func() error {
			for range 1000 {
				for i := range ids {
					sum += p.For(ids[i], backend.Completed).Dedup
				}
			}
			if sum == 0 {
				return fmt.Errorf("no window")
			}
			return nil
		}
	}
	_, ratios, err := r.compare(1, []variant{{name: "10", op: lookup(small, few)}, {name: "1000", op: lookup(large, many)}})
	if err != nil {
		return err
	}
	r.atMost("policy: lookup with 1,000 rules / with 10, time", "1", ratios[1], 1.5, "x")
	allocs := testing.AllocsPerRun(100, func() {
		for i := range many {
			large.For(many[i], backend.Completed)
		}
	})
	r.atMost("policy: allocations of a lookup", "1", allocs, 0, "")
	return nil
}

// sweepAll runs a Sweeper until nothing is due, and returns how long that took.
func sweepAll(b backend.Backend, o expiry.SweeperOptions) (removed int, took time.Duration, err error) {
	return sweepUntil(context.Background(), b, o)
}

// sweepUntil is sweepAll, but for the end of ctx.
func sweepUntil(ctx context.Context, b backend.Backend, o expiry.SweeperOptions) (removed int, took time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o.OnRound = func(r expiry.Round) {
		removed += r.Removed
		if err = r.Err; err != nil || !r.More {
			cancel()
		}
	}
	s, fail := expiry.NewSweeper(b, &o)
	if fail != nil {
		return 0, 0, fail
	}
	begun := time.Now()
	if fail := s.Run(ctx); fail != nil {
		return removed, 0, fail
	}
	return removed, time.Since(begun), err
}
