package redis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// TestCompletionOfOwnReservation: a handle completes what it has reserved by the short
// script, what it has not, or has renewed, by the long one, and both leave the same.
func TestCompletionOfOwnReservation(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t)
	s := newStore(t, newClient(t, srv.Addr()), "")
	for name, c := range map[string]struct {
		prepare func(r *backend.ReserveRequest) error
		short   bool
	}{
		"own":       {func(*backend.ReserveRequest) error { return nil }, true},
		"renewed":   {func(r *backend.ReserveRequest) error { return s.Renew(t.Context(), r.Ref, 2*r.TTL) }, false},
		"forgotten": {func(r *backend.ReserveRequest) error { s.kept.take(&r.Ref); return nil }, false},
	} {
		for i, body := range []string{"", "x", strings.Repeat("x", inlineBody)} {
			r := request(fmt.Sprint(name, i))
			res, err := s.Reserve(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.prepare(&r); err != nil {
				t.Fatal(err)
			}
			srv.Do(t, "CONFIG", "RESETSTAT")
			done := completion(r.Ref, body)
			rec, err := s.Complete(t.Context(), done)
			if err != nil {
				t.Fatal(err)
			}
			// Only the long one asks the server for the time.
			if short := !strings.Contains(srv.Do(t, "INFO", "commandstats"), "cmdstat_time:"); short != c.short {
				t.Errorf("%s: by the short script %v; want %v", name, short, c.short)
			}
			_, want, err := done.Apply(res.Record, rec.CompletedAt)
			if err != nil {
				t.Fatal(err)
			}
			if d := differ(want, rec); d != "" || !rec.ReplayUntil.Equal(want.ReplayUntil) || !rec.KnownUntil.Equal(want.KnownUntil) || !rec.ReservedAt.Equal(want.ReservedAt) {
				t.Errorf("%s: answered %+v, want %+v: %s", name, rec, want, d)
			}
			for range 2 { // as read, and as a second copy is told
				got, err := s.Get(t.Context(), r.ID)
				if err != nil || differ(rec, got) != "" || !got.CompletedAt.Equal(rec.CompletedAt) || !got.ReplayUntil.Equal(rec.ReplayUntil) || !got.KnownUntil.Equal(rec.KnownUntil) {
					t.Errorf("%s: there is %+v, %v; want %+v", name, got, err, rec)
				}
				if again, err := s.Complete(t.Context(), done); err != nil || differ(rec, again) != "" {
					t.Errorf("%s: a second copy was answered %+v, %v", name, again, err)
				}
			}
		}
	}
}

// TestKeeperForgets: attempts that never end do not pile up.
func TestKeeperForgets(t *testing.T) {
	k := new(keeper)
	for i := range 4 * keeperMax * keeperShards {
		ref := backend.Ref{Owner: token(), ID: backend.ID{Operation: "o", Key: fmt.Sprint(i)}}
		rec := backend.Record{Ref: ref}
		value, _ := encode(&rec)
		k.put(ref.Owner, kept{value: value})
		if i%1000 == 0 {
			other := ref
			other.ID.Key += "x"
			if _, ok := k.take(&other); ok {
				t.Error("an attempt on another key was found by its token")
			}
			k.put(ref.Owner, kept{value: value})
			if _, ok := k.take(&ref); !ok {
				t.Error("an attempt was forgotten at once")
			}
		}
	}
	for i := range k.shards {
		if n := len(k.shards[i].m); n > keeperMax {
			t.Errorf("shard %d remembers %d attempts; want at most %d", i, n, keeperMax)
		}
	}
}
