package idem

import (
	"context"
	"fmt"
	"testing"
)

// An unknown outcome stays unknown whatever its cause looks like: a context that
// was cancelled with one of our own errors must not turn it into a certain no
// (R10), nor into advice for another situation.
func TestR10_UnknownOutcomeStaysUnknown(t *testing.T) {
	for _, cause := range []error{ErrLeaseLost, ErrInvalidKey, ErrCorruptRecord, ErrUnknownVersion, context.Canceled} {
		err := fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause)
		if isDefinite(err) {
			t.Errorf("%v counts as definite", err)
		}
	}
	if !isDefinite(ErrLeaseLost) || isDefinite(context.Canceled) {
		t.Error("a plain lease loss is definite, an ended context is not")
	}
	if got := Advise(fmt.Errorf("%w: %w", ErrOutcomeUnknown, ErrInvalidKey)); got != AdviceRetry {
		t.Errorf("advice %v", got)
	}
}
