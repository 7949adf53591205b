package strategy

import (
	"context"

	lru "github.com/hashicorp/golang-lru/v2"
)

// lruKeys is how many keys the window in memory remembers.
const lruKeys = 1 << 16

// lruWindow drops what this process has seen lately.
func lruWindow() Strategy {
	return strategy{
		Info{
			Name: "lru-window", Title: "a window in memory (LRU of 65,536 keys)", Family: Window,
			Survives: "nothing: it dies with the process, and other processes do not see it",
			Cost:     "no I/O; the oldest key is forgotten for each new one when it is full",

			Remembers: lruKeys,
		},
		func(_ context.Context, env Env) (Runner, error) {
			seen, err := lru.New[string, struct{}](lruKeys)
			if err != nil {
				return nil, err
			}
			return &runner{
				do: func(ctx context.Context, op Op) (Outcome, error) {
					if known, _ := seen.ContainsOrAdd(op.Key, struct{}{}); known {
						return Dropped, nil
					}
					if _, err := env.performOutside(ctx, op); err != nil {
						seen.Remove(op.Key)
						return "", err
					}
					return op.executed(ctx)
				},
				effects: env.Effects,
				usage: func(context.Context) (Usage, error) {
					return Usage{Records: int64(seen.Len()), StoredBytes: -1}, nil
				},
			}, nil
		},
	}
}
