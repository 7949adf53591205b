package bolt

import (
	"encoding/binary"
	"fmt"

	"github.com/goidem/idem/backend"
)

// The stored form of a settled record:
//
//	uint64  hash of the ID
//	byte    where its result is: inline or apart
//	uint64  with apart: part and sequence of the result in its generation
//	...     the record, without its result if that is apart
const (
	inline = 0
	apart  = 1

	placeTag  = hashSize
	inlineRow = hashSize + 1
	apartRow  = inlineRow + 8
)

// appendRow appends the stored form of a settled record. If its result is apart,
// setBody says later where.
func appendRow(b []byte, hash uint64, rec *backend.Record, tag byte) []byte {
	b = append(binary.BigEndian.AppendUint64(b, hash), tag)
	if tag == inline {
		return backend.AppendRecord(b, rec)
	}
	bare := *rec
	bare.Body = nil
	return backend.AppendRecord(binary.BigEndian.AppendUint64(b, 0), &bare)
}

// setBody writes into a row where its result is.
func setBody(row []byte, part uint32, seq uint64) {
	binary.BigEndian.PutUint64(row[inlineRow:], uint64(part)<<32|seq)
}

// bodyAt says where the result of a record is, if it is not in the record.
type bodyAt struct {
	hash  uint64
	apart bool
	part  uint32
	seq   uint64
}

// splitRow takes a row apart, without a look into the record.
func splitRow(v []byte) (hash uint64, body bodyAt, rec []byte, err error) {
	if len(v) < inlineRow || v[placeTag] > apart || v[placeTag] == apart && len(v) < apartRow {
		return 0, body, nil, fmt.Errorf("%w: a row of %d bytes", backend.ErrCorruptRecord, len(v))
	}
	hash = binary.BigEndian.Uint64(v)
	if v[placeTag] == inline {
		return hash, body, v[inlineRow:], nil
	}
	at := binary.BigEndian.Uint64(v[inlineRow:])
	body = bodyAt{hash: hash, apart: true, part: uint32(at >> 32), seq: at & (1<<32 - 1)}
	return hash, body, v[apartRow:], nil
}

// decodeRow parses a row. The result, if it is apart, is not read.
func decodeRow(v []byte) (rec backend.Record, hash uint64, body bodyAt, err error) {
	hash, body, rest, err := splitRow(v)
	if err != nil {
		return rec, hash, body, err
	}
	rec, err = backend.ParseRecord(rest)
	return rec, hash, body, err
}

// parseRow parses a settled record that was looked for under a hash. A row under
// another hash is another key's, and has taken a place that was given up, only if
// the record itself says so: else the hash is damaged, and taking the record for
// absent would run its operation again.
func parseRow(v []byte, hash uint64) (backend.Record, bodyAt, error) {
	rec, prefix, body, err := decodeRow(v)
	if err == nil && prefix != hash && hashOf(rec.ID) != prefix {
		return backend.Record{}, body, fmt.Errorf("%w: its hash is that of another key", backend.ErrCorruptRecord)
	}
	return rec, body, err
}
