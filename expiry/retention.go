package expiry

import (
	"fmt"
	"time"
)

// The windows of an operation that no rule of a [Policy] covers, and of a rule that
// does not give its own.
const (
	DefaultReplay = 24 * time.Hour
	DefaultDedup  = 7 * 24 * time.Hour
)

// MaxWindow is the longest window: a hundred years. A store adds windows to its
// clock and keeps the sum in 64 bits of nanoseconds, so that a longer one would
// overflow and read as a moment long ago: the key would be forgotten at once.
const MaxWindow = 36500 * 24 * time.Hour

// Retention is how long a settled key is remembered, counted from the moment it
// settled, on the store's clock.
type Retention struct {
	// Replay is how long retries are given the stored result.
	Replay time.Duration
	// Dedup is how long the key is recognised at all. Between Replay and Dedup a
	// retry learns that the operation happened and that its result is gone.
	Dedup time.Duration
}

// Validate reports whether both windows are positive and at most [MaxWindow], and
// Replay is within Dedup. Zero is neither "for ever" nor "not at all": it is refused.
func (r Retention) Validate() error {
	switch {
	case r.Replay <= 0 || r.Dedup < r.Replay:
		return fmt.Errorf("idem: retention of %v (replay) and %v (dedup): both must be positive, and replay at most dedup", r.Replay, r.Dedup)
	case r.Dedup > MaxWindow:
		return fmt.Errorf("idem: retention of %v (dedup): at most a hundred years (36500d), or its end does not fit the clock of the store", r.Dedup)
	}
	return nil
}
