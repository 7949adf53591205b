package backendtest

import "time"

// wallClock is the only reading of the machine's clock in this package: for seeds,
// and for how long a step really took. No lease and no window is judged by it.
func wallClock() time.Time { return time.Now() }
