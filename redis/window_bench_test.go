package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// spread runs f n times from some callers and returns how long one run took on
// average.
func spread(callers, n int, f func(i int)) time.Duration {
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range callers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	wg.Wait()
	return time.Since(began) / time.Duration(max(n, 1))
}

// BenchmarkWindow compares a window's claims with a SET NX through the same client
// library, its pool at the default, in the same run. x-raw is how many times as fast
// a claim is; "raw" itself has 1 by definition.
func BenchmarkWindow(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: testdb.Redis(b).Addr()})
	b.Cleanup(func() { _ = client.Close() })
	prefix := newPrefix()
	// A caller's context can end, as a request's can.
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	window := func(o WindowOptions) *Window {
		o.Prefix = prefix
		w, err := NewWindow(ctx, client, &o)
		if err != nil {
			b.Fatal(err)
		}
		return w
	}
	front, plain := window(WindowOptions{}), window(WindowOptions{FrontEntries: -1})
	const hot = 1000
	ids := make([]backend.ID, hot)
	raw := make([]string, hot)
	for i := range ids {
		ids[i] = backend.ID{Tenant: "acme", Operation: "pay", Key: fmt.Sprintf("123e4567-e89b-12d3-a456-%012d", i)}
		raw[i] = prefix + "raw:" + ids[i].Key
		if _, err := front.Claim(ctx, ids[i]); err != nil {
			b.Fatal(err)
		}
	}
	setNX := func(key string) bool {
		cmd := client.SetArgs(ctx, key, "1", redis.SetArgs{Mode: "NX", TTL: time.Hour})
		if err := cmd.Err(); err != nil && err != redis.Nil {
			b.Error(err)
		}
		return cmd.Err() == nil
	}
	claim := func(w *Window, id backend.ID, want bool) {
		if first, err := w.Claim(ctx, id); err != nil || first != want {
			b.Errorf("claim: %t, %v", first, err)
		}
	}
	for i := range raw {
		setNX(raw[i])
	}
	var fresh atomic.Int64
	freshID := func() backend.ID {
		return backend.ID{Tenant: "acme", Operation: "pay", Key: fmt.Sprintf("%032d", fresh.Add(1))}
	}
	for _, callers := range []int{1, 8, 64, 256} {
		for _, c := range []struct {
			name        string
			mine, other func(i int)
		}{
			{"repeat", func(i int) { claim(front, ids[i%hot], false) }, func(i int) { setNX(raw[i%hot]) }},
			{"repeat-no-front", func(i int) { claim(plain, ids[i%hot], false) }, func(i int) { setNX(raw[i%hot]) }},
			{"first", func(int) { claim(front, freshID(), true) }, func(int) { setNX(prefix + "raw:" + freshID().Key) }},
		} {
			b.Run(fmt.Sprintf("%s/callers=%d", c.name, callers), func(b *testing.B) {
				b.ReportAllocs()
				b.ResetTimer()
				per := spread(callers, b.N, c.mine)
				b.StopTimer()
				rawPer := spread(callers, min(b.N, 20000)+callers, c.other)
				b.ReportMetric(float64(rawPer)/float64(max(per, 1)), "x-raw")
				b.ReportMetric(float64(rawPer), "raw-ns/op")
			})
		}
	}
}
