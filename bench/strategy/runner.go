package strategy

import "context"

// runner is a Runner made of its parts. Parts that are nil do nothing.
type runner struct {
	do      func(ctx context.Context, op Op) (Outcome, error)
	effects Ledger
	usage   func(ctx context.Context) (Usage, error)
	flushes func(ctx context.Context) (int64, error) // nil: none
	wire    *meter                                   // nil: no sockets
	close   func() error
}

// Do implements Runner.
func (r *runner) Do(ctx context.Context, op Op) (Outcome, error) { return r.do(ctx, op) }

// Effects implements Runner.
func (r *runner) Effects() Ledger { return r.effects }

// Usage implements Runner.
func (r *runner) Usage(ctx context.Context) (Usage, error) {
	if r.usage == nil {
		return Usage{}, nil
	}
	return r.usage(ctx)
}

// Flushes implements Runner.
func (r *runner) Flushes(ctx context.Context) (int64, error) {
	if r.flushes == nil {
		return 0, nil
	}
	return r.flushes(ctx)
}

// Wire implements Runner.
func (r *runner) Wire() int64 {
	if r.wire == nil {
		return 0
	}
	return r.wire.bytes.Load()
}

// Close implements Runner.
func (r *runner) Close() error {
	if r.close == nil {
		return nil
	}
	return r.close()
}

// closing gives up what was opened when the rest of the opening failed.
func closing(err error, closers ...func() error) error {
	for _, c := range closers {
		_ = c() // the first error is the one to tell
	}
	return err
}
