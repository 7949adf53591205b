package redis

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// front remembers which keys are claimed, so that repeats need no network call. It
// may forget any key at any time; it never knows a key that is not claimed.
//
// It is a table of small sets, of which a key's sum picks one: no lists, no pointers,
// nothing to allocate and nothing for the collector to look at. A full set gives up
// an entry whose claim has ended, else the longer unused of two picked at random,
// which is nearly as good as the longest unused of all and needs no order to be kept.
//
// A nil *front knows nothing.
type front struct {
	sets  []frontSet
	locks [frontLocks]frontLock
}

const (
	frontWays  = 8
	frontLocks = 256
)

type frontSet [frontWays]frontEntry

type frontEntry struct {
	sum [16]byte
	// Both are of the window's clock: when the claim ends, 0 for a free place, and when
	// the entry was last of use.
	until, used int64
}

// frontLock stands alone on its cache lines, so that callers of different sets do not
// slow each other down.
type frontLock struct {
	sync.Mutex
	_ [120]byte
}

func newFront(entries int) *front {
	return &front{sets: make([]frontSet, (entries+frontWays-1)/frontWays)}
}

// set locks and returns the set of a key.
func (f *front) set(sum *[16]byte) (*frontSet, *frontLock) {
	// The sum is cryptographic: any part of it is as good as a hash of it.
	i := binary.LittleEndian.Uint64(sum[:]) % uint64(len(f.sets))
	lock := &f.locks[i%frontLocks]
	lock.Lock()
	return &f.sets[i], lock
}

// has reports whether a key is known to be claimed.
func (f *front) has(sum *[16]byte, now int64) bool {
	if f == nil {
		return false
	}
	set, lock := f.set(sum)
	defer lock.Unlock()
	for i := range set {
		if e := &set[i]; e.sum == *sum && now < e.until {
			e.used = now
			return true
		}
	}
	return false
}

// add remembers that a key is claimed until then.
func (f *front) add(sum *[16]byte, now, until int64) {
	if f == nil {
		return
	}
	set, lock := f.set(sum)
	defer lock.Unlock()
	r := rand.Uint32()
	place := &set[r%frontWays]
	if other := &set[r/frontWays%frontWays]; other.used < place.used {
		place = other
	}
	for i := range set {
		e := &set[i]
		if e.sum == *sum {
			place = e
			break
		}
		if e.until <= now {
			place = e
		}
	}
	*place = frontEntry{*sum, until, now}
}
