package redis

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
)

// The value of a record's key, version 1. All numbers are little endian, all times
// are Unix microseconds, 0 for none: a Lua number holds them exactly. What the
// scripts compare and change has a fixed place.
//
//	 0 byte     version (1)
//	 1 byte     state; 0 marks the grave of a forgotten record, see graveFor
//	 2 byte     flags
//	 3 byte     policy for an abandoned attempt
//	 4 uint32   attempt
//	 8 uint64   fence
//	16 16 bytes owner token
//	32 int64    reserved
//	40 int64    lease until, or completed in a settled record
//	48 int64    replay until
//	56 int64    known until
//	64 uint32   CRC-32C of identity and fingerprint
//	68 uint32   CRC-32C of the body
//	72 uint16   length of the identity
//	74 uint16   length of evidence and holder
//	76 byte     length of the fingerprint
//	77          identity (ID.AppendTo), fingerprint,
//	            with flagEvidence: uint16+ evidence,
//	            with flagHolder: byte+ host, int64 PID, int64 start,
//	            body
//
// The checksums are made by Go. A script cannot make one at a bearable price, so
// they cover what no script changes; a script checks version, state, lengths and
// the whole identity before it trusts a value.
//
// With flagRelative the times are those of a native SET: its sender did not know
// the server's clock, so reserved and lease count, negatively, from the expiry of
// the key, which is also the end of the record's window and gives the fence. Every
// script that writes such a record makes its times absolute.
//
// With flagFromEnd, in a settled record, the ends of the two windows and the completion
// count from the expiry of the key as well, which is the end of the dedup window: its
// completion was written without asking for the time first. Reserved and fence are
// absolute.
const (
	valueVersion = 1

	flagTookOver = 1
	flagRelative = 2
	flagBodyKey  = 4 // the body is in a key of its own
	flagHolder   = 8
	flagEvidence = 16
	flagFromEnd  = 32

	posFence   = 8
	posOwner   = 16
	posTimes   = 32
	posBindSum = 64
	posBodySum = 68
	posLengths = 72
	headerSize = 77

	// inlineBody is the longest body that stays in the record although its replay
	// window is shorter than the record's: a second key costs about 100 bytes.
	inlineBody = 1024

	// longestSpan cuts leases and windows. The sum of now and two of them still
	// fits the 53 bits of a Lua number.
	longestSpan = 100 * 365 * 24 * time.Hour
)

// stored is a record as it was read.
type stored struct {
	rec     backend.Record // zero for an absent record and for a grave
	grave   uint64         // fence of a forgotten record
	bodyKey bool           // rec.Body is still to be read from the second key
	bodySum uint32
}

// encode returns the value for rec, and the value for its body's own key where it
// belongs there.
func encode(rec *backend.Record) (value, body []byte) {
	body = rec.Body
	apart := len(body) > inlineBody && rec.ReplayUntil.Before(rec.KnownUntil)
	size := headerSize + 3 + len(rec.ID.Tenant) + len(rec.ID.Operation) + len(rec.ID.Key) + len(rec.Fingerprint)
	if rec.Holder != (backend.Holder{}) {
		size += 17 + len(rec.Holder.Host)
	}
	if rec.Evidence != "" {
		size += 2 + len(rec.Evidence)
	}
	if !apart {
		size += len(body)
	}
	b := make([]byte, headerSize, size)
	flags := byte(0)
	if rec.TookOver {
		flags |= flagTookOver
	}
	if apart {
		flags |= flagBodyKey
	}
	b = rec.ID.AppendTo(b)
	idLen := len(b) - headerSize
	b = append(b, rec.Fingerprint...)
	binary.LittleEndian.PutUint32(b[posBindSum:], checksum(b[headerSize:]))
	mark := len(b)
	if rec.Evidence != "" {
		flags |= flagEvidence
		b = binary.LittleEndian.AppendUint16(b, uint16(len(rec.Evidence)))
		b = append(b, rec.Evidence...)
	}
	if rec.Holder != (backend.Holder{}) {
		flags |= flagHolder
		host := rec.Holder.Host[:min(len(rec.Holder.Host), backend.MaxHost)]
		b = append(append(b, byte(len(host))), host...)
		b = binary.LittleEndian.AppendUint64(b, uint64(rec.Holder.PID))
		b = binary.LittleEndian.AppendUint64(b, uint64(toMicros(rec.Holder.Started)))
	}
	binary.LittleEndian.PutUint16(b[posLengths:], uint16(idLen))
	binary.LittleEndian.PutUint16(b[posLengths+2:], uint16(len(b)-mark))
	b[posLengths+4] = byte(len(rec.Fingerprint))
	b[0], b[1], b[2], b[3] = valueVersion, byte(rec.State), flags, byte(rec.OnAbandoned)
	binary.LittleEndian.PutUint32(b[4:], uint32(rec.Attempt))
	binary.LittleEndian.PutUint64(b[posFence:], rec.Fence)
	copy(b[posOwner:], rec.Owner[:])
	at := rec.LeaseUntil
	if settled(rec.State) {
		at = rec.CompletedAt
	}
	for i, t := range [...]time.Time{rec.ReservedAt, at, rec.ReplayUntil, rec.KnownUntil} {
		putTime(b, i, toMicros(t))
	}
	binary.LittleEndian.PutUint32(b[posBodySum:], checksum(body))
	if apart {
		return b, bodyValue(rec.Fence, body)
	}
	return append(b, body...), nil
}

// bodyValue is what a body's own key holds: the fence binds it to one attempt, so
// that a leftover of another one is never taken for it.
func bodyValue(fence uint64, body []byte) []byte {
	b := make([]byte, 8, 8+len(body))
	binary.LittleEndian.PutUint64(b, fence)
	return append(b, body...)
}

// makeRelative gives an encoded reservation times that count from the expiry of
// its key, ttl+known after the SET, both in milliseconds.
func makeRelative(value []byte, ttl, known int64) {
	value[2] |= flagRelative
	putTime(value, 0, -(ttl+known)*1000)
	putTime(value, 1, -known*1000)
	putTime(value, 2, 0)
	putTime(value, 3, 0)
}

func putTime(value []byte, i int, micros int64) {
	binary.LittleEndian.PutUint64(value[posTimes+8*i:], uint64(micros))
}

// decode reads a value. expire is the expiry of its key in Unix milliseconds,
// negative for none. id is the identity that was asked for; nil takes any. The
// record shares no memory with value.
func decode(value string, expire int64, id *backend.ID) (stored, error) {
	if len(value) == 0 {
		return stored{}, fmt.Errorf("%w: empty", backend.ErrCorruptRecord)
	}
	if value[0] != valueVersion {
		return stored{}, &backend.VersionError{What: "record", Found: int(value[0]), Known: valueVersion}
	}
	if len(value) < headerSize {
		return stored{}, fmt.Errorf("%w: cut short at %d bytes", backend.ErrCorruptRecord, len(value))
	}
	idLen := int(value[posLengths]) | int(value[posLengths+1])<<8
	if len(value) < headerSize+idLen {
		return stored{}, fmt.Errorf("%w: identity is cut short", backend.ErrCorruptRecord)
	}
	var own backend.ID
	var buf [3 + backend.MaxTenant + backend.MaxOperation + backend.MaxKey]byte
	rest := value[headerSize+idLen:]
	name := value[headerSize : headerSize+idLen]
	switch {
	case id != nil && string(id.AppendTo(buf[:0])) == name:
		own = *id
	default:
		var err error
		if own, err = backend.ParseID([]byte(name)); err != nil {
			return stored{}, err
		}
	}
	st, err := decodeRest(value[:headerSize], name, rest, expire, own)
	if err == nil && id != nil && own != *id {
		// Two identities with one sum: as likely as two equal tokens, but sharing a
		// record would hand one's result to the other.
		return stored{}, fmt.Errorf("%w: the key holds the record of another identity", backend.ErrCorruptRecord)
	}
	return st, err
}

// decodeRest reads header and what follows the identity.
func decodeRest(header, name, rest string, expire int64, id backend.ID) (stored, error) {
	var fixed [headerSize]byte
	copy(fixed[:], header)
	h := fixed[:]
	st := stored{bodyKey: h[2]&flagBodyKey != 0, bodySum: binary.LittleEndian.Uint32(h[posBodySum:])}
	rec := &st.rec
	rec.ID = id
	rec.State, rec.OnAbandoned = backend.State(h[1]), backend.Abandoned(h[3])
	rec.TookOver = h[2]&flagTookOver != 0
	rec.Attempt = int(binary.LittleEndian.Uint32(h[4:]))
	rec.Fence = binary.LittleEndian.Uint64(h[posFence:])
	copy(rec.Owner[:], h[posOwner:])
	if rec.State > backend.Open {
		return stored{}, fmt.Errorf("%w: unknown state %d", backend.ErrCorruptRecord, h[1])
	}
	var times [4]int64
	for i := range times {
		times[i] = int64(binary.LittleEndian.Uint64(h[posTimes+8*i:]))
	}
	if h[2]&flagRelative != 0 {
		if expire < 0 {
			return stored{}, fmt.Errorf("%w: its key has lost its expiry", backend.ErrCorruptRecord)
		}
		known := expire * 1000
		times = [4]int64{known + times[0], known + times[1], 0, known}
		rec.Fence = uint64(times[0])
	}
	if h[2]&flagFromEnd != 0 {
		if expire < 0 {
			return stored{}, fmt.Errorf("%w: its key has lost its expiry", backend.ErrCorruptRecord)
		}
		known := expire * 1000
		times[1], times[2], times[3] = known+times[1], known+times[2], known
	}
	extraLen, fpLen := int(binary.LittleEndian.Uint16(h[posLengths+2:])), int(h[posLengths+4])
	if len(rest) < fpLen+extraLen {
		return stored{}, fmt.Errorf("%w: its parts are cut short", backend.ErrCorruptRecord)
	}
	sum := crc32.Update(checksum([]byte(name)), castagnoli(), []byte(rest[:fpLen]))
	if sum != binary.LittleEndian.Uint32(h[posBindSum:]) {
		return stored{}, fmt.Errorf("%w: checksum of identity and fingerprint differs", backend.ErrCorruptRecord)
	}
	if rec.State == 0 {
		return stored{grave: rec.Fence}, nil
	}
	if fpLen > 0 {
		rec.Fingerprint = []byte(rest[:fpLen])
	}
	if !decodeExtra(rec, h[2], rest[fpLen:fpLen+extraLen]) {
		return stored{}, fmt.Errorf("%w: fields do not add up", backend.ErrCorruptRecord)
	}
	rec.ReservedAt, rec.ReplayUntil, rec.KnownUntil = fromMicros(times[0]), fromMicros(times[2]), fromMicros(times[3])
	if settled(rec.State) {
		rec.CompletedAt = fromMicros(times[1])
	} else {
		rec.LeaseUntil = fromMicros(times[1])
	}
	if body := rest[fpLen+extraLen:]; len(body) > 0 {
		rec.Body = []byte(body)
	}
	if !st.bodyKey && checksum(rec.Body) != st.bodySum {
		return stored{}, fmt.Errorf("%w: checksum of the result differs", backend.ErrCorruptRecord)
	}
	return st, nil
}

// decodeExtra reads evidence and holder.
func decodeExtra(rec *backend.Record, flags byte, b string) bool {
	if flags&flagEvidence != 0 {
		if len(b) < 2 {
			return false
		}
		n := 2 + (int(b[0]) | int(b[1])<<8)
		if len(b) < n {
			return false
		}
		rec.Evidence, b = strings.Clone(b[2:n]), b[n:]
	}
	if flags&flagHolder != 0 {
		if len(b) == 0 || len(b) != 17+int(b[0]) {
			return false
		}
		n := 1 + int(b[0])
		var numbers [16]byte
		copy(numbers[:], b[n:])
		rec.Holder = backend.Holder{
			Host:    strings.Clone(b[1:n]),
			PID:     int(int64(binary.LittleEndian.Uint64(numbers[:]))),
			Started: fromMicros(int64(binary.LittleEndian.Uint64(numbers[8:]))),
		}
		b = ""
	}
	return b == ""
}

// head returns the part of a value that a compare-and-swap compares: all but
// extras and body, which change only together with it.
func head(value string) string {
	if len(value) < headerSize {
		return value
	}
	n := headerSize + (int(value[posLengths]) | int(value[posLengths+1])<<8) + int(value[posLengths+4])
	return value[:min(n, len(value))]
}

func settled(s backend.State) bool { return s == backend.Completed || s == backend.Failed }

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

// castagnoli returns the CRC-32C table; crc32 builds it once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	if n := t.UnixMicro(); n != 0 {
		return n
	}
	return 1 // 1970 is not "none"
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// micros returns a lease or window in microseconds, rounded up: a window of a
// nanosecond is not none.
func micros(d time.Duration) int64 {
	return int64((min(d, longestSpan) + time.Microsecond - 1) / time.Microsecond)
}

// millis does the same in milliseconds, the unit of a key's expiry.
func millis(d time.Duration) int64 {
	return int64((min(d, longestSpan) + time.Millisecond - 1) / time.Millisecond)
}
