package bolt

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/goidem/idem/backend"
)

// A result that is replayed for a shorter time than its key is known lives in a
// generation of its own, by the end of its replay window, and is dropped with that
// (R22). Its row in there:
//
//	uint64  fence of the record it belongs to
//	...     the result
//	uint32  CRC-32C of the hash of the ID and all before
//
// The fence tells it from the result of another record that has been given the
// same place since: after the clock was set back, a dropped generation may begin
// again.
const (
	fenceSize = 8
	sumSize   = 4
	leastBody = fenceSize + sumSize
)

// bodyGeneration returns the generation of a settled record's result, part 0. It
// follows from what the record says, which a checksum covers.
func bodyGeneration(rec *backend.Record) generation {
	return generationFor(rec.CompletedAt, rec.ReplayUntil)
}

// livesApart reports whether the result of a record in generation g is to be
// dropped before it.
func livesApart(rec *backend.Record, g generation) bool {
	return len(rec.Body) > 0 && !rec.ReplayUntil.IsZero() && bodyGeneration(rec).end() < g.end()
}

// appendBody appends the stored form of a record's result.
func appendBody(b []byte, hash uint64, rec *backend.Record) []byte {
	start := len(b)
	b = append(binary.BigEndian.AppendUint64(b, rec.Fence), rec.Body...)
	return binary.BigEndian.AppendUint32(b, bodySum(hash, b[start:]))
}

// bodySum is the checksum of a result's row.
func bodySum(hash uint64, row []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli) // built once
	var b [hashSize]byte
	binary.BigEndian.PutUint64(b[:], hash)
	return crc32.Update(crc32.Checksum(b[:], table), table, row)
}

// putBody writes a result at the end of its generation and returns where. value
// must not change until the transaction has ended.
func (r *rows) putBody(g generation, value []byte) (part uint32, seq uint64, err error) {
	g, seq, err = r.append(bodyPrefix, g, value)
	return g.part, seq, err
}

// attach reads the result of a record that has it apart. A reader who finds it
// dropped is told so even if the clock was set back since: the operation must not
// be replayed with an empty result.
func (r *rows) attach(rec *backend.Record, at bodyAt) error {
	if !at.apart || rec.State == 0 || rec.BodyExpired {
		return nil
	}
	g := bodyGeneration(rec)
	g.part = at.part
	missing := "its result is missing"
	if b := r.bucket(g, bodyPrefix); b != nil {
		v := b.Get(r.seqKey(at.seq))
		switch {
		case v == nil:
		case len(v) < leastBody:
			return fmt.Errorf("%w: its result has a row of %d bytes", backend.ErrCorruptRecord, len(v))
		case binary.BigEndian.Uint64(v) != rec.Fence:
			missing = "its result is that of another record"
		case bodySum(at.hash, v[:len(v)-sumSize]) != binary.BigEndian.Uint32(v[len(v)-sumSize:]):
			return fmt.Errorf("%w: the checksum of its result differs", backend.ErrCorruptRecord)
		default:
			rec.Body = make([]byte, len(v)-leastBody)
			copy(rec.Body, v[fenceSize:])
			return nil
		}
	}
	dropped, err := r.metaNumber(metaBodies)
	switch {
	case err != nil:
		return err
	case g.end() > dropped:
		return fmt.Errorf("%w: %s", backend.ErrCorruptRecord, missing)
	}
	rec.BodyExpired = true
	return nil
}

// hasBody reports whether the generation of a record's result is still there.
func (r *rows) hasBody(rec *backend.Record, at bodyAt) bool {
	if !at.apart {
		return false
	}
	g := bodyGeneration(rec)
	g.part = at.part
	return r.bucket(g, bodyPrefix) != nil
}

// deleteBody removes the result of a record that goes, if it is still there.
func (r *rows) deleteBody(rec *backend.Record, at bodyAt) error {
	if !at.apart {
		return nil
	}
	g := bodyGeneration(rec)
	g.part = at.part
	b := r.bucket(g, bodyPrefix)
	if b == nil {
		return nil
	}
	v := b.Get(r.seqKey(at.seq))
	if len(v) < leastBody || binary.BigEndian.Uint64(v) != rec.Fence {
		return nil
	}
	r.wrote = true
	return b.Delete(seqKey(at.seq))
}
