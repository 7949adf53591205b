package strategy

import "context"

// perform is the operation that all strategies guard: some work, an effect, a result.
// The effect is apply, so that a strategy can put it into its transaction.
func (e Env) perform(ctx context.Context, op Op, apply func(context.Context) error) ([]byte, error) {
	if err := op.pause(ctx, AfterReserve); err != nil {
		return nil, err
	}
	if op.Work > 0 {
		if err := e.Sleep(ctx, op.Work); err != nil {
			return nil, err
		}
	}
	if err := apply(ctx); err != nil {
		return nil, err
	}
	if err := op.pause(ctx, AfterEffect); err != nil {
		return nil, err
	}
	return resultOf(op.Result), nil
}

// performOutside is perform with the effect in the ledger of the run.
func (e Env) performOutside(ctx context.Context, op Op) ([]byte, error) {
	return e.perform(ctx, op, func(ctx context.Context) error { return e.Effects.Apply(ctx, op.Key, op.Caller) })
}

func (op Op) pause(ctx context.Context, at Point) error {
	if op.Pause == nil {
		return nil
	}
	return op.Pause(ctx, at)
}

// executed is the answer of a call that has recorded its own effect.
func (op Op) executed(ctx context.Context) (Outcome, error) {
	if err := op.pause(ctx, AfterComplete); err != nil {
		return "", err
	}
	return Executed, nil
}

// resultBytes is what every result is cut from. Its bytes do not repeat within a
// page, so that nothing on the way can make them smaller.
var resultBytes = noise(64 << 10) // lint:const never written after its initialisation

func noise(n int) []byte {
	b, x := make([]byte, n), uint64(0x9e3779b97f4a7c15)
	for i := range b {
		x ^= x << 13 // xorshift64
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	return b
}

func resultOf(n int) []byte {
	if n <= len(resultBytes) {
		return resultBytes[:n:n]
	}
	return noise(n)
}
