package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// tokens makes owner tokens that are different within one test process.
var tokens atomic.Uint64 // test code only

func token() (t [16]byte) {
	binary.BigEndian.PutUint64(t[:], tokens.Add(1))
	binary.BigEndian.PutUint64(t[8:], uint64(os.Getpid()))
	return t
}

func id(key string) backend.ID { return backend.ID{Tenant: "acme", Operation: "pay", Key: key} }

func reserving(key string) backend.ReserveRequest {
	return backend.ReserveRequest{
		Ref: backend.Ref{ID: id(key), Owner: token()},
		TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun,
	}
}

func completeWith(ref backend.Ref, body []byte) backend.CompleteRequest {
	return backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: body, ReplayFor: time.Hour, KnownFor: 24 * time.Hour}
}

func completion(body string) backend.Completion {
	return backend.Completion{State: backend.Completed, Body: []byte(body), ReplayFor: time.Hour, KnownFor: 24 * time.Hour}
}

// open opens a store in a new folder and closes it, checked, with the test.
func open(t testing.TB, o *Options) *DB {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "store.idem"), o)
}

func openAt(t testing.TB, path string, o *Options) *DB {
	t.Helper()
	db, err := Open(path, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Check(context.Background()); err != nil && db.engine.(interface{ usable() error }).usable() == nil {
			t.Errorf("Check at the end of the test: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return db
}

// acquire reserves a key and insists on getting it.
func acquire(t testing.TB, b backend.Backend, r backend.ReserveRequest) backend.Record {
	t.Helper()
	res, err := b.Reserve(t.Context(), r)
	if err != nil || res.Outcome != backend.Acquired {
		t.Fatalf("Reserve: %v, %v; want acquired", res.Outcome, err)
	}
	return res.Record
}

// run reserves a key and completes it.
func run(t testing.TB, b backend.Backend, key string, body []byte) backend.Record {
	t.Helper()
	r := reserving(key)
	acquire(t, b, r)
	rec, err := b.Complete(t.Context(), completeWith(r.Ref, body))
	if err != nil {
		t.Fatalf("Complete: %v", err)
	}
	return rec
}

// replay reserves a key and insists on an existing record.
func replay(t testing.TB, b backend.Backend, key string) backend.Record {
	t.Helper()
	res, err := b.Reserve(t.Context(), reserving(key))
	if err != nil || res.Outcome != backend.Existing {
		t.Fatalf("Reserve of a known key: %v, %v; want existing", res.Outcome, err)
	}
	return res.Record
}

// together runs fn on n goroutines and waits for them.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// all reads a listing to its end.
func all(t testing.TB, b backend.Backend, f backend.Filter) map[string]backend.Record {
	t.Helper()
	found := make(map[string]backend.Record)
	for rec, err := range b.List(t.Context(), f) {
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		if _, twice := found[rec.ID.Key]; twice {
			t.Errorf("List yields %q twice", rec.ID.Key)
		}
		found[rec.ID.Key] = rec
	}
	return found
}

// childVariable says which part of childMain a child process plays.
const childVariable = "IDEM_BOLT_CHILD"

// child prepares a process that runs one part of TestChild.
func child(t testing.TB, part string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v=false")
	cmd.Env = append(append(os.Environ(), childVariable+"="+part), env...)
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

// TestChild is where child processes start. In the test run itself it does
// nothing.
func TestChild(t *testing.T) {
	part := os.Getenv(childVariable)
	if part == "" {
		return
	}
	parts := map[string]func() error{
		"hold":    childHold,
		"percall": childPerCall,
		"crash":   childCrash,
		"sweep":   childSweep,
		"full":    childFull,
	}
	if err := parts[part](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func stderrOf(cmd *exec.Cmd) string {
	return strings.TrimSpace(cmd.Stderr.(*bytes.Buffer).String())
}

// has reports whether a store is registered on db.
func (r *registry) has(db *bbolt.DB) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[db]
}
