package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"
)

const defaultCell = 500 * time.Millisecond

// report collects figures and prints them.
type report struct {
	dir    string
	rounds int
	cell   time.Duration
	quick  bool
	only   string // parts to measure, separated by commas; empty: all
	out    *tabwriter.Writer
	short  int
}

// size is n, or a hundredth of it for a quick look.
func (r *report) size(n int) int {
	if r.quick {
		return max(n/100, 1)
	}
	return n
}

// atLeast reports a figure whose bar is a lower bound.
func (r *report) atLeast(name, callers string, measured, bar float64, unit string) {
	r.line(name, callers, measured, fmt.Sprintf(">= %.4g%s", bar, unit), unit, measured >= bar)
}

// atMost reports a figure whose bar is an upper bound.
func (r *report) atMost(name, callers string, measured, bar float64, unit string) {
	r.line(name, callers, measured, fmt.Sprintf("<= %.4g%s", bar, unit), unit, measured <= bar)
}

func (r *report) line(name, callers string, measured float64, bar, unit string, ok bool) {
	verdict := "ok"
	if !ok {
		verdict = "short"
		r.short++
	}
	fmt.Fprintf(r.out, "%s\t%s\t%.4g%s\t%s\t%s\n", name, callers, measured, unit, bar, verdict)
	r.out.Flush()
}

// info reports a figure without a bar.
func (r *report) info(name, callers string, measured float64, unit string) {
	fmt.Fprintf(r.out, "%s\t%s\t%.4g%s\t-\t\n", name, callers, measured, unit)
	r.out.Flush()
}

// disk prints the raw fdatasync rate of the disk under r.dir.
func (r *report) disk() error {
	f, err := os.Create(filepath.Join(r.dir, "raw"))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	for i := range 256 {
		if _, err := f.WriteAt(page, int64(i)*4096); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	n, begun := 0, time.Now()
	for time.Since(begun) < 2*r.cell {
		if _, err := f.WriteAt(page, int64(n%256)*4096); err != nil {
			return err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		n++
	}
	fmt.Printf("raw: %.0f fdatasync/s (4 KiB overwrites), %d CPUs, %s, %d rounds of %v\n",
		float64(n)/time.Since(begun).Seconds(), runtime.GOMAXPROCS(0), runtime.Version(), r.rounds, r.cell)
	return nil
}

// rate runs op in a closed loop on some goroutines for d and returns how many a
// second ended without an error. The first error ends the measurement: an error is
// not throughput.
func rate(callers int, d time.Duration, op func() error) (float64, error) {
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	begun := time.Now()
	end := begun.Add(d)
	for range callers {
		wg.Go(func() {
			for failed.Load() == nil && time.Now().Before(end) {
				if err := op(); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(begun).Seconds(), nil
}

// variant is one way to do the same thing.
type variant struct {
	name   string
	before func() // may be nil
	op     func() error
}

// compare runs all variants in each round, in an order that rotates, and returns
// for each the median over the rounds of its rate and of the first one's rate over
// its own.
func (r *report) compare(callers int, variants []variant) (rates, ratios []float64, err error) {
	all := make([][]float64, len(variants))
	over := make([][]float64, len(variants))
	for round := range r.rounds {
		now := make([]float64, len(variants))
		for i := range variants {
			v := (i + round) % len(variants)
			if variants[v].before != nil {
				variants[v].before()
			}
			if now[v], err = rate(callers, r.cell, variants[v].op); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", variants[v].name, err)
			}
		}
		for v := range variants {
			all[v] = append(all[v], now[v])
			over[v] = append(over[v], now[0]/now[v])
		}
	}
	for v := range variants {
		rates, ratios = append(rates, median(all[v])), append(ratios, median(over[v]))
	}
	return rates, ratios, nil
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}

// heap is what is in use after a collection, in bytes.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// timed returns how long fn takes: the median over the rounds, in seconds.
func (r *report) timed(fn func() error) (float64, error) {
	var all []float64
	for range r.rounds {
		begun := time.Now()
		if err := fn(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(begun).Seconds())
	}
	return median(all), nil
}

// part is one measurement of an area.
type part struct {
	name string
	run  func(*report) error
}

// all runs the parts, or those that were asked for.
func (r *report) all(parts []part) error {
	for _, p := range parts {
		if r.only != "" && !slices.Contains(strings.Split(r.only, ","), p.name) {
			continue
		}
		if err := p.run(r); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		runtime.GC()
	}
	return nil
}
