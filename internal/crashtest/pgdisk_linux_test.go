package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goidem/idem/internal/testdb"
)

// smallDisk mounts a small file system of its own. That takes root.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "idem-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256m,mode=0755"); err != nil {
		if required := os.Getenv("IDEM_TEST_REQUIRE"); strings.Contains(required, "tmpfs") {
			t.Fatalf("a small file system cannot be mounted here (%v), and IDEM_TEST_REQUIRE asks for tmpfs", err)
		}
		t.Skipf("a small file system cannot be mounted here: %v: the rows of the full disk are not run", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all the room there is but rest bytes.
func fill(path string, rest int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	chunk := make([]byte, 64<<10)
	size := int64(0)
	for {
		n, err := f.Write(chunk)
		size += int64(n)
		if errors.Is(err, syscall.ENOSPC) {
			return f.Truncate(max(size-rest, 0))
		}
		if err != nil {
			return err
		}
	}
}

// diskFull lets the server's disk fill up. Calls fail, without an effect wherever they
// say so, and the same keys settle when there is room again.
func diskFull(t *testing.T, r *faultRow, rounds int, rnd *rand.Rand) {
	disk := smallDisk(t)
	pg := testdb.StartPostgres(t, testdb.PGOptions{Parent: disk, Settings: map[string]string{
		"shared_buffers": "16MB", "max_wal_size": "48MB", "min_wal_size": "32MB"}})
	g := newGround(t, pg.Database(t), pgTx)
	if _, err := g.admin.Exec(t.Context(), "ALTER TABLE effects ALTER COLUMN pad SET STORAGE EXTERNAL"); err != nil {
		t.Fatal(err)
	}
	g.open(t, g.url, "migrate").close()
	restarts := 0
	for n := range rounds {
		round := fmt.Sprintf("%03d-full", n)
		keys := roundKeys(round, 6)
		h := newHistory()
		c := g.open(t, g.url, round)
		c.pad = strings.Repeat("0123456789abcdef", 32<<10) // half a megabyte: it needs new pages
		ballast := filepath.Join(disk, "ballast")
		if err := fill(ballast, rnd.Int64N(1<<20)); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		refused := 0
		for i := range 2 {
			wg.Go(func() {
				for k := i; k < len(keys); k += 2 {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					a := c.call(ctx, keys[k], 0)
					cancel()
					h.add(keys[k], a)
					if a.err != nil {
						mu.Lock()
						refused++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if refused == 0 {
			t.Errorf("%s: all calls went through: the disk was not full", round)
		} else {
			r.add(func(r *faultRow) { r.fired++ })
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		struck := time.Now()
		// A server that could not write its log has ended, and somebody starts it.
		if !answers(t, g, 5*time.Second) {
			pg.Restart(t)
			restarts++
			g.admin.Reset()
		}
		stuck := h.settleAll(t, c, keys, 2)
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		fresh := g.open(t, g.url, round)
		g.verdict(t, r, round, keys, h, fresh, stuck)
		fresh.close()
		c.close()
		if _, err := g.admin.Exec(t.Context(), "TRUNCATE effects"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("disk full: the server ended and was started again in %d of %d rounds", restarts, rounds)
}

// answers waits until the server takes statements.
func answers(t *testing.T, g *ground, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for ctx.Err() == nil {
		if g.admin.Ping(ctx) == nil {
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}
