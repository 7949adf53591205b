//go:build linux

package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/goidem/idem/backend"
)

// childFull runs into the limit that the system sets to the size of its files,
// the same way a full disk stops it, and goes on once the limit is lifted.
func childFull() error {
	signal.Ignore(syscall.SIGXFSZ)
	ctx := context.Background()
	db, err := Open(os.Getenv("IDEM_FILE"), nil)
	if err != nil {
		return err
	}
	put := func(i int) error {
		r := reserving(fmt.Sprint("fill-", i))
		if res, err := db.Reserve(ctx, r); err != nil || res.Outcome == backend.Existing {
			return err
		}
		_, err := db.Complete(ctx, completeWith(r.Ref, make([]byte, 8<<10)))
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	full := limit
	full.Cur = 2 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		return err
	}
	stored := 0
	for ; stored < 10_000; stored++ {
		if err = put(stored); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) || errors.Is(err, backend.ErrOutcomeUnknown) || stored < 10 {
		return fmt.Errorf("after %d records: %v; want ErrFull", stored, err)
	}
	if err := put(stored + 1); !errors.Is(err, ErrFull) {
		return fmt.Errorf("again: %v; want ErrFull", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	for i := range stored + 1 {
		if i == stored {
			i += 2
		}
		if err := put(i); err != nil {
			return fmt.Errorf("record %d, with room again: %v", i, err)
		}
	}
	if err := db.Check(ctx); err != nil {
		return err
	}
	return db.Close()
}

func TestCaseC48_FullDiskHeals(t *testing.T) {
	cmd := child(t, "full", "IDEM_FILE="+filepath.Join(t.TempDir(), "store.idem"))
	if err := cmd.Run(); err != nil {
		t.Errorf("%v: %s", err, stderrOf(cmd))
	}
}
