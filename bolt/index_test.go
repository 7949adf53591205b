package bolt

import (
	"math/rand/v2"
	"testing"
)

// The table agrees with a map of Go's under random additions, removals and
// clean-ups, with many equal hashes.
func TestTableAgreesWithMap(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	var table table
	model := map[entryAt]bool{}
	var keys []entryAt
	for step := range 50_000 {
		switch n := rng.IntN(100); {
		case n < 55 || len(keys) == 0:
			// Few different hashes, at both ends of the range, so that runs wrap.
			hash := uint64(rng.IntN(300)) << 50
			if rng.IntN(2) == 0 {
				hash = ^hash
			}
			e := entryAt{hash, placeAt(uint16(rng.IntN(20)), uint64(step+1))}
			table.add(e.hash, e.at)
			model[e] = true
			keys = append(keys, e)
		case n < 99:
			i := rng.IntN(len(keys))
			e := keys[i]
			keys[i] = keys[len(keys)-1]
			keys = keys[:len(keys)-1]
			if table.remove(e.hash, e.at) != model[e] {
				t.Fatalf("seed %d, step %d: remove of %v disagrees", seed, step, e)
			}
			delete(model, e)
		default:
			dead := map[uint16]bool{uint16(rng.IntN(20)): true}
			want := 0
			for e := range model {
				if dead[e.at.slot()] {
					delete(model, e)
					want++
				}
			}
			if got := table.forget(dead); got != want {
				t.Fatalf("seed %d, step %d: forgot %d; want %d", seed, step, got, want)
			}
		}
		if table.n != len(model) {
			t.Fatalf("seed %d, step %d: %d entries; want %d", seed, step, table.n, len(model))
		}
	}
	for e := range model {
		found := false
		for _, p := range table.find(e.hash, nil) {
			found = found || p == e.at
		}
		if !found {
			t.Fatalf("seed %d: %v is lost", seed, e)
		}
	}
}
