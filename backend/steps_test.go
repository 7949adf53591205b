package backend

import (
	"errors"
	"math"
	"testing"
	"time"
)

var (
	testID    = ID{Tenant: "acme", Operation: "billing.invoice", Key: "order-1001"}
	testNow   = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	testOwner = [16]byte{1, 2, 3}
)

// A record past its dedup window reads as absent (R22): its fingerprint is not
// compared any more, so its result must not leave with the answer (R2).
func TestExpiredRecordIsAnsweredWithoutBody(t *testing.T) {
	cur := Record{
		Ref: Ref{ID: testID, Owner: testOwner}, State: Completed, Fence: 7, Attempt: 1, Body: []byte("secret"),
		CompletedAt: testNow.Add(-time.Hour), ReplayUntil: testNow.Add(-time.Minute), KnownUntil: testNow.Add(-time.Minute),
	}
	r := ReserveRequest{Ref: Ref{ID: testID, Owner: [16]byte{9}}, TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: Rerun}
	step, res, err := r.Apply(cur, testNow, 0)
	if err != nil || step.Changed || res.Outcome != Existing || res.Record.Fence != 7 {
		t.Fatalf("plain reserve over an expired record: %v, %+v, %v", step.Changed, res, err)
	}
	if res.Record.Body != nil {
		t.Errorf("the answer carries the result of an expired record: %q", res.Record.Body)
	}
}

// The longest time.Duration leads beyond what 64 bits of nanoseconds hold. It
// must not wrap around to a deadline that is long over (R14).
func TestLongestWindowIsNotOver(t *testing.T) {
	rec := Record{
		Ref: Ref{ID: testID, Owner: testOwner}, State: Completed, Fence: 1, Attempt: 1, CompletedAt: testNow,
		ReplayUntil: testNow.Add(math.MaxInt64), KnownUntil: testNow.Add(math.MaxInt64),
	}
	got, err := ParseRecord(AppendRecord(nil, &rec))
	if err != nil {
		t.Fatal(err)
	}
	if got.Expired(testNow.Add(200 * 365 * 24 * time.Hour)) {
		t.Errorf("a record known for 292 years is over: known until %v", got.KnownUntil)
	}
	rec.LeaseUntil = time.Unix(0, 0)
	if got, _ = ParseRecord(AppendRecord(nil, &rec)); got.LeaseUntil.IsZero() {
		t.Error("a lease until 1970 came back as no deadline at all")
	}
}

// Text that only some stores can keep is refused by all of them (C41).
func TestTextThatNotEveryStoreKeeps(t *testing.T) {
	for _, text := range []string{"nul \x00", "bad \xff"} {
		resolve := ResolveRequest{ID: testID, Evidence: text}
		if err := resolve.Validate(); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("evidence %q: %v, want ErrInvalidRequest", text, err)
		}
		reserve := ReserveRequest{Ref: Ref{ID: testID, Owner: testOwner}, TTL: 1, KnownFor: 1, OnAbandoned: Rerun, Holder: Holder{Host: text}}
		if err := reserve.Validate(); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("host %q: %v, want ErrInvalidRequest", text, err)
		}
	}
}
