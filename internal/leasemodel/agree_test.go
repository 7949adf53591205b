package leasemodel

import (
	"errors"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// The mapping between the two worlds: a tick is a second, now stands still, and a
// record's times are chosen around it.
const (
	second   = time.Second
	leaseFor = lease * second
	knownFor = 1000 * second // every window
)

var now = time.Unix(1_700_000_000, 0)

// concrete returns the backend's form of a record of the model.
func concrete(r Record) backend.Record {
	if r.Phase == Absent {
		return backend.Record{}
	}
	out := backend.Record{
		Ref:         backend.Ref{Owner: tokenOf(r.Owner)},
		State:       backend.State(r.Phase),
		Fingerprint: printOf(r.Print),
		Fence:       uint64(r.Fence),
		Attempt:     int(r.Num),
		TookOver:    r.Took,
		OnAbandoned: backend.Abandoned(r.Policy),
		ReservedAt:  now.Add(-knownFor),
	}
	switch r.Phase {
	case InFlight:
		if r.Lease != noLease {
			out.LeaseUntil = now.Add(time.Duration(r.Lease) * second)
		}
		if r.Over {
			out.LeaseUntil = now.Add(-knownFor)
		}
		if r.Policy == Rerun {
			out.KnownUntil = out.LeaseUntil.Add(knownFor)
		}
	case Completed, Failed:
		out.Body = []byte{byte(r.Result)}
		out.CompletedAt = now.Add(-second)
		out.ReplayUntil = now.Add(knownFor)
		out.KnownUntil = now.Add(knownFor)
	case Open:
		out.KnownUntil = now.Add(backend.OpenFor)
	}
	if r.Over {
		out.KnownUntil = now
	}
	return out
}

// abstract returns the model's form of a record of the backend.
func abstract(r backend.Record) Record {
	if r.State == 0 {
		return Record{}
	}
	out := Record{
		Phase:  Phase(r.State),
		Owner:  int8(r.Owner[0]),
		Fence:  int8(r.Fence),
		Num:    int8(r.Attempt),
		Took:   r.TookOver,
		Policy: Policy(r.OnAbandoned),
		Over:   r.Expired(now),
	}
	if len(r.Fingerprint) > 0 {
		out.Print = int8(r.Fingerprint[1])
	}
	if len(r.Body) > 0 {
		out.Result = int8(r.Body[0])
	}
	if r.State == backend.InFlight {
		out.Lease = noLease
		if !r.LeaseUntil.IsZero() {
			out.Lease = int8(max(r.LeaseUntil.Sub(now)/second, 0))
		}
	}
	return out
}

// canonical drops the lease outside flight, which means nothing.
func canonical(r Record) Record {
	if r.Phase != InFlight {
		r.Lease = 0
	}
	return r
}

func tokenOf(owner int8) (token [16]byte) {
	token[0] = byte(owner)
	return token
}

func printOf(p int8) []byte {
	if p == 0 {
		return nil
	}
	digest := make([]byte, 33)
	digest[0], digest[1] = 1, byte(p) // version 1, then the hash
	return digest
}

// reachable returns every record of the scenarios, each completed one also as
// failed, and the highest fence among them.
func reachable() (records []Record, fences int8) {
	seen := map[Record]bool{}
	for _, e := range explored() {
		for r := range e.records {
			seen[r] = true
			if r.Phase == Completed && r.Owner != 0 {
				r.Phase = Failed
				seen[r] = true
			}
		}
	}
	for r := range seen {
		records, fences = append(records, r), max(fences, r.Fence)
	}
	return records, fences
}

// TestModelAgreesWithBackend holds the model's store against package backend's,
// on every reachable record and every request.
func TestModelAgreesWithBackend(t *testing.T) {
	records, fences := reachable()
	var pairs int
	same := func(what any, r, want Record, wantAnswer answer, step backend.Step, got answer) {
		t.Helper()
		pairs++
		if next := abstract(step.Next); next != canonical(want) || got != wantAnswer {
			t.Errorf("%v and %+v:\nmodel   %v, %q\nbackend %v, %q", r, what, want, wantAnswer, next, got)
		}
		if step.Changed != (canonical(want) != canonical(r)) {
			t.Errorf("%v and %+v: backend says changed: %t", r, what, step.Changed)
		}
	}
	var none Switch
	for _, r := range records {
		cur := concrete(r)
		if back := abstract(cur); back != canonical(r) {
			t.Fatalf("%v maps to %v", r, back)
		}
		for _, q := range reserves(fences) {
			req := reserveOf(q)
			step, res, err := req.Apply(cur, now, uint64(q.Seed))
			next, ans := none.Reserve(r, q)
			same(q, r, next, ans, step, outcomeOf(t, res, err))
		}
		for token := int8(1); token <= 2*Attempts; token++ {
			ref := backend.Ref{Owner: tokenOf(token)}
			for _, to := range []Phase{Completed, Failed, Uncertain} {
				req := backend.CompleteRequest{Ref: ref, State: backend.State(to), ReplayFor: knownFor, KnownFor: knownFor}
				if to != Uncertain {
					req.Body = []byte{byte(token)}
				}
				step, _, err := req.Apply(cur, now)
				next, ans := none.Complete(r, token, to)
				same(req, r, next, ans, step, verdict(err))
			}
			step, err := ref.ApplyRelease(cur, now)
			next, ans := none.Release(r, token)
			same("release", r, next, ans, step, verdict(err))
			step, err = ref.ApplyRenew(cur, now, leaseFor)
			next, ans = none.Renew(r, token)
			same("renew", r, next, ans, step, verdict(err))
		}
		for fence := int8(0); fence <= fences+1; fence++ {
			for _, yes := range []bool{false, true} {
				req := backend.ResolveRequest{Fence: uint64(fence), Applied: yes, Body: []byte{operator}, ReplayFor: knownFor, KnownFor: knownFor}
				step, _, err := req.Apply(cur, now)
				next, ans := none.Resolve(r, fence, yes)
				same(req, r, next, ans, step, verdict(err))

				del := backend.ForgetRequest{Fence: uint64(fence), Force: yes}
				step, err = del.Apply(cur, now)
				next, ans = none.Forget(r, fence, yes)
				same(del, r, next, ans, step, verdict(err))
			}
		}
		same("sweep", r, none.Sweep(r), done, backend.ApplyExpire(cur, now), done)
	}
	t.Logf("%d records, %d pairs of record and request", len(records), pairs)
}

// reserves returns every reserve that can meet a record.
func reserves(fences int8) (all []ReserveRequest) {
	for token := int8(1); token <= 2*Attempts; token++ {
		for print := int8(1); print <= 2; print++ {
			for _, p := range everyPolicy {
				for take := int8(0); take <= fences+1; take++ {
					q := ReserveRequest{Owner: token, Print: print, Policy: p, Take: take}
					if take == 0 {
						q.Take = plain
					}
					for _, seed := range []int8{0, fences + 2} {
						q.Seed = seed
						q.Recovered = false
						all = append(all, q)
						q.Recovered = true
						all = append(all, q)
					}
				}
			}
		}
	}
	return all
}

func reserveOf(q ReserveRequest) *backend.ReserveRequest {
	req := &backend.ReserveRequest{
		Ref:         backend.Ref{Owner: tokenOf(q.Owner)},
		Fingerprint: printOf(q.Print),
		TTL:         leaseFor,
		KnownFor:    knownFor,
		OnAbandoned: backend.Abandoned(q.Policy),
		Recovered:   q.Recovered,
	}
	if q.Take != plain {
		req.TakeOver = uint64(q.Take)
	}
	return req
}

// outcomeOf reads a reservation as a caller does.
func outcomeOf(t *testing.T, res backend.Reservation, err error) answer {
	t.Helper()
	if err != nil {
		t.Errorf("reserve: %v", err)
	}
	switch res.Outcome {
	case backend.Acquired:
		return acquired
	case backend.Mismatch:
		return mismatch
	case backend.Gone:
		return gone
	}
	r := res.Record
	switch {
	case r.Expired(now) || r.State == backend.Open:
		return free
	case r.IsAbandoned(now):
		return lapsed
	case r.State == backend.InFlight:
		return inFlight
	case r.State == backend.Uncertain:
		return unresolved
	}
	return finished
}

// verdict reads the error of a move as the model does: it went through, or it met
// a record that is not its own.
func verdict(err error) answer {
	for _, refused := range []error{backend.ErrLeaseLost, backend.ErrNotFound, backend.ErrStale, backend.ErrInFlight} {
		if errors.Is(err, refused) {
			return lost
		}
	}
	if err != nil {
		return noAnswer
	}
	return done
}
