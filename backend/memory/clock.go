package memory

import "time"

// systemClock is the only reading of the machine's clock in this package; tests
// and simulations inject their own through Options.Now.
func systemClock() time.Time { return time.Now() }
