package combine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func BenchmarkUncontended(b *testing.B) {
	c := New(Options[int]{Streams: 1, WaitShare: 0.125}, func(_ context.Context, items []*Item[int, int]) {
		items[0].Answer(1, nil)
	})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Do(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkServer has callers in a closed loop before a server that takes 100 us for a
// batch and 1 us for each item. A far server has room for any number of batches at once and
// costs this machine no CPU. Before a slow caller's next call lie 200 us of something else,
// so that a leader often waits in vain. A near server has one thread, and its time is the
// CPU of these cores. The CPU of this process is reported too: what a leader spends while it
// waits is taken from a server on the same machine.
func BenchmarkServer(b *testing.B) {
	shapes := []struct {
		name string
		o    Options[int]
	}{
		{"K=1000", Options[int]{Streams: 1000}}, // everybody direct: no combining
		{"K=1", Options[int]{Streams: 1}},
		{"K=1+wait", Options[int]{Streams: 1, WaitShare: 0.125}},
		{"K=2", Options[int]{Streams: 2}},
		{"K=2+wait", Options[int]{Streams: 2, WaitShare: 0.125}},
		{"K=8", Options[int]{Streams: 8}},
		{"K=16-2", Options[int]{Streams: 16, Crowd: 17, CrowdStreams: 2}},
		{"K=16-2+wait", Options[int]{Streams: 16, Crowd: 17, CrowdStreams: 2, WaitShare: 0.125}},
	}
	for _, place := range []string{"far", "slow", "near"} {
		for _, callers := range []int{1, 8, 64, 256} {
			for _, s := range shapes {
				b.Run(fmt.Sprintf("%s/callers=%d/%s", place, callers, s.name), func(b *testing.B) {
					benchServer(b, s.o, callers, place)
				})
			}
		}
	}
}

func benchServer(b *testing.B, o Options[int], callers int, place string) {
	var (
		batches atomic.Int64
		thread  sync.Mutex
	)
	c := New(o, func(_ context.Context, items []*Item[int, int]) {
		batches.Add(1)
		took := 100*time.Microsecond + time.Duration(len(items))*time.Microsecond
		if place == "near" {
			thread.Lock()
			defer thread.Unlock()
			for began := time.Now(); time.Since(began) < took; {
			}
		} else {
			sleepExactly(took)
		}
		for _, it := range items {
			it.Answer(it.In, nil)
		}
	})
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	before := cpuTime()
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := c.Do(b.Context(), 1); err != nil {
					b.Error(err)
				}
				if place == "slow" {
					sleepExactly(200 * time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N)/1e3, "cpu-us/call")
	b.ReportMetric(float64(b.N)/float64(max(batches.Load(), 1)), "calls/batch")
}
