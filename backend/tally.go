package backend

import (
	"context"
	"time"
)

// Tally counts the records of one operation, all tenants together, that a reader
// sees in one state.
type Tally struct {
	Operation string
	State     State
	Abandoned bool // in flight, and the lease is over by the store's clock
	Records   int64
	Bytes     int64     // of the results that are replayed
	Oldest    time.Time // the least ReservedAt
}

// Tallier is a Backend that can count its records where they are, without sending
// them. It reads all of them all the same.
type Tallier interface {
	// Tally returns one entry for each operation and state that there is, in no
	// particular order. Expired records are not counted.
	Tally(ctx context.Context) ([]Tally, error)
}
