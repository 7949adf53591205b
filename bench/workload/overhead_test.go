package workload

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// TestOverheadOfHarness holds a strategy that does nothing against a bare loop. The bar is
// 0.5 (make numbers AREA=bench); the test leaves a margin for a busy machine.
func TestOverheadOfHarness(t *testing.T) {
	if raceEnabled {
		t.Skip("what the race detector costs is not the harness's")
	}
	var ratios []float64
	for i := range 5 {
		harness, bare, err := Overhead(t.Context(), runtime.GOMAXPROCS(0), 100*time.Millisecond, i)
		if err != nil {
			t.Fatal(err)
		}
		ratios = append(ratios, harness/bare)
		t.Logf("bare %.0f/s, no-op strategy %.0f/s", bare, harness)
	}
	slices.Sort(ratios)
	if ratio := ratios[len(ratios)/2]; ratio < 0.3 {
		t.Errorf("the harness reaches %.2f of a bare loop: it would measure itself", ratio)
	}
}
