package workload

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bolt"
)

// A caller that is alone pays for two synced updates and not for anybody's batch delay:
// the median Execute on bolt is at most twice two plain updates of a file beside it (C43).
// Both run in turns, so that they meet the same disk.
func TestCaseC43_LoneCallerOnBolt(t *testing.T) {
	turns, each := 5, 40
	if os.Getenv("IDEM_BENCH_SOAK") != "" {
		turns, each = 10, 100
	}
	dir := t.TempDir()
	db, err := bolt.Open(filepath.Join(dir, "idem.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store, err := idem.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := bbolt.Open(filepath.Join(dir, "plain.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	n := uint64(0)
	update := func() {
		n++
		if err := plain.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			return b.Put(binary.BigEndian.AppendUint64(nil, n), make([]byte, 200))
		}); err != nil {
			t.Fatal(err)
		}
	}
	update()
	var pairs []time.Duration
	var medians []time.Duration
	for turn := range turns {
		for range each {
			begun := time.Now()
			update()
			update()
			pairs = append(pairs, time.Since(begun))
		}
		m, err := RunRound(t.Context(), leased{noop{NewLedger()}, store}, Spec{
			Workload: result.Workload{Name: "alone", Callers: 1, Payload: 64, Result: 100}, Operations: int64(each),
		}, turn, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m.m.Counts.Executed != int64(each) {
			t.Fatalf("%+v: %s", m.m.Counts, m.m.FirstProblem)
		}
		medians = append(medians, m.m.Latency.P50)
	}
	slices.Sort(pairs)
	slices.Sort(medians)
	execute, floor := medians[len(medians)/2], pairs[len(pairs)/2]
	t.Logf("median Execute %v, two plain updates %v: %.2f", execute, floor, float64(execute)/float64(floor))
	if execute > 2*floor {
		t.Errorf("a lone Execute takes %v; two plain synced updates take %v", execute, floor)
	}
}
