package backend

import (
	"testing"
	"time"
)

// The predicates on time, at their ends and where a time is missing (C37).
func TestRecordInTime(t *testing.T) {
	later, earlier := testNow.Add(1), testNow.Add(-1)
	for _, c := range []struct {
		name                     string
		rec                      Record
		expired, abandoned, live bool
	}{
		{"absent", Record{}, false, false, false},
		{"live", Record{State: InFlight, LeaseUntil: later, KnownUntil: later}, false, false, true},
		{"lease ends now", Record{State: InFlight, LeaseUntil: testNow, KnownUntil: later}, false, true, false},
		{"abandoned", Record{State: InFlight, LeaseUntil: earlier, KnownUntil: later}, false, true, false},
		{"abandoned, gone", Record{State: InFlight, LeaseUntil: earlier, KnownUntil: testNow}, true, true, false},
		{"abandoned without window", Record{State: InFlight, LeaseUntil: earlier}, false, true, false},
		{"no deadline", Record{State: InFlight}, false, false, true},
		{"no deadline, window over", Record{State: InFlight, KnownUntil: earlier}, false, false, true},
		{"known", Record{State: Completed, KnownUntil: later}, false, false, false},
		{"known until now", Record{State: Completed, KnownUntil: testNow}, true, false, false},
		{"completed without window", Record{State: Completed}, false, false, false},
		{"failed, over", Record{State: Failed, KnownUntil: earlier}, true, false, false},
		{"open, over", Record{State: Open, KnownUntil: earlier}, true, false, false},
		{"uncertain with a window", Record{State: Uncertain, LeaseUntil: earlier, KnownUntil: earlier}, false, false, false},
	} {
		if got := c.rec.Expired(testNow); got != c.expired {
			t.Errorf("%s: expired %v", c.name, got)
		}
		if got := c.rec.IsAbandoned(testNow); got != c.abandoned {
			t.Errorf("%s: abandoned %v", c.name, got)
		}
		if got := c.rec.IsLive(testNow); got != c.live {
			t.Errorf("%s: live %v", c.name, got)
		}
		if got := c.rec.At(testNow); (got.State == 0) != (c.expired || c.rec.State == 0) {
			t.Errorf("%s: a reader sees %v", c.name, got.State)
		}
		if got := ApplyExpire(c.rec, testNow); got.Changed != c.expired {
			t.Errorf("%s: a sweep changes it: %v", c.name, got.Changed)
		}
	}
}

func TestBodyEndsWithTheReplayWindow(t *testing.T) {
	rec := Record{State: Completed, Body: []byte("x"), ReplayUntil: testNow, KnownUntil: testNow.Add(time.Hour)}
	if rec.At(testNow.Add(-1)).Body == nil || rec.At(testNow).Body != nil {
		t.Error("the body does not end with the replay window")
	}
	if s := ApplyExpire(rec, testNow); !s.Changed || s.Next.Body != nil || s.Next.State != Completed {
		t.Errorf("a sweep after the replay window: %+v; want the record without its body", s)
	}
	rec.Body = nil
	if s := ApplyExpire(rec, testNow); s.Changed {
		t.Error("a sweep writes a record that has no body to drop")
	}
}

func TestNames(t *testing.T) {
	for _, c := range [][2]string{
		{State(0).String(), "absent"}, {InFlight.String(), "in flight"}, {Completed.String(), "completed"}, {Failed.String(), "failed"},
		{Uncertain.String(), "uncertain"}, {Open.String(), "open"}, {State(9).String(), "state 9"},
		{Rerun.String(), "rerun"}, {Recover.String(), "recover"}, {Hold.String(), "hold"}, {Abandoned(7).String(), "abandoned policy 7"},
		{Acquired.String(), "acquired"}, {Existing.String(), "existing"}, {Mismatch.String(), "mismatch"}, {Gone.String(), "gone"}, {Busy.String(), "busy"}, {Outcome(0).String(), "outcome 0"},
		{Survives.String(), "survives"}, {Survival(8).String(), "survival 8"},
	} {
		if c[0] != c[1] {
			t.Errorf("the name is %q; want %q", c[0], c[1])
		}
	}
	if Rerun.Stricter(Hold) != Hold || Recover.Stricter(Rerun) != Recover {
		t.Error("Hold > Recover > Rerun does not hold")
	}
}
