package backendtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// long is a lease or window that no subtest lets run out.
const long = 2 * time.Hour

// kit is what one subtest works with. Its methods fail the subtest, quoting the
// rule.
type kit struct {
	t       *testing.T
	h       *Harness
	rule    string
	ctx     context.Context
	unit    time.Duration
	scope   string // of a nested part: its keys are its own
	planted bool   // the store holds records that no backend would write itself
	nested  bool   // it is a part of a check, with a testing.T of its own
	try     *try
}

func newKit(t *testing.T, h *Harness, c check, p *try) *kit {
	// A backend that hangs shall fail its own subtest, not the whole run.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	k := &kit{t: t, h: h, ctx: ctx, unit: h.Unit, try: p}
	if k.unit <= 0 {
		k.unit = time.Minute
	}
	name, _, _ := strings.Cut(c.name, "/")
	k.rule = name + ": " + c.rule
	return k
}

// fail ends the subtest, or the try when that was held up.
func (k *kit) fail(format string, args ...any) {
	k.t.Helper()
	found := fmt.Sprintf("%s\n\tRule %s", fmt.Sprintf(format, args...), k.rule)
	switch {
	case !k.heldUp():
	case k.try.last:
		found += fmt.Sprintf("\n\tThe machine held it up for %v, and as long in the %d tries before.", k.try.late().Round(time.Millisecond), tries-1)
	default:
		k.giveUp(found)
	}
	k.t.Fatal(found)
}

// check fails the subtest unless ok.
func (k *kit) check(ok bool, format string, args ...any) {
	k.t.Helper()
	if !ok {
		k.fail(format, args...)
	}
}

// need skips the subtest, loudly, where the harness lacks something.
func (k *kit) need(have bool, what string) {
	k.t.Helper()
	if !have {
		k.t.Skipf("NOT CHECKED: the harness has no %s\n\tRule %s", what, k.rule)
	}
}

// exact reports whether the store's clock moves only, or nearly only, when the
// suite moves it, so that it makes sense to look shortly before an end.
func (k *kit) exact() bool {
	k.t.Helper()
	if k.h.MaxAdvance > 0 {
		k.t.Log("NOT CHECKED: the time shortly before the end, because Advance really waits")
		return false
	}
	return true
}

// open returns a fresh handle.
func (k *kit) open() backend.Backend {
	k.t.Helper()
	return k.h.Open(k.t)
}

// advance moves the store's clock.
func (k *kit) advance(d time.Duration) {
	k.t.Helper()
	if k.h.MaxAdvance > 0 && d > k.h.MaxAdvance {
		k.t.Skipf("NOT CHECKED: it needs %v, the harness advances at most %v\n\tRule %s", d, k.h.MaxAdvance, k.rule)
	}
	k.try.let += d
	k.h.Advance(d)
}

// pass lets d pass and a little more, so that something which ends after d is
// over.
func (k *kit) pass(d time.Duration) {
	k.t.Helper()
	k.advance(d + k.margin())
}

// margin is a distance from an end that is surely on one side of it.
func (k *kit) margin() time.Duration { return 2*k.h.Tick + k.unit/20 }

// id returns the ID that most subtests work on.
func (k *kit) id() backend.ID { return k.key("order-1001") }

// key returns an ID in the usual scope.
func (k *kit) key(key string) backend.ID {
	return backend.ID{Tenant: "acme", Operation: "billing.invoice", Key: key + k.scope}
}

// token returns a new owner token.
func token() (t [16]byte) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// digests returns the stored form of a fingerprint: one digest for each version.
func digests(request string, versions ...byte) []byte {
	if len(versions) == 0 {
		versions = []byte{1}
	}
	var b []byte
	for _, v := range versions {
		sum := sha256.Sum256([]byte(fmt.Sprintf("%d %s", v, request)))
		b = append(append(b, v), sum[:]...)
	}
	return b
}

// request returns a reserve by a new attempt, with a lease that does not run out.
func (k *kit) request(id backend.ID) backend.ReserveRequest {
	return backend.ReserveRequest{
		Ref:         backend.Ref{ID: id, Owner: token()},
		Fingerprint: digests("amount 100"),
		TTL:         long,
		KnownFor:    long,
		OnAbandoned: backend.Rerun,
		Holder:      backend.Holder{Host: "worker-7", PID: 4711, Started: time.Date(2026, 11, 3, 9, 0, 0, 0, time.UTC)},
	}
}

// over returns a copy of r by another attempt that wants to take over fence.
func over(r backend.ReserveRequest, fence uint64) backend.ReserveRequest {
	r.Owner, r.TakeOver = token(), fence
	return r
}

// reserve reserves through a fresh handle.
func (k *kit) reserve(r backend.ReserveRequest) backend.Reservation {
	k.t.Helper()
	res, err := k.open().Reserve(k.ctx, r)
	k.check(err == nil, "Reserve: %v; what it found is an outcome, not an error", err)
	k.check(!res.Now.IsZero(), "Reserve answered %v without the store's time", res.Outcome)
	return res
}

// acquire reserves and insists on getting the key.
func (k *kit) acquire(r backend.ReserveRequest) backend.Record {
	k.t.Helper()
	res := k.reserve(r)
	k.check(res.Outcome == backend.Acquired, "Reserve answered %v over %s; want acquired", res.Outcome, show(res.Record))
	k.check(res.Record.Ref == r.Ref && res.Record.State == backend.InFlight, "an acquired key is %s by another token or for another key; want in flight by the caller", show(res.Record))
	k.check(res.Record.Fence > 0 && res.Record.Attempt > 0, "an acquired key has fence %d and attempt %d; both start above zero", res.Record.Fence, res.Record.Attempt)
	return res.Record
}

// take gets the key as the core does: reserve plainly, take over what is free.
func (k *kit) take(b backend.Backend, r backend.ReserveRequest) (backend.Reservation, error) {
	r.TakeOver = 0
	var res backend.Reservation
	var err error
	for range 20 {
		res, err = b.Reserve(k.ctx, r)
		if err != nil {
			return res, err
		}
		rec := &res.Record
		switch {
		case res.Outcome == backend.Gone:
			r.TakeOver = 0
		case res.Outcome == backend.Existing && rec.Owner != r.Owner && r.TakeOver != rec.Fence &&
			(rec.State == backend.Open || rec.Expired(res.Now) || rec.IsAbandoned(res.Now)):
			r.TakeOver = rec.Fence
		default:
			return res, nil
		}
	}
	return res, errors.New("twenty reserves in a row found a free record and did not get it")
}

// obtain takes the key and insists on getting it.
func (k *kit) obtain(r backend.ReserveRequest) backend.Record {
	k.t.Helper()
	res, err := k.take(k.open(), r)
	k.check(err == nil, "Reserve: %v", err)
	k.check(res.Outcome == backend.Acquired, "Reserve answered %v over %s; want acquired", res.Outcome, show(res.Record))
	return res.Record
}

// finish completes an attempt with windows that do not run out.
func (k *kit) finish(ref backend.Ref, body string) backend.Record {
	k.t.Helper()
	return k.settle(backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: []byte(body), ReplayFor: long, KnownFor: long})
}

// settle completes an attempt and insists that it works.
func (k *kit) settle(r backend.CompleteRequest) backend.Record {
	k.t.Helper()
	rec, err := k.open().Complete(k.ctx, r)
	k.check(err == nil, "Complete to %v: %v", r.State, err)
	k.check(rec.ID == r.ID, "Complete returned the record of another key: %s", show(rec))
	return rec
}

// release releases and insists that it works.
func (k *kit) release(ref backend.Ref) {
	k.t.Helper()
	err := k.open().Release(k.ctx, ref)
	k.check(err == nil, "Release: %v", err)
}

// get reads a record that must be there.
func (k *kit) get(id backend.ID) backend.Record {
	k.t.Helper()
	rec, err := k.open().Get(k.ctx, id)
	k.check(err == nil, "Get: %v", err)
	k.check(rec.ID == id, "Get returned the record of another key")
	return rec
}

// absent insists that a reader sees no record.
func (k *kit) absent(id backend.ID, when string) {
	k.t.Helper()
	rec, err := k.open().Get(k.ctx, id)
	k.check(errors.Is(err, backend.ErrNotFound), "%s, Get found %s, error %v; want ErrNotFound", when, show(rec), err)
}

// wants insists that err matches want.
func (k *kit) wants(err, want error, what string) {
	k.t.Helper()
	k.check(errors.Is(err, want), "%s: error %v; want %v", what, err, want)
}

// unchanged insists that the record still is as it was.
func (k *kit) unchanged(was backend.Record, what string) {
	k.t.Helper()
	now := k.get(was.ID)
	if d := diff(was, now, k.h.Tick); d != "" {
		k.fail("%s changed the record: %s", what, d)
	}
}
