package redis

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/goidem/idem/backend"
)

func sumOf(key string) [16]byte { return backend.ID{Operation: "pay", Key: key}.Sum() }

func TestFrontKnowsWhatItWasTold(t *testing.T) {
	f := newFront(64)
	a, b := sumOf("a"), sumOf("b")
	if f.has(&a, 0) {
		t.Error("an empty front knows a key")
	}
	f.add(&a, 10, 100)
	for _, c := range []struct {
		sum  [16]byte
		now  int64
		want bool
	}{{a, 10, true}, {a, 99, true}, {a, 100, false}, {a, 1000, false}, {b, 10, false}, {[16]byte{}, 10, false}} {
		if got := f.has(&c.sum, c.now); got != c.want {
			t.Errorf("at %d: %t, want %t", c.now, got, c.want)
		}
	}
	f.add(&a, 200, 300) // claimed again after its end
	if !f.has(&a, 250) || f.has(&a, 300) {
		t.Error("a key that was claimed again does not end with its second claim")
	}
	var none *front
	none.add(&a, 0, 100)
	if none.has(&a, 1) {
		t.Error("no front knows a key")
	}
}

// TestFrontIsBounded: however many keys there are, the table is as large as it was,
// and never wrong about a key.
func TestFrontIsBounded(t *testing.T) {
	const entries = 1000
	f := newFront(entries)
	if got := len(f.sets) * frontWays; got < entries || got >= entries+frontWays {
		t.Fatalf("%d entries, want %d", got, entries)
	}
	for i := range 20 * entries {
		sum := sumOf(fmt.Sprint(i))
		f.add(&sum, int64(i), 1<<40)
		if !f.has(&sum, int64(i)) {
			t.Fatalf("key %d is not known right after it was added", i)
		}
	}
	known := 0
	for i := range 20 * entries {
		sum := sumOf(fmt.Sprint(i))
		if f.has(&sum, 1<<30) {
			known++
		}
	}
	if known > len(f.sets)*frontWays || known < entries*9/10 {
		t.Errorf("%d keys are known, want about %d", known, entries)
	}
}

// TestFrontKeepsWhatIsUsed: keys in use outlast a stream of keys that come once.
func TestFrontKeepsWhatIsUsed(t *testing.T) {
	const entries, hot = 4096, 200
	f := newFront(entries)
	now := int64(0)
	missed := 0
	for i := range 20 * entries {
		now++
		cold := sumOf(fmt.Sprint("cold", i))
		f.add(&cold, now, 1<<40)
		sum := sumOf(fmt.Sprint("hot", i%hot))
		now++
		if !f.has(&sum, now) {
			if i >= hot {
				missed++
			}
			f.add(&sum, now, 1<<40)
		}
	}
	// By chance alone a key would be gone after 4096 others came: it is used every 200.
	if share := float64(missed) / (20 * entries); share > 0.05 {
		t.Errorf("%.1f%% of the uses of hot keys missed, want at most 5%%", 100*share)
	}
}

// TestFrontReusesEndedClaims: an ended claim makes room before a standing one does.
func TestFrontReusesEndedClaims(t *testing.T) {
	f := newFront(frontWays) // one set
	for i := range frontWays {
		sum := sumOf(fmt.Sprint(i))
		until := int64(1000)
		if i == 3 {
			until = 10
		}
		f.add(&sum, int64(i), until)
	}
	fresh := sumOf("new")
	f.add(&fresh, 20, 1000)
	for i := range frontWays {
		sum := sumOf(fmt.Sprint(i))
		if got := f.has(&sum, 20); got != (i != 3) {
			t.Errorf("key %d: %t", i, got)
		}
	}
}

// TestFrontAgreesWithModel: against a map that forgets nothing the front may forget,
// and may never know more.
func TestFrontAgreesWithModel(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	f := newFront(128)
	model := make(map[[16]byte]int64)
	hits := 0
	for now := int64(1); now < 50000; now++ {
		sum := sumOf(fmt.Sprint(r.IntN(300)))
		if f.has(&sum, now) {
			hits++
			if now >= model[sum] {
				t.Fatalf("seed %d: at %d a key is known whose claim ended at %d", seed, now, model[sum])
			}
			continue
		}
		if now >= model[sum] {
			model[sum] = now + int64(r.IntN(1000))
		}
		f.add(&sum, now, model[sum])
	}
	if hits == 0 {
		t.Error("no key was ever known")
	}
}

func TestFrontConcurrently(t *testing.T) {
	f := newFront(256)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 5000 {
				var sum [16]byte
				binary.LittleEndian.PutUint64(sum[:], uint64(i*31+g)%500)
				if !f.has(&sum, int64(i)) {
					f.add(&sum, int64(i), int64(i+100))
				}
			}
		})
	}
	wg.Wait()
}
