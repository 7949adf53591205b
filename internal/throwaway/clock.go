package throwaway

import (
	"context"
	"time"
)

// patience is how long a server may take to start, to recover or to stop: far more than it needs, so
// that a busy machine fails nothing.
const patience = 60 * time.Second

// Poll calls done until it returns true, and reports whether it did before patience
// ran out or ctx ended.
func Poll(ctx context.Context, done func() bool) bool {
	for end, pause := time.Now().Add(patience), time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if done() {
			return true
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// soon is the deadline of one exchange with a server.
func soon() time.Time { return time.Now().Add(patience) }

// olderThan reports whether t lies more than d in the past.
func olderThan(t time.Time, d time.Duration) bool { return time.Since(t) > d }

// settled waits, whoever is interested, until done returns true, for something that a
// signal has already decided. It reports whether it came before patience ran out.
func settled(done func() bool) bool {
	for end, pause := time.Now().Add(patience), time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
}
