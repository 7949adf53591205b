package idem

import (
	"sync"
	"time"
)

// now is the only reading of the machine's clock in this package. It decides
// nothing about records, which live on the store's clock: it measures how much of
// a lease the holder has left, and how long a caller waits. testing/synctest
// replaces it in tests.
func now() time.Time { return time.Now() }

// processStart is when this process first made a store: with host and process ID
// it tells people one run of a program from the next.
var processStart = sync.OnceValue(now) // lint:const computed once, never reassigned
