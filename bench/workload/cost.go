package workload

import (
	"context"
	"fmt"
	"runtime/metrics"

	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// cost is what has been spent up to a moment. To ask for it costs next to nothing, so that
// nothing but the operations lies between two moments.
type cost struct {
	cpu, servers   float64 // seconds; negative: unknown
	bytes, objects uint64  // allocated
	wire           int64   // bytes; negative: unknown
}

func spent(r strategy.Runner, pids []int) cost {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"}}
	metrics.Read(samples)
	return cost{
		cpu: ownCPU(), servers: serverCPU(pids),
		bytes: samples[0].Value.Uint64(), objects: samples[1].Value.Uint64(),
		wire: r.Wire(),
	}
}

// since fills in what was spent between two moments, for so many operations.
func (after cost) since(before cost, operations int64, m *result.Measurement) {
	m.CPUSeconds, m.ServerCPU = -1, -1
	if after.cpu >= 0 {
		m.CPUSeconds = after.cpu - before.cpu
	}
	if after.servers >= 0 && before.servers >= 0 {
		m.ServerCPU = max(after.servers-before.servers, 0)
	}
	m.AllocBytes = each(int64(after.bytes-before.bytes), operations)
	m.Allocs = each(int64(after.objects-before.objects), operations)
	m.WireBytes = between(before.wire, after.wire, operations)
}

// Stored looks at what the store of r holds, and notes in m what a record takes. It reads
// the whole store, so it is for the end of all rounds.
func Stored(ctx context.Context, r strategy.Runner, m *result.Measurement) error {
	m.RecordBytes = -1
	held, err := r.Usage(ctx)
	if err != nil {
		return fmt.Errorf("workload: what the store holds: %w", err)
	}
	if held.Records > 0 && held.StoredBytes >= 0 {
		m.RecordBytes = each(held.StoredBytes, held.Records)
	}
	return nil
}

// between is a difference for each operation, or negative where either is unknown.
func between(before, after, operations int64) float64 {
	if before < 0 || after < 0 {
		return -1
	}
	return each(after-before, operations)
}

func each(n, of int64) float64 { return float64(n) / float64(max(of, 1)) }
