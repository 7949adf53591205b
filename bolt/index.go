package bolt

import "math/bits"

// place says where on disk the record of a key is. The zero place means nowhere.
type place uint64

const (
	slotBits = 16
	seqBits  = 64 - slotBits
	// inPending is the place of every unsettled record; its row is found by the
	// encoded ID.
	inPending = place(1<<slotBits-1) << seqBits
	maxSlots  = 1<<slotBits - 2
	maxSeq    = 1<<seqBits - 1
	maxPart   = 1<<32 - 1 // sequences in one part of a generation
)

// placeAt is the place of a settled record: slot of its generation and sequence.
// Sequences start at 1, so that no place of a record is zero.
func placeAt(slot uint16, seq uint64) place { return place(slot)<<seqBits | place(seq) }

func (p place) slot() uint16 { return uint16(p >> seqBits) }
func (p place) seq() uint64  { return uint64(p) & (1<<seqBits - 1) }

// table maps hashes to places: open addressing with linear probing, 16 bytes per
// slot and no pointers, so that a million records cost about 27 MB and nothing
// to the garbage collector. Different keys with one hash are entries of their
// own; who looks up compares full IDs.
//
// The home of a hash keeps the order of the hashes: filling a table from a
// sorted index writes memory from front to back.
type table struct {
	slots []entryAt
	n     int
}

type entryAt struct {
	hash uint64
	at   place // zero: free
}

// home returns the preferred slot of a hash. The bits that chose the shard are
// shifted out.
func (t *table) home(hash uint64) int {
	hi, _ := bits.Mul64(hash<<shardBits, uint64(len(t.slots)))
	return int(hi)
}

// find appends the places stored for hash to dst.
func (t *table) find(hash uint64, dst []place) []place {
	if t.n == 0 {
		return dst
	}
	for i := t.home(hash); t.slots[i].at != 0; i = t.after(i) {
		if t.slots[i].hash == hash {
			dst = append(dst, t.slots[i].at)
		}
	}
	return dst
}

func (t *table) after(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// reserve makes room for n entries in all, four fifths full at most.
func (t *table) reserve(n int) {
	if need := n + n/4 + 8; need > len(t.slots) {
		t.rebuild(need, func(place) bool { return true })
	}
}

// add stores one entry. The caller knows that it is not there yet.
func (t *table) add(hash uint64, at place) {
	if (t.n+1)*5 > len(t.slots)*4 {
		t.rebuild(len(t.slots)+len(t.slots)/2+8, func(place) bool { return true })
	}
	i := t.home(hash)
	for t.slots[i].at != 0 {
		i = t.after(i)
	}
	t.slots[i] = entryAt{hash, at}
	t.n++
}

// remove deletes one entry, if it is there, and closes the gap, so that later
// probes need no tombstones.
func (t *table) remove(hash uint64, at place) bool {
	if t.n == 0 {
		return false
	}
	i := t.home(hash)
	for t.slots[i] != (entryAt{hash, at}) {
		if t.slots[i].at == 0 {
			return false
		}
		i = t.after(i)
	}
	t.n--
	for j := t.after(i); t.slots[j].at != 0; j = t.after(j) {
		// The entry at j may move into the gap at i unless its home lies
		// cyclically within (i, j]: a probe for it would then stop at the gap.
		home := t.home(t.slots[j].hash)
		if i <= j && (home <= i || home > j) || i > j && home <= i && home > j {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = entryAt{}
	return true
}

// rebuild moves the entries that keep accepts into a table of the given size and
// returns how many it left out.
func (t *table) rebuild(size int, keep func(place) bool) (dropped int) {
	old := t.slots
	t.slots, t.n = make([]entryAt, size), 0
	for _, e := range old {
		switch {
		case e.at == 0:
		case !keep(e.at):
			dropped++
		default:
			i := t.home(e.hash)
			for t.slots[i].at != 0 {
				i = t.after(i)
			}
			t.slots[i] = e
			t.n++
		}
	}
	return dropped
}

// forget removes every entry whose place is in one of the dead slots and returns
// how many those were.
func (t *table) forget(dead map[uint16]bool) int {
	left := 0
	for _, e := range t.slots {
		if e.at != 0 && !dead[e.at.slot()] {
			left++
		}
	}
	if left == t.n {
		return 0
	}
	return t.rebuild(left+left/2+8, func(p place) bool { return !dead[p.slot()] })
}
