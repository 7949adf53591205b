package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

const damageRecords = 1200

// damageSamples makes two files with the same records: one that was closed and one
// as a crash leaves it, without a free list and with records that no index has.
func damageSamples(t *testing.T) map[string][]byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.idem")
	samples := map[string][]byte{}
	fill := func(db *DB, from, to int) {
		together(32, func(w int) {
			for i := from + w; i < to; i += 32 {
				run(t, db, fmt.Sprint("key-", i), fmt.Append(nil, "body of key-", i))
			}
		})
	}
	db := openAt(t, path, nil)
	fill(db, 0, damageRecords/2)
	for i := range 20 {
		r := reserving(fmt.Sprint("held-", i))
		r.OnAbandoned = backend.Hold
		acquire(t, db, r)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, path, nil)
	fill(db, damageRecords/2, damageRecords)
	var err error
	if samples["crashed"], err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if samples["closed"], err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return samples
}

// A damaged file is an error when it is opened or used. It is never a panic, never
// an empty store in its place, and no key that was acknowledged is given out as
// new.
func TestCaseC48_DamagedFile(t *testing.T) {
	samples := damageSamples(t)
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("IDEM_SEED"), 10, 64); err == nil {
		seed = n
	}
	const page = 4096
	zero := func(n int) func([]byte) []byte {
		return func(b []byte) []byte { clear(b[n*page : (n+1)*page]); return b }
	}
	damages := map[string]func([]byte) []byte{
		"cut to half":       func(b []byte) []byte { return b[:len(b)/2] },
		"cut to one page":   func(b []byte) []byte { return b[:page] },
		"cut to some bytes": func(b []byte) []byte { return b[:1000] },
		"page 0 zeroed":     zero(0),
		"page 1 zeroed":     zero(1),
		"page 2 zeroed":     zero(2),
		"page 3 zeroed":     zero(3),
		"wrong magic": func(b []byte) []byte {
			b[16] ^= 0xff
			b[page+16] ^= 0xff
			return b
		},
		"both headers torn": func(b []byte) []byte {
			b[16+30] ^= 0xff
			b[page+16+30] ^= 0xff
			return b
		},
	}
	for i := range 12 {
		damages[fmt.Sprint("random page ", i)] = func(b []byte) []byte {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			at := rng.IntN(len(b)/page) * page
			for j := range page {
				b[at+j] = byte(rng.Uint32())
			}
			return b
		}
		damages[fmt.Sprint("random bits ", i)] = func(b []byte) []byte {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			// Not in the header of a page: a flipped bit in its length makes bbolt free
			// millions of pages, which takes long and much memory before it fails.
			for range 40 {
				if at := rng.IntN(len(b)); at%page >= pageHeader {
					b[at] ^= 1 << rng.IntN(8)
				}
			}
			return b
		}
	}
	for sample, content := range samples {
		for name, damage := range damages {
			for _, perCall := range []bool{false, true} {
				path := filepath.Join(t.TempDir(), "store.idem")
				broken := damage(bytes.Clone(content))
				if err := os.WriteFile(path, broken, 0o600); err != nil {
					t.Fatal(err)
				}
				what := fmt.Sprintf("seed %d, %s file, %s, per call %v", seed, sample, name, perCall)
				useDamaged(t, what, path, perCall, !strings.HasPrefix(name, "random bits"))
				if after, err := os.ReadFile(path); err != nil || len(after) < len(broken) {
					t.Errorf("%s: the file has %d bytes left of %d, %v", what, len(after), len(broken), err)
				}
				_ = os.Remove(path)
			}
		}
	}
}

// useDamaged makes all moves. A single bit that flips in the hash of an index entry
// is not noticed before a Check looks for it, so that the key may be given out
// again: bbolt's pages have no checksum, only our records have. With whole pages
// gone, that must not happen.
func useDamaged(t *testing.T, what, path string, perCall, remembers bool) {
	t.Helper()
	expected := func(move string, err error) {
		t.Helper()
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNotStore) && !errors.Is(err, backend.ErrCorruptRecord) &&
			!errors.Is(err, backend.ErrUnknownVersion) && !errors.Is(err, ErrPoisoned) && !errors.Is(err, backend.ErrOutcomeUnknown) &&
			(remembers || !errors.Is(err, backend.ErrLeaseLost)) {
			t.Errorf("%s: %s: %v", what, move, err)
		}
	}
	start := time.Now()
	db, err := Open(path, &Options{PerCall: perCall})
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%s: Open took %v", what, took)
	}
	expected("Open", err)
	if err != nil {
		return
	}
	ctx := context.Background()
	last := start
	lap := func(move string) {
		if took := time.Since(last); took > 3*time.Second && remembers {
			t.Errorf("%s: %s took %v", what, move, took)
		}
		last = time.Now()
	}
	lap("Open")
	for i := 0; i < damageRecords; i += 97 {
		key := fmt.Sprint("key-", i)
		res, err := db.Reserve(ctx, reserving(key))
		expected("Reserve", err)
		if err == nil && remembers && (res.Outcome != backend.Existing || string(res.Record.Body) != "body of "+key) {
			t.Errorf("%s: %s was acknowledged and is now %v with %q", what, key, res.Outcome, res.Record.Body)
		}
	}
	lap("replaying")
	for _, err := range db.List(ctx, backend.Filter{}) {
		expected("List", err)
	}
	lap("List")
	for i := range 3 {
		r := reserving(fmt.Sprint("new-", i))
		if i == 1 {
			r.OnAbandoned = backend.Hold
		}
		res, err := db.Reserve(ctx, r)
		expected("Reserve of a new key", err)
		if err == nil && res.Outcome == backend.Acquired {
			_, err := db.Complete(ctx, completeWith(r.Ref, []byte("new")))
			expected("Complete", err)
		}
	}
	lap("executing")
	_, err = db.Expire(ctx, backend.ExpireRequest{})
	expected("Expire", err)
	lap("Expire")
	expected("Check", db.Check(ctx))
	lap("Check")
	expected("Close", db.Close())
	lap("Close")
}

// A file that was written by newer code says which code may still use it.
func TestNewerFormatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	set := func(key string, n uint64) {
		t.Helper()
		if err := db.excl.writer.do(t.Context(), &op{write: func(r *rows) error { return r.setMetaNumber(key, n) }}); err != nil {
			t.Fatal(err)
		}
	}
	set(metaFormat, format+5) // newer, and still fit for this code
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(path, nil); err != nil {
		t.Fatalf("a newer format that allows this code: %v", err)
	}
	set(metaOldest, format+1)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{nil, {PerCall: true}, {ReadOnly: true}} {
		_, err := Open(path, o)
		var version *backend.VersionError
		if !errors.As(err, &version) || version.Found != format+1 {
			t.Errorf("%+v: %v; want a VersionError", o, err)
		}
	}
}
