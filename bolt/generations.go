package bolt

import (
	"sync"
	"sync/atomic"
	"time"
)

// generations numbers the live generations, so that the index needs two bytes
// for one. Readers take no lock.
type generations struct {
	names atomic.Pointer[[]*generation] // by slot; nil: free, or dropped and not yet forgotten

	bodies atomic.Int64 // about how many groups of results there are on disk

	mu     sync.Mutex
	slots  map[generation]uint16
	killed []uint16 // dropped, and the index may still name them
	free   []uint16
}

// crowd is how many generations are too many to keep dropped ones waiting for a
// sweep: short windows without one would use up the slots, and a file that has
// more generations than slots could not be opened to be swept.
const crowd = maxSlots * 3 / 4

// crowded reports whether slots are running low, or results pile up.
func (t *generations) crowded() bool {
	if t.bodies.Load() > crowd {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.slots)+len(t.killed) > crowd
}

// slot returns the slot of g, given now if it has none.
func (t *generations) slot(g generation) (uint16, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slot, ok := t.slots[g]; ok {
		return slot, nil
	}
	var names []*generation
	if old := t.names.Load(); old != nil {
		names = append(names, *old...)
	}
	var slot uint16
	switch {
	case len(t.free) > 0:
		slot = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
		names[slot] = &g
	case len(names) >= maxSlots:
		return 0, errTooManyGenerations
	default:
		slot = uint16(len(names))
		names = append(names, &g)
	}
	if t.slots == nil {
		t.slots = make(map[generation]uint16)
	}
	t.slots[g] = slot
	t.names.Store(&names)
	return slot, nil
}

// at returns the generation with this slot, if it is live.
func (t *generations) at(slot uint16) (generation, bool) {
	names := t.names.Load()
	if names == nil || int(slot) >= len(*names) || (*names)[slot] == nil {
		return generation{}, false
	}
	return *(*names)[slot], true
}

// due returns the live generations that are due at now.
func (t *generations) due(now time.Time) []generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []generation
	for g := range t.slots {
		if g.due(now) {
			found = append(found, g)
		}
	}
	return found
}

// all returns the live generations.
func (t *generations) all() []generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make([]generation, 0, len(t.slots))
	for g := range t.slots {
		found = append(found, g)
	}
	return found
}

// kill takes g out of use: lookups treat its places as empty from now on. Its
// slot is not given out again before release.
func (t *generations) kill(g generation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, ok := t.slots[g]
	if !ok {
		return
	}
	delete(t.slots, g)
	names := append([]*generation(nil), *t.names.Load()...)
	names[slot] = nil
	t.names.Store(&names)
	t.killed = append(t.killed, slot)
}

// killAll takes the groups of records among dropped ones out of use.
func (t *generations) killAll(dropped []group) {
	for _, d := range dropped {
		if d.prefix == recordPrefix {
			t.kill(d.g)
		}
	}
}

// dead returns the slots that were killed and not released.
func (t *generations) dead() map[uint16]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[uint16]bool, len(t.killed))
	for _, slot := range t.killed {
		found[slot] = true
	}
	return found
}

// release makes the slots of dropped generations available again, once no place
// in the index names them.
func (t *generations) release(slots map[uint16]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.killed[:0]
	for _, slot := range t.killed {
		if slots[slot] {
			t.free = append(t.free, slot)
		} else {
			left = append(left, slot)
		}
	}
	t.killed = left
}
