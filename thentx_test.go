package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// A commit whose outcome is unknown because the lease was lost meanwhile is
// unknown, not "nothing was committed" (R10, R18).
func TestR18_UnknownCommitIsNoLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTxSetup(t, nil)
		s.faulty.Add(&backendtest.Fault{Method: "Finish", When: backendtest.After, Times: -1,
			Err: fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, backend.ErrLeaseLost)})
		_, err := idem.ExecuteThenTx(t.Context(), s.store, testScope(), "k", hashOf("h"), does(s.ledger, "call", "charge"),
			func(_ context.Context, _ *fakeTx, charge string) (string, error) { return charge, nil })
		if !errors.Is(err, idem.ErrOutcomeUnknown) || idem.Advise(err) != idem.AdviceRetry {
			t.Errorf("got %v", err)
		}
		s.ledger.want(t, "call", 1)
	})
}

// The wait for a turn behind somebody else's transaction that never ends is
// bounded, although the lease is renewed all the while (R9, R10).
func TestR09_WaitForATurnIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTxSetup(t, nil)
		s.faulty.Add(&backendtest.Fault{Method: "Finish", Times: -1, Block: make(chan struct{})})
		begun := time.Now()
		_, err := idem.ExecuteThenTx(t.Context(), s.store, testScope(), "k", hashOf("h"), does(s.ledger, "call", "charge"),
			func(_ context.Context, _ *fakeTx, charge string) (string, error) { return charge, nil })
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("returned after %v", took)
		}
		if !errors.Is(err, idem.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
	})
}
