package pgstore

import "time"

// now is the local clock, for waits only: what is stored comes from the server's.
func now() time.Time { return time.Now() }
