package main

import (
	"context"
	"runtime"
	"strconv"

	"github.com/goidem/idem/bench/workload"
)

// measureBench measures the benchmark itself.
func measureBench(r *report) error {
	for _, callers := range []int{1, runtime.GOMAXPROCS(0), 64} {
		var ratios, rates []float64
		for round := range r.rounds {
			harness, bare, err := workload.Overhead(context.Background(), callers, r.cell, round)
			if err != nil {
				return err
			}
			ratios, rates = append(ratios, harness/bare), append(rates, harness)
		}
		c := strconv.Itoa(callers)
		r.info("bench: no-op strategy", c, median(rates), "/s")
		r.atLeast("bench: no-op strategy / bare loop with a histogram", c, median(ratios), 0.5, "x")
	}
	return nil
}
