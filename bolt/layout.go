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
//	meta          format, oldest format allowed, high-water mark of the fences,
//	              up to when results were dropped
//	pending       encoded ID -> record: unsettled records that survive a crash
//	g<generation> sequence -> row: settled records in order of arrival
//	b<generation> sequence -> fence + result + checksum: results that are to go
//	              before their record does, in order of arrival
//	x<generation> hash + sequence -> nothing: where a record is, for openers
//	              without the index in memory
//
// The bucket sequence of x<generation> says up to which sequence of
// g<generation> it is complete. A row is described at appendRow.
const (
	topName     = "idem"
	metaName    = "meta"
	pendingName = "pending"

	recordPrefix = 'g'
	bodyPrefix   = 'b'
	indexPrefix  = 'x'

	metaFormat = "format" // version that last changed the layout
	metaOldest = "oldest" // least version that may still use the file
	metaFence  = "fence"  // no fence above this one has been given
	metaBodies = "bodies" // no generation of results that was dropped ends later

	// format is the version of this layout. In version 1, which was never released,
	// a result stood in its record whatever its window.
	format = 2
)

// hashSize is the length of the hash in front of a settled record and of the
// hash and sequence that make up an index key.
const (
	hashSize     = 8
	seqSize      = 8
	indexKeySize = hashSize + seqSize
)

// generation names a group of settled records, or of results, that become due
// together and are dropped together: all whose window ends in one interval of
// width 1<<class nanoseconds that ends at index<<class. A large one has several
// parts, each a bucket of its own, so that no commit has to drop much.
type generation struct {
	class uint8
	index uint64
	part  uint32
}

// A part takes no more rows once it has so many, or about so many bytes: dropping
// it must not keep the writes in the same commit waiting.
const (
	partRows  = 1 << 15
	partBytes = 16 << 20
	leastRows = 64
)

// partLimit is how many rows a part may have before one of this size.
func partLimit(size int) uint64 {
	return uint64(min(max(partBytes/max(size, 1), leastRows), partRows))
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
	end := nanos(known)
	window := max(end, nanos(now)+1) - nanos(now)
	class := uint8(min(max(bits.Len64(window)-1-perWindow, minClass), maxClass))
	index := end >> class
	if end&(1<<class-1) != 0 {
		index++
	}
	return generation{class: class, index: index}
}

// end is when the last of the generation's windows may end, in nanoseconds.
func (g generation) end() uint64 { return g.index << g.class }

// due reports whether every record of the generation has expired at now.
func (g generation) due(now time.Time) bool {
	return g.index <= nanos(now)>>g.class
}

// nanos is t as nanoseconds since 1970, the nearest that 63 bits can hold and a
// record has after it was stored.
func nanos(t time.Time) uint64 {
	switch {
	case !t.After(time.Unix(0, 1)):
		return 1
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return uint64(t.UnixNano())
}

// The name of a part's bucket: prefix, class, two zeros, index, part. It is a
// multiple of four, so that bbolt need not copy a bucket's header to read it: what
// stands in front of it in a page is as long.
const generationNameSize = 1 + 1 + 2 + 8 + 4

// name returns the name of the generation's bucket with this prefix.
func (g generation) name(prefix byte) []byte {
	return g.appendName(make([]byte, 0, generationNameSize), prefix)
}

func (g generation) appendName(b []byte, prefix byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, prefix, g.class, 0, 0), g.index)
	return binary.BigEndian.AppendUint32(b, g.part)
}

// parseGeneration is the inverse of name.
func parseGeneration(name []byte, prefix byte) (generation, bool) {
	if len(name) != generationNameSize || name[0] != prefix {
		return generation{}, false
	}
	return generation{class: name[1], index: binary.BigEndian.Uint64(name[4:]), part: binary.BigEndian.Uint32(name[12:])}, true
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

// seqKey returns the key of a settled record in its generation.
func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// indexKey returns the key of a settled record in its generation's index.
func indexKey(hash, seq uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, indexKeySize), hash)
	return binary.BigEndian.AppendUint64(b, seq)
}
