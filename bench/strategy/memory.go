package strategy

import (
	"context"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
)

// memoryLease is idem's lease mode on the backend without a disk.
func memoryLease() Strategy {
	return strategy{
		Info{
			Name: "memory-lease", Title: "idem on memory", Family: Lease,
			Survives: "nothing: it dies with the process",
			Cost:     "no I/O",
		},
		func(_ context.Context, env Env) (Runner, error) {
			b := memory.New(&memory.Options{Now: env.Now})
			do, err := doLease(env, b)
			if err != nil {
				return nil, err
			}
			return &runner{do: do, effects: env.Effects, usage: func(ctx context.Context) (Usage, error) {
				u := Usage{StoredBytes: -1}
				for _, err := range b.List(ctx, backend.Filter{}) {
					if err != nil {
						return u, err
					}
					u.Records++
				}
				return u, nil
			}}, nil
		},
	}
}
