package expiry

import (
	"fmt"
	"time"
)

// Issued says how a key carries the time it was issued.
type Issued uint8

// The ways in which keys carry their issue time.
const (
	// NotDeclared: they do not. A key is late only where its caller gives the time all
	// the same, with idem.IssuedAt.
	NotDeclared Issued = iota
	// ByUUIDv7: keys are UUIDs of version 7.
	ByUUIDv7
	// ByULID: keys are ULIDs.
	ByULID
	// ByOption: the caller gives the time with every call, idem.IssuedAt.
	ByOption
)

// String returns the name as files write it.
func (i Issued) String() string {
	switch i {
	case NotDeclared:
		return "not declared"
	case ByUUIDv7:
		return "uuidv7"
	case ByULID:
		return "ulid"
	case ByOption:
		return "explicit"
	}
	return fmt.Sprintf("issued %d", uint8(i))
}

// ParseIssued reads what String writes: uuidv7, ulid or explicit.
func ParseIssued(text string) (Issued, error) {
	for i := ByUUIDv7; i <= ByOption; i++ {
		if text == i.String() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("idem: issued is %q; it must be uuidv7, ulid or explicit", text)
}

// UUIDv7Time returns the issue time of a UUID of version 7 (RFC 9562, section 5.7),
// to the millisecond. It takes the canonical form only: 36 bytes, hyphens in their
// places, hex digits all of one case. A store compares keys byte by byte, so that
// any other spelling of the same UUID would be another key.
func UUIDv7Time(key string) (time.Time, error) {
	bad := func(why string) (time.Time, error) {
		return time.Time{}, fmt.Errorf("idem: the key is no UUID of version 7: %s", why)
	}
	if len(key) != 36 || key[8] != '-' || key[13] != '-' || key[18] != '-' || key[23] != '-' {
		return bad("it must have 36 bytes in the form 8-4-4-4-12")
	}
	var ms uint64
	var lower, upper bool
	for i, digits := 0, 0; i < len(key); i++ {
		c, v := key[i], byte(0)
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			continue
		case c >= '0' && c <= '9':
			v = c - '0'
		case c >= 'a' && c <= 'f':
			v, lower = c-'a'+10, true
		case c >= 'A' && c <= 'F':
			v, upper = c-'A'+10, true
		default:
			return bad("it must be made of hex digits")
		}
		if digits < 12 { // 48 bits
			ms = ms<<4 | uint64(v)
		}
		digits++
	}
	switch {
	case lower && upper:
		return bad("its hex digits must be all of one case")
	case key[14] != '7':
		return bad("its version digit must be 7")
	case key[19] != '8' && key[19] != '9' && key[19]|0x20 != 'a' && key[19]|0x20 != 'b':
		return bad("its variant digit must be 8, 9, a or b")
	}
	return time.UnixMilli(int64(ms)).UTC(), nil
}

// crockford is the alphabet of ULIDs: without I, L, O and U.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// ULIDTime returns the issue time of a ULID, to the millisecond. It takes 26 digits
// of Crockford's base 32, all of one case and without the letters that stand for
// digits when people read them (I, L, O): a store compares keys byte by byte.
func ULIDTime(key string) (time.Time, error) {
	bad := func(why string) (time.Time, error) {
		return time.Time{}, fmt.Errorf("idem: the key is no ULID: %s", why)
	}
	if len(key) != 26 {
		return bad("it must have 26 digits")
	}
	if key[0] > '7' {
		return bad("its first digit must be 0 to 7: it has 128 bits")
	}
	var ms uint64
	var lower, upper bool
	for i := range len(key) {
		c := key[i]
		if c >= 'a' && c <= 'z' {
			lower = true
			c -= 'a' - 'A'
		} else if c >= 'A' && c <= 'Z' {
			upper = true
		}
		v := crockfordValue(c)
		if v < 0 {
			return bad("its digits must be 0-9 and A-Z without I, L, O and U")
		}
		if i < 10 { // 50 bits, of which the first two are zero
			ms = ms<<5 | uint64(v)
		}
	}
	if lower && upper {
		return bad("its letters must be all of one case")
	}
	return time.UnixMilli(int64(ms)).UTC(), nil
}

func crockfordValue(c byte) int {
	for v := range len(crockford) {
		if crockford[v] == c {
			return v
		}
	}
	return -1
}
