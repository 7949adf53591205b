package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bench/strategy"
)

// stub is a strategy over a map that remembers payloads; before, when set, is called
// by each operation first.
type stub struct {
	noop
	before func(ctx context.Context, op strategy.Op) error

	mu   sync.Mutex
	seen map[string]string
	ops  []strategy.Op
}

func newStub() *stub { return &stub{noop: noop{NewLedger()}, seen: make(map[string]string)} }

func (s *stub) Do(ctx context.Context, op strategy.Op) (strategy.Outcome, error) {
	if s.before != nil {
		if err := s.before(ctx, op); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = append(s.ops, op)
	if payload, ok := s.seen[op.Key]; ok {
		if payload != string(op.Payload) {
			return strategy.Mismatch, nil
		}
		return strategy.Replayed, nil
	}
	if op.Pause != nil {
		if err := op.Pause(ctx, strategy.AfterReserve); err != nil {
			return "", err
		}
	}
	s.seen[op.Key] = string(op.Payload)
	return strategy.Executed, s.Effects().Apply(ctx, op.Key, op.Caller)
}

// leased runs operations through Execute.
type leased struct {
	noop
	store *idem.Store
}

func (l leased) Do(ctx context.Context, op strategy.Op) (strategy.Outcome, error) {
	res, err := idem.Execute(ctx, l.store, idem.Scope{Operation: "bench.test"}, idem.Key(op.Key), idem.FingerprintBytes(op.Payload), func(ctx context.Context) ([]byte, error) {
		if op.Pause != nil {
			if err := op.Pause(ctx, strategy.AfterReserve); err != nil {
				return nil, err
			}
		}
		return make([]byte, op.Result), l.Effects().Apply(ctx, op.Key, op.Caller)
	})
	switch {
	case errors.Is(err, idem.ErrInFlight):
		return strategy.InFlight, nil
	case errors.Is(err, idem.ErrFingerprintMismatch):
		return strategy.Mismatch, nil
	case err != nil:
		return "", fmt.Errorf("execute: %w", err)
	case res.Replayed:
		return strategy.Replayed, nil
	}
	return strategy.Executed, nil
}
