package bulk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
)

// failing is a store whose completions fail.
type failing struct{ backend.Backend }

var errDisk = errors.New("test: disk full")

func (failing) Complete(context.Context, backend.CompleteRequest) (backend.Record, error) {
	return backend.Record{}, errDisk
}

func settle(t *testing.T, b backend.Backend, key string, state backend.State) {
	t.Helper()
	ref := backend.Ref{ID: backend.ID{Operation: "op", Key: key}, Owner: [16]byte{1}}
	if _, err := b.Reserve(t.Context(), backend.ReserveRequest{Ref: ref, TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Complete(t.Context(), backend.CompleteRequest{Ref: ref, State: state, Body: []byte("body of " + key), ReplayFor: time.Hour, KnownFor: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
}

func exported(t *testing.T, b backend.Backend) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := Export(t.Context(), b, backend.Filter{}, func(*backend.Record) bool { return true }, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestARoundTripKeepsWhatCounts(t *testing.T) {
	t.Parallel()
	from, to := memory.New(nil), memory.New(nil)
	for i := range 300 {
		settle(t, from, fmt.Sprint("done-", i), backend.Completed)
	}
	settle(t, from, "failed", backend.Failed)
	settle(t, from, "unknown", backend.Uncertain)
	done, err := Import(t.Context(), to, bytes.NewReader(exported(t, from)), false, time.Now)
	if err != nil || done != (Imported{Restored: 302}) {
		t.Fatalf("%+v, %v", done, err)
	}
	for want, err := range from.List(t.Context(), backend.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		got, err := to.Get(t.Context(), want.ID)
		if err != nil || got.State != want.State || !bytes.Equal(got.Body, want.Body) || !bytes.Equal(got.Fingerprint, want.Fingerprint) {
			t.Errorf("%v: %+v, want %+v, %v", want.ID, got, want, err)
		}
		if late := got.KnownUntil.Sub(want.KnownUntil); late < -time.Second || late > time.Second {
			t.Errorf("%v: its window moved by %v", want.ID, late)
		}
	}
}

// An import that fails between its two steps leaves a key that nobody runs.
func TestAnImportThatFailsHoldsTheKey(t *testing.T) {
	t.Parallel()
	from, to := memory.New(nil), memory.New(nil)
	settle(t, from, "k", backend.Completed)
	done, err := Import(t.Context(), failing{to}, bytes.NewReader(exported(t, from)), false, time.Now)
	if !errors.Is(err, errDisk) || done.Restored != 0 || !strings.Contains(err.Error(), "line 1") {
		t.Fatalf("%+v, %v", done, err)
	}
	rec, err := to.Get(t.Context(), backend.ID{Operation: "op", Key: "k"})
	if err != nil || rec.State != backend.InFlight || rec.OnAbandoned != backend.Hold {
		t.Errorf("%+v, %v", rec, err)
	}
}

// A record that has changed since it was looked at is not forgotten.
func TestForgetLeavesWhatHasChanged(t *testing.T) {
	t.Parallel()
	b := memory.New(nil)
	settle(t, b, "same", backend.Completed)
	settle(t, b, "moved", backend.Completed)
	same, err := b.Get(t.Context(), backend.ID{Operation: "op", Key: "same"})
	if err != nil {
		t.Fatal(err)
	}
	removed, changed, err := Forget(t.Context(), func() (Backend, error) { return closer{b}, nil }, []backend.ForgetRequest{
		{ID: same.ID, Fence: same.Fence},
		{ID: backend.ID{Operation: "op", Key: "moved"}, Fence: 99},
		{ID: backend.ID{Operation: "op", Key: "gone"}, Fence: 1},
	})
	if removed != 1 || changed != 2 || err != nil {
		t.Errorf("removed %d, changed %d, %v", removed, changed, err)
	}
	if _, err := b.Get(t.Context(), backend.ID{Operation: "op", Key: "moved"}); err != nil {
		t.Error(err)
	}
}

type closer struct{ backend.Backend }

func (closer) Close() error { return nil }

// Whatever the input is, it is restored, counted or refused with its line.
func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"v":1,"operation":"o","key":"k","state":"completed","fence":1,"attempt":1,"body":"AA==","knownUntil":"2999-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"v":1,"operation":"o","key":"k","state":"uncertain","fence":1,"attempt":1,"fingerprint":"AAAA"}`))
	f.Add([]byte("{}\n\n[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := Import(t.Context(), memory.New(nil), bytes.NewReader(data), false, time.Now); err != nil && !strings.Contains(err.Error(), "line ") {
			t.Fatal(err)
		}
	})
}
