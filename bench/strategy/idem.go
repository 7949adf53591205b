package strategy

import (
	"context"
	"errors"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// scope is where all keys of a place are unique.
var scope = idem.Scope{Operation: "bench"} // lint:const never written

// options are those of every store of idem here: the defaults, with the environment's
// times, and results as they are instead of JSON, so that an Op's size is that of the
// stored result.
func (e Env) options() (*idem.Options, error) {
	policy, err := expiry.Fixed(expiry.Retention{Replay: e.Known, Dedup: e.Known})
	if err != nil {
		return nil, err
	}
	return &idem.Options{Retention: policy, LeaseTTL: e.LeaseTTL, Codec: idem.Raw()}, nil
}

// doLease returns what runs operations with idem's lease mode on a backend.
func doLease(env Env, b backend.Backend) (func(context.Context, Op) (Outcome, error), error) {
	o, err := env.options()
	if err != nil {
		return nil, err
	}
	store, err := idem.New(b, o)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, op Op) (Outcome, error) {
		res, err := idem.Execute(ctx, store, scope, idem.Key(op.Key), idem.FingerprintBytes(op.Payload),
			func(ctx context.Context) ([]byte, error) { return env.performOutside(ctx, op) })
		return outcome(ctx, op, res.Replayed, err)
	}, nil
}

// doTx returns what runs operations with idem's transactional mode on a backend, with
// the effect in the transaction.
func doTx[Tx any](env Env, b backend.Transactional[Tx], apply func(context.Context, Tx, Op) error) (func(context.Context, Op) (Outcome, error), error) {
	o, err := env.options()
	if err != nil {
		return nil, err
	}
	store, err := idem.NewTx(b, o)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, op Op) (Outcome, error) {
		res, err := idem.ExecuteTx(ctx, store, scope, idem.Key(op.Key), idem.FingerprintBytes(op.Payload),
			func(ctx context.Context, tx Tx) ([]byte, error) {
				return env.perform(ctx, op, func(ctx context.Context) error { return apply(ctx, tx, op) })
			})
		return outcome(ctx, op, res.Replayed, err)
	}, nil
}

// outcome sorts what idem answers.
func outcome(ctx context.Context, op Op, replayed bool, err error) (Outcome, error) {
	switch {
	case err == nil && replayed:
		return Replayed, nil
	case err == nil:
		return op.executed(ctx)
	case errors.Is(err, idem.ErrFingerprintMismatch):
		return Mismatch, nil
	case errors.Is(err, idem.ErrOutcomeUnknown), errors.Is(err, idem.ErrLeaseLost), errors.Is(err, idem.ErrUnresolved):
		return Unknown, nil
	case errors.Is(err, idem.ErrInFlight) && ctx.Err() == nil:
		return InFlight, nil
	case errors.Is(err, idem.ErrResultExpired), errors.Is(err, idem.ErrResultUnavailable):
		return Dropped, nil
	}
	return "", err
}
