package backend

import (
	"context"
	"time"
)

// Backlog is what waits for Expire.
type Backlog struct {
	// Due is how many records have to be looked at: those that are removed, those
	// whose result is dropped, and at most a few that turn out to stay. With Capped
	// there are at least so many; they were not counted further.
	Due    int64
	Capped bool
	// Oldest is how long the oldest of them has been due, by the store's clock.
	Oldest time.Duration
}

// Backlogger is a Backend that can tell cheaply what waits for Expire.
type Backlogger interface {
	Backlog(ctx context.Context) (Backlog, error)
}

// SelfExpirer is a Backend whose server may remove what has expired by itself.
type SelfExpirer interface {
	// ExpiresItself reports whether Expire has nothing to do.
	ExpiresItself() bool
}
