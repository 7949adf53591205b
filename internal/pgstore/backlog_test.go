package pgstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

func TestBacklog(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	if got, err := l.Backlog(soon(t)); err != nil || got != (backend.Backlog{}) {
		t.Fatalf("an empty store: %+v, %v", got, err)
	}
	for i := range 10 {
		r := reserveOf(fmt.Sprint("key", i))
		r.TTL, r.KnownFor = time.Minute, time.Minute
		l.acquire(r)
	}
	l.advance(12 * time.Minute)
	got, err := l.Backlog(soon(t))
	if err != nil || got.Due != 10 || got.Capped || got.Oldest != 10*time.Minute {
		t.Fatalf("%+v, %v; want 10 due, the oldest for 10 minutes", got, err)
	}
}
