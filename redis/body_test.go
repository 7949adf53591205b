package redis

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// large is a body that gets a key of its own.
func large(fill byte) []byte { return bytes.Repeat([]byte{fill}, inlineBody+1) }

// TestLargeBodyGoesByItself: the bytes leave the server when the replay window
// ends, while the record stays.
func TestLargeBodyGoesByItself(t *testing.T) {
	t.Parallel()
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	r := request("k")
	if _, err := s.Reserve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c := completion(r.Ref, string(large('x')))
	c.ReplayFor = 300 * time.Millisecond
	rec, err := s.Complete(t.Context(), c)
	if err != nil || !bytes.Equal(rec.Body, c.Body) {
		t.Fatalf("Complete: %d bytes, %v", len(rec.Body), err)
	}
	for _, what := range []string{"Complete, again", "Get", "Reserve", "List"} {
		switch what {
		case "Complete, again":
			rec, err = s.Complete(t.Context(), c)
		case "Get":
			rec, err = s.Get(t.Context(), r.ID)
		case "Reserve":
			var res backend.Reservation
			next := r
			next.Owner = token()
			res, err = s.Reserve(t.Context(), next)
			rec = res.Record
		case "List":
			for rec, err = range s.List(t.Context(), backend.Filter{}) {
				continue
			}
		}
		// On a machine that was slow the window is over by now, and the answer says so.
		if err != nil || !rec.BodyExpired && !bytes.Equal(rec.Body, c.Body) {
			t.Fatalf("%s: %d bytes, %v", what, len(rec.Body), err)
		}
	}
	key := s.key(&r.ID)
	for end := time.Now().Add(30 * time.Second); s.client.Exists(t.Context(), s.bodyKey(key)).Val() != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("long after the replay window the body is still on the server")
		}
	}
	rec, err = s.Get(t.Context(), r.ID)
	if err != nil || rec.State != backend.Completed || !rec.BodyExpired || rec.Body != nil {
		t.Fatalf("after the replay window: %v, body expired %v, %v", rec.State, rec.BodyExpired, err)
	}
}

// TestLostBodyIsNoRerun: an evicted or deleted body leaves a record that says that
// the operation took effect.
func TestLostBodyIsNoRerun(t *testing.T) {
	t.Parallel()
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	spoil := map[string]func(key string) error{
		"gone":    func(key string) error { return s.client.Del(t.Context(), key).Err() },
		"damaged": func(key string) error { return s.client.SetRange(t.Context(), key, 20, "#").Err() },
		"another attempt's": func(key string) error {
			return s.client.Set(t.Context(), key, bodyValue(77, large('x')), time.Hour).Err()
		},
		"cut short": func(key string) error { return s.client.Set(t.Context(), key, "abc", time.Hour).Err() },
	}
	for name, do := range spoil {
		t.Run(name, func(t *testing.T) {
			r := request("k " + name)
			if _, err := s.Reserve(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Complete(t.Context(), completion(r.Ref, string(large('x')))); err != nil {
				t.Fatal(err)
			}
			if err := do(s.bodyKey(s.key(&r.ID))); err != nil {
				t.Fatal(err)
			}
			next := r
			next.Owner = token()
			if res, err := s.Reserve(t.Context(), next); !errors.Is(err, backend.ErrCorruptRecord) {
				t.Errorf("Reserve: %v, %v; want ErrCorruptRecord", res.Outcome, err)
			}
			if _, err := s.Get(t.Context(), r.ID); !errors.Is(err, backend.ErrCorruptRecord) {
				t.Errorf("Get: %v; want ErrCorruptRecord", err)
			}
		})
	}
}

// TestForgetTakesTheBodyAlong: what a person deletes is deleted.
func TestForgetTakesTheBodyAlong(t *testing.T) {
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	r := request("k")
	res, err := s.Reserve(t.Context(), r)
	if err == nil {
		_, err = s.Complete(t.Context(), completion(r.Ref, string(large('x'))))
	}
	if err == nil {
		err = s.Forget(t.Context(), backend.ForgetRequest{ID: r.ID, Fence: res.Record.Fence})
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := s.client.Exists(t.Context(), s.bodyKey(s.key(&r.ID))).Val(); n != 0 {
		t.Error("after Forget the body is still on the server")
	}
	// The record's grave shows to nobody, and passes its fence on.
	if _, err := s.Get(t.Context(), r.ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("Get after Forget: %v", err)
	}
	for rec := range s.List(t.Context(), backend.Filter{}) {
		t.Errorf("List after Forget shows %+v", rec)
	}
	r.Owner = token()
	next, err := s.Reserve(t.Context(), r)
	if err != nil || next.Outcome != backend.Acquired || next.Record.Fence <= res.Record.Fence || next.Record.Attempt != 1 {
		t.Errorf("after Forget: %v, fence %d after %d, %v", next.Outcome, next.Record.Fence, res.Record.Fence, err)
	}
}

// TestResolveStoresALargeBody: the swap writes both keys.
func TestResolveStoresALargeBody(t *testing.T) {
	s := newStore(t, newClient(t, testdb.Redis(t).Addr()), newPrefix())
	r := request("k")
	res, err := s.Reserve(t.Context(), r)
	if err == nil {
		_, err = s.Complete(t.Context(), backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain})
	}
	if err != nil {
		t.Fatal(err)
	}
	q := backend.ResolveRequest{ID: r.ID, Fence: res.Record.Fence, Applied: true, Body: large('y'), ReplayFor: time.Hour, KnownFor: 2 * time.Hour, Evidence: strings.Repeat("e", backend.MaxEvidence)}
	for range 2 { // the second finds its own word
		rec, err := s.Resolve(t.Context(), q)
		if err != nil || !bytes.Equal(rec.Body, q.Body) || rec.Evidence != q.Evidence {
			t.Fatalf("Resolve: %d bytes, %v", len(rec.Body), err)
		}
	}
	rec, err := s.Get(t.Context(), r.ID)
	if err != nil || !bytes.Equal(rec.Body, q.Body) {
		t.Fatalf("Get: %d bytes, %v", len(rec.Body), err)
	}
	if ttl := s.client.PTTL(t.Context(), s.bodyKey(s.key(&r.ID))).Val(); ttl <= 0 || ttl > time.Hour {
		t.Errorf("the body's key lives for %v; want the replay window", ttl)
	}
}
