package redis

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// kept is what a handle remembers of a reservation that it has made itself with a
// native SET, so that its completion need not take the record apart on the server:
// with the value as it was sent, the whole next value is made here, and the server only
// has to compare and to set.
type kept struct {
	value []byte // as it was sent; not changed any more
	fence uint64
	began int64 // Unix milliseconds
}

// keeper remembers reservations until they are completed. It is a memory aid and
// decides nothing: what is not in it, or is not true any more, costs a longer script.
// So it is bounded by forgetting.
type keeper struct {
	shards [keeperShards]struct {
		sync.Mutex
		m map[[16]byte]kept
	}
}

const (
	keeperShards = 16
	// keeperMax is for each shard: some 16,000 attempts in all, of about 300 bytes.
	keeperMax = 1024
)

func (k *keeper) put(owner [16]byte, v kept) {
	s := &k.shards[owner[0]%keeperShards]
	s.Lock()
	defer s.Unlock()
	if s.m == nil {
		s.m = make(map[[16]byte]kept)
	}
	if len(s.m) >= keeperMax {
		clear(s.m) // attempts that never ended, most likely
	}
	s.m[owner] = v
}

// take returns and forgets what is known of an attempt.
func (k *keeper) take(ref *backend.Ref) (v kept, ok bool) {
	s := &k.shards[ref.Owner[0]%keeperShards]
	s.Lock()
	v, ok = s.m[ref.Owner]
	delete(s.m, ref.Owner)
	s.Unlock()
	if !ok {
		return kept{}, false
	}
	var buf [3 + backend.MaxTenant + backend.MaxOperation + backend.MaxKey]byte
	return v, string(ref.ID.AppendTo(buf[:0])) == string(v.value[headerSize:headerSize+v.idLen()])
}

func (v *kept) idLen() int { return int(binary.LittleEndian.Uint16(v.value[posLengths:])) }

// settle returns the value of the completed record and the record. Its times count
// from the expiry of its key, which the server sets known after the completion.
func (v *kept) settle(r *backend.CompleteRequest, replay, known int64) ([]byte, backend.Record) {
	idLen, fpLen := v.idLen(), int(v.value[posLengths+4])
	fp := v.value[headerSize+idLen : headerSize+idLen+fpLen]
	b := make([]byte, 0, headerSize+idLen+fpLen+len(r.Body))
	b = append(b, v.value[:headerSize+idLen+fpLen]...)
	b = append(b, r.Body...)
	b[1], b[2] = byte(r.State), flagFromEnd
	binary.LittleEndian.PutUint64(b[posFence:], v.fence)
	putTime(b, 0, v.began*1000)
	putTime(b, 1, -known*1000)
	putTime(b, 2, (replay-known)*1000)
	putTime(b, 3, 0)
	binary.LittleEndian.PutUint32(b[posBodySum:], checksum(r.Body))
	binary.LittleEndian.PutUint16(b[posLengths+2:], 0)
	rec := backend.Record{
		Ref: r.Ref, State: r.State, Fence: v.fence, Attempt: 1, OnAbandoned: backend.Abandoned(b[3]),
		ReservedAt: time.UnixMilli(v.began).UTC(),
	}
	if fpLen > 0 {
		rec.Fingerprint = append([]byte(nil), fp...)
	}
	if len(r.Body) > 0 {
		rec.Body = append([]byte(nil), r.Body...)
	}
	return b, rec
}
