package redis

import "time"

// stopwatch returns a clock that counts nanoseconds from now on and never jumps. It
// decides no lease and no window of the store: the server's clock does.
func stopwatch() func() int64 {
	began := time.Now()
	return func() int64 { return int64(time.Since(began)) }
}

// now is for the deadlines of sockets; the server's clock decides everything else.
func now() time.Time { return time.Now() }
