package expiry

import "time"

// systemClock is the only reading of the machine's clock in this package.
func systemClock() time.Time { return time.Now() }
