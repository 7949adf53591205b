// Package expiry says how long a key is remembered.
package expiry

import (
	"fmt"
	"time"
)

// Retention is how long a settled key is remembered, counted from the moment it
// settled, on the store's clock.
type Retention struct {
	// Replay is how long retries are given the stored result.
	Replay time.Duration
	// Dedup is how long the key is recognised at all. Between Replay and Dedup a
	// retry learns that the operation happened and that its result is gone.
	Dedup time.Duration
}

// Validate reports whether both windows are positive and Replay is within Dedup.
// Zero is neither "for ever" nor "not at all": it is refused.
func (r Retention) Validate() error {
	if r.Replay <= 0 || r.Dedup < r.Replay {
		return fmt.Errorf("idem: retention of %v (replay) and %v (dedup): both must be positive, and replay at most dedup", r.Replay, r.Dedup)
	}
	return nil
}
