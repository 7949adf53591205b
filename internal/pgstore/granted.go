package pgstore

import (
	"bytes"
	"sync/atomic"

	"github.com/goidem/idem/backend"
)

// granted is an attempt that a reserve of this process has begun, as it was stored, so
// that its completion need not read the record back.
type granted struct {
	rec backend.Record // not changed any more
	rev int32
}

// grants remembers attempts until they are completed. It is a hint of fixed size: what
// is not in it, or not true any more, costs a completion that reads the row. It decides
// nothing: the completion is compare-and-set on rev.
type grants struct {
	slots [4096]atomic.Pointer[granted]
}

// slot is any of the owner's bits: it is random.
func (g *grants) slot(owner [16]byte) *atomic.Pointer[granted] {
	return &g.slots[(int(owner[0])|int(owner[1])<<8)%len(g.slots)]
}

// add remembers a fresh record. Its bytes are the caller's from now on.
func (g *grants) add(rec backend.Record, rev int32) {
	rec.Fingerprint = bytes.Clone(rec.Fingerprint)
	g.slot(rec.Owner).Store(&granted{rec, rev})
}

// take returns and forgets what is known of an attempt.
func (g *grants) take(ref *backend.Ref) *granted {
	slot := g.slot(ref.Owner)
	known := slot.Load()
	if known == nil || known.rec.Ref != *ref || !slot.CompareAndSwap(known, nil) {
		return nil
	}
	return known
}
