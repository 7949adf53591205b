package workload

import (
	"context"
	"testing"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// dear is a strategy at which to look is dear.
type dear struct{ noop }

// lint:const keeps what a look allocates on the heap
var lookedAt [][]byte

func (dear) Usage(context.Context) (strategy.Usage, error) {
	return strategy.Usage{Records: 10, StoredBytes: 1000}, nil
}

func (dear) Flushes(context.Context) (int64, error) {
	lookedAt = nil
	for range 200_000 {
		lookedAt = append(lookedAt, make([]byte, 16))
	}
	return 0, nil
}

// What the harness spends on looking at a store is not the strategy's.
func TestLooksAreNotCounted(t *testing.T) {
	m, err := Run(t.Context(), dear{noop{NewLedger()}}, Spec{Workload: result.Workload{Name: "dear", Callers: 2}, Operations: 500, Warmup: 10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Allocs > 100 {
		t.Errorf("%.0f allocations for an operation that does nothing", m.Allocs)
	}
	if m.RecordBytes != 100 || m.Fsyncs != 0 || m.WireBytes != -1 {
		t.Errorf("%.0f bytes for a record, %v flushes, %v bytes on the wire", m.RecordBytes, m.Fsyncs, m.WireBytes)
	}
}
