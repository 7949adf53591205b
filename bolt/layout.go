package bolt

import (
	"encoding/binary"
	"math"
	"math/bits"
	"time"

	"github.com/goidem/idem/backend"
)

// The file has one top-level bucket of ours; the user's own buckets live beside
// it. Inside:
//
//	meta          format, oldest format allowed, high-water mark of the fences
//	pending       encoded ID -> record: unsettled records that survive a crash
//	g<generation> sequence -> hash + record: settled records in order of arrival
//	x<generation> hash + sequence -> nothing: where a record is, for openers
//	              without the index in memory
//
// The bucket sequence of x<generation> says up to which sequence of
// g<generation> it is complete.
const (
	topName     = "idem"
	metaName    = "meta"
	pendingName = "pending"

	recordPrefix = 'g'
	indexPrefix  = 'x'

	metaFormat = "format" // version that last changed the layout
	metaOldest = "oldest" // least version that may still use the file
	metaFence  = "fence"  // no fence above this one has been given

	// format is the version of this layout.
	format = 1
)

// hashSize is the length of the hash in front of a settled record and of the
// hash and sequence that make up an index key.
const (
	hashSize     = 8
	seqSize      = 8
	indexKeySize = hashSize + seqSize
)

// generation names a group of settled records that become due together and are
// dropped together: all whose KnownUntil lies in one interval of width
// 1<<class nanoseconds that ends at index<<class.
type generation struct {
	class uint8
	index uint64
}

const (
	minClass = 30 // about a second: a shorter window does not get its own buckets
	maxClass = 58
	// Each generation covers between 1/16 and 1/32 of its records' window: wide
	// enough that a window has about 33 buckets at a time, narrow enough that
	// expired records do not outstay it by more than a sixteenth.
	perWindow = 4
)

// generationFor returns the generation of a record that is settled at now and
// known until the given time.
func generationFor(now, known time.Time) generation {
	window := uint64(max(known.Sub(now), 1))
	class := uint8(min(max(bits.Len64(window)-1-perWindow, minClass), maxClass))
	end := nanos(known)
	index := end >> class
	if end&(1<<class-1) != 0 {
		index++
	}
	return generation{class: class, index: index}
}

// due reports whether every record of the generation has expired at now.
func (g generation) due(now time.Time) bool {
	return g.index <= nanos(now)>>g.class
}

// nanos is t as nanoseconds since 1970, the nearest that 63 bits can hold.
func nanos(t time.Time) uint64 {
	switch {
	case t.Before(time.Unix(0, 0)):
		return 0
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return uint64(t.UnixNano())
}

const generationNameSize = 1 + 1 + 8

// name returns the name of the generation's bucket with this prefix.
func (g generation) name(prefix byte) []byte {
	b := make([]byte, 2, generationNameSize)
	b[0], b[1] = prefix, g.class
	return binary.BigEndian.AppendUint64(b, g.index)
}

// parseGeneration is the inverse of name for record buckets.
func parseGeneration(name []byte) (generation, bool) {
	if len(name) != generationNameSize || name[0] != recordPrefix {
		return generation{}, false
	}
	return generation{class: name[1], index: binary.BigEndian.Uint64(name[2:])}, true
}

// hashOf is the first half of the ID's name: what the index is keyed by. The
// full ID is compared on every hit.
func hashOf(id backend.ID) uint64 {
	sum := id.Sum()
	return binary.BigEndian.Uint64(sum[:hashSize])
}

// settled reports whether a record of this state lives in a generation. All
// others live in pending or in memory.
func settled(s backend.State) bool { return s == backend.Completed || s == backend.Failed }

// appendRow appends the stored form of a settled record: hash and record.
func appendRow(b []byte, hash uint64, rec *backend.Record) []byte {
	return backend.AppendRecord(binary.BigEndian.AppendUint64(b, hash), rec)
}

// seqKey returns the key of a settled record in its generation.
func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// indexKey returns the key of a settled record in its generation's index.
func indexKey(hash, seq uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, indexKeySize), hash)
	return binary.BigEndian.AppendUint64(b, seq)
}
