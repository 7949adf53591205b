package bolt

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// The file that the first release wrote. It must stay readable: a program that does
// not recognise it runs operations again. IDEM_WRITE_FIXTURE=1 writes it anew,
// which is right only before the first release.
const fixture = "testdata/first-release.idem"

const century = 100 * 365 * 24 * time.Hour

func fixtureRef(key string) backend.Ref {
	return backend.Ref{ID: backend.ID{Tenant: "acme", Operation: "pay", Key: key}, Owner: [16]byte{1, 2, 3}}
}

func fixtureReserve(key string, policy backend.Abandoned) backend.ReserveRequest {
	return backend.ReserveRequest{Ref: fixtureRef(key), TTL: century, KnownFor: century, OnAbandoned: policy}
}

func writeFixture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, key := range []string{"completed", "failed", "uncertain", "in flight"} {
		if res, err := db.Reserve(ctx, fixtureReserve(key, backend.Hold)); err != nil || res.Outcome != backend.Acquired {
			t.Fatal(res, err)
		}
		state := map[string]backend.State{"completed": backend.Completed, "failed": backend.Failed, "uncertain": backend.Uncertain}[key]
		if state == 0 {
			continue
		}
		if _, err := db.Complete(ctx, backend.CompleteRequest{Ref: fixtureRef(key), State: state, Body: []byte("body of " + key), ReplayFor: century, KnownFor: century}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(fixture), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fixture, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCaseC46_FileOfTheFirstRelease(t *testing.T) {
	if os.Getenv("IDEM_WRITE_FIXTURE") != "" {
		writeFixture(t)
	}
	data, err := os.ReadFile(fixture)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]*Options{"exclusive": nil, "per call": {PerCall: true}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.idem")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			db, err := Open(path, o)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			ctx := context.Background()
			for key, want := range map[string]backend.State{
				"completed": backend.Completed, "failed": backend.Failed, "uncertain": backend.Uncertain, "in flight": backend.InFlight,
			} {
				again := fixtureReserve(key, backend.Rerun)
				again.Owner = [16]byte{9}
				res, err := db.Reserve(ctx, again)
				if err != nil || res.Outcome != backend.Existing || res.Record.State != want {
					t.Errorf("%s: %v %v, %v", key, res.Outcome, res.Record.State, err)
				}
				if want != backend.InFlight && !bytes.Equal(res.Record.Body, []byte("body of "+key)) {
					t.Errorf("%s: body %q", key, res.Record.Body)
				}
			}
			if _, err := db.Get(ctx, fixtureRef("never").ID); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("a key that was never there: %v", err)
			}
			if err := db.Check(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
