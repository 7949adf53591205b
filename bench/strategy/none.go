package strategy

import "context"

// none runs every request.
func none() Strategy {
	return strategy{
		Info{
			Name: "none", Title: "nothing", Family: Naive,
			Survives: "nothing is remembered",
			Cost:     "none",
		},
		func(_ context.Context, env Env) (Runner, error) {
			return &runner{
				do: func(ctx context.Context, op Op) (Outcome, error) {
					if _, err := env.performOutside(ctx, op); err != nil {
						return "", err
					}
					return op.executed(ctx)
				},
				effects: env.Effects,
			}, nil
		},
	}
}
