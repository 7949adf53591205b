package redis

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// TestScriptsAgreeWithTheContract runs complete, release and renew, which decide in
// Lua, over records of every form, and compares what they leave with the pure
// decisions of package backend. The records' times are hours from now, so that the
// moment at which the server reads its clock makes no difference.
func TestScriptsAgreeWithTheContract(t *testing.T) {
	t.Parallel()
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	now := func() time.Time {
		v, err := s.look(t.Context(), &backend.ID{Operation: "pay", Key: "clock"})
		if err != nil {
			t.Fatal(err)
		}
		return v.now
	}
	hours := func(base time.Time, none int) time.Time {
		if rng.IntN(10) < none {
			return time.Time{}
		}
		return base.Add(time.Duration(rng.IntN(9)-4)*time.Hour + 30*time.Minute).Truncate(time.Microsecond)
	}
	changed := 0
	for i := range 2000 {
		r := request(fmt.Sprint("k", i))
		at := now()
		cur := backend.Record{
			Ref: r.Ref, State: backend.State(1 + rng.IntN(5)), Fence: 1 + rng.Uint64N(1<<50), Attempt: 1 + rng.IntN(5), TookOver: rng.IntN(2) == 0,
			OnAbandoned: backend.Abandoned(1 + rng.IntN(3)), ReservedAt: at.Add(-5 * time.Hour).Truncate(time.Microsecond), KnownUntil: hours(at, 3),
		}
		if rng.IntN(2) == 0 {
			cur.Holder = r.Holder
		}
		if rng.IntN(3) == 0 {
			cur.Evidence = "asked the bank"
		}
		if cur.State != backend.Open && rng.IntN(4) != 0 {
			cur.Fingerprint = r.Fingerprint
		}
		switch {
		case settled(cur.State):
			cur.CompletedAt, cur.ReplayUntil = at.Add(-4*time.Hour).Truncate(time.Microsecond), hours(at, 0)
			cur.Body = []byte("old answer")
		case cur.State != backend.Open:
			cur.LeaseUntil = hours(at, 2)
		}
		plant(t, s, &cur)
		ref := r.Ref
		if rng.IntN(4) == 0 {
			ref.Owner = token()
		}
		var what string
		var want, got backend.Record
		var wantErr, err error
		var step backend.Step
		switch rng.IntN(3) {
		case 0:
			c := backend.CompleteRequest{Ref: ref, State: backend.State(2 + rng.IntN(3)), Body: []byte("new answer")[:rng.IntN(11)], ReplayFor: time.Hour, KnownFor: time.Duration(1+rng.IntN(2)) * time.Hour}
			what = fmt.Sprintf("complete to %v", c.State)
			step, want, wantErr = c.Apply(cur, at)
			got, err = s.Complete(t.Context(), c)
		case 1:
			what = "release"
			step, wantErr = ref.ApplyRelease(cur, at)
			err = s.Release(t.Context(), ref)
		case 2:
			ttl := time.Duration(1+rng.IntN(6)) * time.Hour
			what = fmt.Sprintf("renew for %v", ttl)
			step, wantErr = ref.ApplyRenew(cur, at, ttl)
			err = s.Renew(t.Context(), ref, ttl)
		}
		complain := func(format string, args ...any) {
			t.Fatalf("seed %d, round %d: %s by its owner %v over %+v:\n%s", seed, i, what, ref == cur.Ref, cur, fmt.Sprintf(format, args...))
		}
		if !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
			complain("error %v; want %v", err, wantErr)
		}
		if d := differ(want, got); d != "" {
			complain("answer: %s", d)
		}
		if step.Changed {
			changed++
		}
		v, err := s.look(t.Context(), &r.ID)
		if err == nil {
			v, err = s.withBody(t.Context(), &r.ID, v)
		}
		if err != nil {
			complain("afterwards: %v", err)
		}
		if d := differ(step.Next, v.rec); d != "" {
			complain("afterwards: %s", d)
		}
		if step.Changed && !step.Next.KnownUntil.IsZero() && step.Next.State != backend.Uncertain && (step.Next.State != backend.InFlight || !step.Next.LeaseUntil.IsZero()) {
			if v.expire != v.rec.KnownUntil.UnixMilli() {
				complain("the key expires at %d; want the end of the record's window, %d", v.expire, v.rec.KnownUntil.UnixMilli())
			}
		} else if v.expire >= 0 {
			complain("the key has an expiry; want none: planted without, or without a window")
		}
	}
	if changed < 100 {
		t.Errorf("only %d of the moves changed something: the test has shown little", changed)
	}
}

// differ names the first difference of two records, with minutes of tolerance for
// times.
func differ(want, got backend.Record) string {
	wt, gt := []time.Time{want.ReservedAt, want.LeaseUntil, want.CompletedAt, want.ReplayUntil, want.KnownUntil}, []time.Time{got.ReservedAt, got.LeaseUntil, got.CompletedAt, got.ReplayUntil, got.KnownUntil}
	for i := range wt {
		if wt[i].IsZero() != gt[i].IsZero() || wt[i].Sub(gt[i]).Abs() > 5*time.Minute {
			return fmt.Sprintf("time %d is %v, want %v", i, gt[i], wt[i])
		}
	}
	switch {
	case want.Ref != got.Ref, want.State != got.State, want.Fence != got.Fence, want.Attempt != got.Attempt, want.TookOver != got.TookOver,
		want.OnAbandoned != got.OnAbandoned, want.Evidence != got.Evidence, want.BodyExpired != got.BodyExpired,
		want.Holder.Host != got.Holder.Host, want.Holder.PID != got.Holder.PID, !want.Holder.Started.Equal(got.Holder.Started):
		return fmt.Sprintf("got %+v, want %+v", got, want)
	case !bytes.Equal(want.Fingerprint, got.Fingerprint), !bytes.Equal(want.Body, got.Body):
		return fmt.Sprintf("fingerprint %x, body %q, want %x, %q", got.Fingerprint, got.Body, want.Fingerprint, want.Body)
	}
	return ""
}
