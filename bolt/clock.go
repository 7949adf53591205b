package bolt

import "time"

// clock is the store's clock as records keep it.
type clock func() time.Time

// systemClock is the store's clock unless Options.Now gives another one.
func systemClock() time.Time { return time.Now() }

// stopwatch measures how long something takes. It is not the store's clock: it
// decides no lease and no window, only how long the writer and a lock wait.
func stopwatch() time.Time { return time.Now() }
