package idem_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend/memory"
)

// BenchmarkExecute is the core alone: memory and an empty fn.
func BenchmarkExecute(b *testing.B) {
	store, err := idem.New(memory.New(nil), nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, scope, hash := context.Background(), idem.Scope{Operation: "bench"}, idem.FingerprintBytes([]byte("x"))
	fn := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			res, err := idem.Execute(ctx, store, scope, idem.Key("new-"+strconv.Itoa(i)), hash, fn)
			if err != nil || res.Replayed {
				b.Fatal(res, err)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		b.ReportAllocs()
		if _, err := idem.Execute(ctx, store, scope, "done", hash, fn); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			res, err := idem.Execute(ctx, store, scope, "done", hash, fn)
			if err != nil || !res.Replayed {
				b.Fatal(res, err)
			}
		}
	})
}
