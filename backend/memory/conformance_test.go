package memory

import (
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// fakeClock moves only when it is told to.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(testing.TB) *backendtest.Harness {
		clock := &fakeClock{now: time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)}
		store := New(&Options{Now: clock.Now})
		return &backendtest.Harness{
			// The store lives in its handle: there is only one.
			Open:                func(testing.TB) backend.Backend { return store },
			Advance:             clock.Advance,
			FenceOutlivesRecord: true,
			Put: func(_ testing.TB, r backend.Record) {
				store.mu.Lock()
				defer store.mu.Unlock()
				store.records[r.ID] = r.Clone()
			},
		}
	})
}
