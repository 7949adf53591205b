package memory

import (
	"testing"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

func BenchmarkBackend(b *testing.B) {
	backendtest.Benchmark(b, func(testing.TB) backend.Backend { return New(nil) })
}
