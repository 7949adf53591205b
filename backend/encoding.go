package backend

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"
)

// The stored form of a record, version 1. All numbers are little endian.
//
//	byte      version (1)
//	byte      state
//	byte      flags: 1 took over, 2 holder present, 4 evidence present
//	byte      policy for an abandoned attempt
//	uint32    attempt
//	uint64    fence
//	16 bytes  owner token
//	5x int64  reserved, lease, completed, replay, known: Unix nanoseconds, 0 = zero
//	uint16+   identity (ID.AppendTo)
//	byte+     fingerprint
//	          with flag 2: byte+ host, int64 PID, int64 start
//	          with flag 4: uint16+ evidence
//	...       body, up to the checksum
//	uint32    CRC-32C of all before
//
// The checksum turns damage under the store (a torn page, a flipped bit) into
// ErrCorruptRecord instead of a wrong answer.
const (
	recordVersion = 1
	fixedSize     = 4 + 4 + 8 + 16 + 5*8
	checksumSize  = 4

	flagTookOver = 1
	flagHolder   = 2
	flagEvidence = 4
)

// AppendRecord appends the stored form of r to b and returns the extended slice.
// The strings of r must be within the limits that the requests check.
func AppendRecord(b []byte, r *Record) []byte {
	start := len(b)
	flags := byte(0)
	if r.TookOver {
		flags |= flagTookOver
	}
	if r.Holder != (Holder{}) {
		flags |= flagHolder
	}
	if r.Evidence != "" {
		flags |= flagEvidence
	}
	b = append(b, recordVersion, byte(r.State), flags, byte(r.OnAbandoned))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Attempt))
	b = binary.LittleEndian.AppendUint64(b, r.Fence)
	b = append(b, r.Owner[:]...)
	for _, t := range [...]time.Time{r.ReservedAt, r.LeaseUntil, r.CompletedAt, r.ReplayUntil, r.KnownUntil} {
		b = binary.LittleEndian.AppendUint64(b, uint64(toNanos(t)))
	}
	mark := len(b)
	b = r.ID.AppendTo(append(b, 0, 0))
	binary.LittleEndian.PutUint16(b[mark:], uint16(len(b)-mark-2))
	b = append(append(b, byte(len(r.Fingerprint))), r.Fingerprint...)
	if flags&flagHolder != 0 {
		host := r.Holder.Host[:min(len(r.Holder.Host), MaxHost)]
		b = append(append(b, byte(len(host))), host...)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Holder.PID))
		b = binary.LittleEndian.AppendUint64(b, uint64(toNanos(r.Holder.Started)))
	}
	if flags&flagEvidence != 0 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(r.Evidence)))
		b = append(b, r.Evidence...)
	}
	b = append(b, r.Body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli()))
}

// ParseRecord is the inverse of [AppendRecord]. The record shares no memory with
// b. An unknown version is a [*VersionError], damage matches [ErrCorruptRecord].
func ParseRecord(b []byte) (Record, error) {
	if len(b) == 0 {
		return Record{}, fmt.Errorf("%w: empty", ErrCorruptRecord)
	}
	if b[0] != recordVersion {
		return Record{}, &VersionError{What: "record", Found: int(b[0]), Known: recordVersion}
	}
	if len(b) < fixedSize+checksumSize {
		return Record{}, fmt.Errorf("%w: cut short at %d bytes", ErrCorruptRecord, len(b))
	}
	body, sum := b[:len(b)-checksumSize], b[len(b)-checksumSize:]
	if crc32.Checksum(body, castagnoli()) != binary.LittleEndian.Uint32(sum) {
		return Record{}, fmt.Errorf("%w: checksum differs", ErrCorruptRecord)
	}
	d := decoder{b: body[4:]}
	var r Record
	r.State, r.OnAbandoned = State(body[1]), Abandoned(body[3])
	flags := body[2]
	r.TookOver = flags&flagTookOver != 0
	r.Attempt = int(d.uint32())
	r.Fence = d.uint64()
	copy(r.Owner[:], d.take(16))
	for _, t := range [...]*time.Time{&r.ReservedAt, &r.LeaseUntil, &r.CompletedAt, &r.ReplayUntil, &r.KnownUntil} {
		*t = fromNanos(int64(d.uint64()))
	}
	id, err := ParseID(d.take(int(d.uint16())))
	if err != nil {
		return Record{}, err
	}
	r.ID = id
	// One copy serves fingerprint and body: reading a record is on the path of
	// every replay.
	d.b = clone(d.b)
	if n := int(d.byte()); n > 0 {
		r.Fingerprint = slices.Clip(d.take(n))
	}
	if flags&flagHolder != 0 {
		r.Holder.Host = string(d.take(int(d.byte())))
		r.Holder.PID = int(int64(d.uint64()))
		r.Holder.Started = fromNanos(int64(d.uint64()))
	}
	if flags&flagEvidence != 0 {
		r.Evidence = string(d.take(int(d.uint16())))
	}
	if d.short || r.State < InFlight || r.State > Open {
		return Record{}, fmt.Errorf("%w: fields do not add up", ErrCorruptRecord)
	}
	if len(d.b) > 0 {
		r.Body = d.b
	}
	return r, nil
}

// castagnoli returns the CRC-32C table; crc32 builds it once and recognises it
// for the processor's own instruction.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// decoder reads fields off b; short is set, and zero values come back, once b
// has too few bytes.
type decoder struct {
	b     []byte
	short bool
}

func (d *decoder) take(n int) []byte {
	if d.short || len(d.b) < n {
		d.short = true
		return make([]byte, n)
	}
	part := d.b[:n]
	d.b = d.b[n:]
	return part
}

func (d *decoder) byte() byte     { return d.take(1)[0] }
func (d *decoder) uint16() uint16 { return binary.LittleEndian.Uint16(d.take(2)) }
func (d *decoder) uint32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *decoder) uint64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }

// toNanos keeps the zero time apart from 1970: a missing deadline must come back
// missing, not as one that is long over. Times beyond what 64 bits hold (the years
// 1678 to 2262) become the nearest that fits: a window of the longest
// time.Duration must not wrap around and come back as over.
func toNanos(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	}
	if n := t.UnixNano(); n != 0 {
		return n
	}
	return 1
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
