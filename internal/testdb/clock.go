package testdb

import "time"

// patience is how long a server may take to start, to recover or to stop: far more than it needs, so
// that a busy machine fails no test.
const patience = 60 * time.Second

// poll calls done until it returns true, and reports whether it did before patience ran out.
func poll(done func() bool) bool {
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

// soon is the deadline of one exchange with a server.
func soon() time.Time { return time.Now().Add(patience) }

// olderThan reports whether t lies more than d in the past.
func olderThan(t time.Time, d time.Duration) bool { return time.Since(t) > d }
