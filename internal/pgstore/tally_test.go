package pgstore

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// What the server counts is what a listing yields, whatever state a record is in and
// whichever of its windows are over.
func TestTallyIsWhatAListingCounts(t *testing.T) {
	t.Parallel()
	l := newLease(t, newBase(t, ""), setup{})
	if got, err := l.Tally(soon(t)); err != nil || len(got) != 0 {
		t.Fatalf("an empty store: %+v, %v", got, err)
	}
	for i := range 40 {
		r := reserveOf(fmt.Sprint("key", i))
		r.ID.Operation = fmt.Sprint("op", i%3)
		r.TTL, r.KnownFor = time.Duration(1+i%2*9)*time.Minute, 30*time.Minute
		if i%5 == 4 {
			r.OnAbandoned = backend.Hold
		}
		l.acquire(r)
		switch i % 8 {
		case 1, 2, 3:
			c := completion(r, "a result")
			c.ReplayFor, c.KnownFor = time.Duration(1+i%3)*2*time.Minute, time.Duration(i%4)*3*time.Minute+6*time.Minute
			if i%8 == 3 {
				c.State = backend.Failed
			}
			l.complete(c)
		case 4:
			c := completion(r, "")
			c.State = backend.Uncertain
			l.complete(c)
		case 5:
			if err := l.Release(soon(t), r.Ref); err != nil {
				t.Fatal(err)
			}
		}
		l.advance(7 * time.Second)
	}
	for range 4 {
		l.advance(2 * time.Minute)
		micros, err := strconv.ParseInt(l.ask("SELECT (extract(epoch FROM "+l.now+") * 1000000)::int8"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		now := time.UnixMicro(micros)
		want := make(map[[3]string]backend.Tally)
		for rec, err := range l.List(soon(t), backend.Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			over := rec.State == backend.InFlight && !rec.LeaseUntil.After(now)
			at := [3]string{rec.ID.Operation, rec.State.String(), fmt.Sprint(over)}
			g, ok := want[at]
			if !ok {
				g = backend.Tally{Operation: rec.ID.Operation, State: rec.State, Abandoned: over, Oldest: rec.ReservedAt}
			}
			g.Records, g.Bytes = g.Records+1, g.Bytes+int64(len(rec.Body))
			if rec.ReservedAt.Before(g.Oldest) {
				g.Oldest = rec.ReservedAt
			}
			want[at] = g
		}
		got, err := l.Tally(soon(t))
		if err != nil || len(got) != len(want) || len(got) < 6 {
			t.Fatalf("%d groups, want %d: %v", len(got), len(want), err)
		}
		slices.SortFunc(got, func(a, b backend.Tally) int { return cmp.Compare(a.Operation, b.Operation) })
		for _, g := range got {
			if at := [3]string{g.Operation, g.State.String(), fmt.Sprint(g.Abandoned)}; g != want[at] {
				t.Errorf("counted %+v\nlisted  %+v", g, want[at])
			}
		}
	}
}
