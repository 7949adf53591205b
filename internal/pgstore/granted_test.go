package pgstore

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// What a duplicate costs on the wire: one round trip where this process has seen the key
// settled, or has seen duplicates lately; two for the first of others' keys after a run of
// new ones.
func TestDuplicateRoundTrips(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1})
	settle := func(key string) {
		r := request(key)
		if _, err := g.s.Reserve(g.ctx, r); err != nil {
			t.Fatal(err)
		}
		if _, err := g.s.Complete(g.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("x"), ReplayFor: time.Hour, KnownFor: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	replay := func(s string) int64 {
		return g.wire.count(t, func() {
			res, err := g.s.Reserve(g.ctx, request(s))
			if err != nil || res.Outcome != backend.Existing || string(res.Record.Body) != "x" {
				t.Fatalf("%s: %v, %v; want its result", s, res.Outcome, err)
			}
		})
	}
	for i := range 40 {
		settle(fmt.Sprint("k", i))
	}
	replay("k0") // the first use of a statement prepares it
	forget := func() { g.s.tx.known = known{} }
	forget()
	replay("k1")
	replay("k2")
	for i := range 40 {
		settle(fmt.Sprint("n", i))
	}
	got := map[string]int64{"seen": replay("n1")}
	forget()
	for i := range 40 {
		settle(fmt.Sprint("m", i))
	}
	got["unseen"], got["next unseen"] = replay("k3"), replay("k4")
	for what, want := range map[string]int64{"seen": 1, "unseen": 2, "next unseen": 1} {
		if got[what] != want {
			t.Errorf("%s: %d round trips; want %d", what, got[what], want)
		}
	}
}

// A completion that reads nothing back answers with the record as it is stored, and does
// not take place where something has come in between.
func TestCompleteKnown(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1})
	complete := func(r backend.ReserveRequest) (backend.Record, error) {
		return g.s.Complete(g.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("x"), ReplayFor: time.Minute, KnownFor: time.Hour})
	}
	reserve := func(key string) backend.ReserveRequest {
		r := request(key)
		if _, err := g.s.Reserve(g.ctx, r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := reserve("a")
	rec, err := complete(r)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := g.s.Get(g.ctx, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(rec) != fmt.Sprint(stored) || !bytes.Equal(rec.Body, stored.Body) {
		t.Errorf("the answer is\n%+v, stored is\n%+v", rec, stored)
	}
	if again, err := complete(r); err != nil || fmt.Sprint(again) != fmt.Sprint(stored) {
		t.Errorf("a repeated copy: %+v, %v", again, err)
	}
	// Someone else's hand on the row.
	r = reserve("b")
	g.exec("UPDATE " + g.names.Records + " SET rev = rev + 1, evidence = 'touched' WHERE key = 'b'")
	if rec, err = complete(r); err != nil || rec.Evidence != "touched" {
		t.Errorf("a row that was touched: %+v, %v; want it as it is now", rec, err)
	}
	r = reserve("c")
	g.exec("DELETE FROM " + g.names.Records + " WHERE key = 'c'")
	if _, err := complete(r); err == nil {
		t.Error("the completion of a record that is gone succeeded")
	}
}

// What is remembered of attempts is bounded, and nobody's but their owner's.
func TestGrants(t *testing.T) {
	t.Parallel()
	g := new(grants)
	a, b := request("a").Ref, request("b").Ref
	b.Owner = a.Owner
	g.add(backend.Record{Ref: a}, 7)
	if g.take(&b) != nil {
		t.Error("another key's attempt was given out")
	}
	if k := g.take(&a); k == nil || k.rev != 7 {
		t.Errorf("take: %v", k)
	}
	if g.take(&a) != nil {
		t.Error("an attempt was given out twice")
	}
}
