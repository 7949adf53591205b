package pgstore

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rawRow is a row of pgx, whose values can be had as the server sent them. Two dozen
// columns scanned one by one, each by a plan that is looked up, cost a replay more than
// its round trip costs the client.
type rawRow interface {
	FieldDescriptions() []pgconn.FieldDescription
	RawValues() [][]byte
}

// rawValues are the values of a row in the server's binary format. bad is set by a value
// that is not of its column's type.
type rawValues struct {
	values [][]byte
	bad    bool
}

// rawOf returns the values of the current row, if it has n of them, all in binary: in
// some modes pgx asks for text. A text is the same in both.
func rawOf(s Scanner, n int) (v rawValues, ok bool) {
	r, ok := s.(rawRow)
	if !ok {
		return v, false
	}
	fields := r.FieldDescriptions()
	if len(fields) != n {
		return v, false
	}
	for i := range fields {
		if fields[i].Format != pgtype.BinaryFormatCode && fields[i].DataTypeOID != pgtype.TextOID {
			return v, false
		}
	}
	return rawValues{values: r.RawValues()}, true
}

// next returns the next value, of the given size; nil is NULL.
func (v *rawValues) next(size int) []byte {
	b := v.values[0]
	v.values = v.values[1:]
	if b != nil && len(b) != size {
		v.bad = true
		return nil
	}
	return b
}

// some is next for a column that is never NULL.
func (v *rawValues) some(size int) []byte {
	if b := v.next(size); b != nil {
		return b
	}
	v.bad = true
	return make([]byte, size)
}

func (v *rawValues) int16() int16 { return int16(binary.BigEndian.Uint16(v.some(2))) }
func (v *rawValues) int32() int32 { return int32(binary.BigEndian.Uint32(v.some(4))) }
func (v *rawValues) int64() int64 { return int64(binary.BigEndian.Uint64(v.some(8))) }
func (v *rawValues) bool() bool   { return v.some(1)[0] != 0 }
func (v *rawValues) token() token { return token(v.some(16)) }

// bytes is a bytea, shared with the driver.
func (v *rawValues) bytes() []byte {
	b := v.values[0]
	v.values = v.values[1:]
	return b
}

// text is a text. The usual one costs no copy.
func (v *rawValues) text(usual string) string {
	b := v.bytes()
	if string(b) == usual {
		return usual
	}
	return string(b)
}

// epoch is where the server's times begin.
const epoch = 946684800 // 2000-01-01, as Unix time

func (v *rawValues) time() time.Time { return v.when(v.some(8)) }

// maybe is a time that may be NULL, which is zero.
func (v *rawValues) maybe() time.Time {
	b := v.next(8)
	if b == nil {
		return time.Time{}
	}
	return v.when(b)
}

func (v *rawValues) when(b []byte) time.Time {
	us := int64(binary.BigEndian.Uint64(b))
	if us == math.MaxInt64 || us == math.MinInt64 { // infinity
		v.bad = true
	}
	return time.Unix(epoch+us/1e6, us%1e6*1e3).UTC()
}
