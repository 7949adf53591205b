package pgstore

import (
	"encoding/binary"
	"sync/atomic"
)

// known remembers keys that this process has seen settled, so that a replay looks
// first: one round trip without a transaction, where a reserve would open one for
// nothing and have to end it. It is a hint of fixed size. A wrong one costs that
// look; it decides nothing.
type known struct {
	slots [8192]atomic.Uint64
}

func (k *known) slot(id token) (slot *atomic.Uint64, mark uint64) {
	// The ID is a hash: any of its bits serve.
	return &k.slots[binary.BigEndian.Uint64(id[:8])%uint64(len(k.slots))], binary.BigEndian.Uint64(id[8:])
}

func (k *known) add(id token) {
	slot, mark := k.slot(id)
	slot.Store(mark)
}

func (k *known) has(id token) bool {
	slot, mark := k.slot(id)
	return slot.Load() == mark
}

func (k *known) drop(id token) {
	slot, mark := k.slot(id)
	slot.CompareAndSwap(mark, 0)
}
