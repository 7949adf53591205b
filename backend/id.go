package backend

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of an [ID], in bytes, the same on every backend, so that a key that one
// store accepts is accepted by all. The longest encoded ID is 515 bytes, which
// fits every index of every supported server.
const (
	MaxKey       = 255
	MaxTenant    = 128
	MaxOperation = 128
)

// MaxBody is the longest stored result in bytes, the envelope included.
// It is far below what any backend could take, so that the verdict on a large
// result does not depend on the backend.
const MaxBody = 16 << 20

// MaxEvidence is the longest evidence text of a [ResolveRequest] in bytes.
const MaxEvidence = 1024

// MaxHost is the longest host name of a [Holder] in bytes.
const MaxHost = 255

// ID names one record: an idempotency key inside its scope. Tenant may be empty.
// The zero ID is invalid.
type ID struct {
	Tenant    string
	Operation string
	Key       string
}

// Validate checks the limits. Its errors match [ErrInvalidKey], name the part
// that is wrong and what would be right, and never quote the key.
func (id ID) Validate() error {
	if err := validPart("operation", id.Operation, 1, MaxOperation); err != nil {
		return err
	}
	if err := validPart("tenant", id.Tenant, 0, MaxTenant); err != nil {
		return err
	}
	return validPart("key", id.Key, 1, MaxKey)
}

func validPart(what, s string, low, high int) error {
	switch {
	case len(s) < low:
		return fmt.Errorf("%w: %s is empty; it needs %d to %d bytes", ErrInvalidKey, what, low, high)
	case len(s) > high:
		return fmt.Errorf("%w: %s has %d bytes; at most %d are allowed (hash longer names, or join their parts)", ErrInvalidKey, what, len(s), high)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not valid UTF-8; encode binary names, for example as hex", ErrInvalidKey, what)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%w: %s contains a NUL byte, which not every store can keep", ErrInvalidKey, what)
	}
	return nil
}

// validText reports whether every store can keep s as text.
func validText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// idVersion is the first byte of every encoded ID.
const idVersion = 1

// AppendTo appends the stored form of the ID and returns the extended slice: a
// version byte, tenant and operation each behind a length byte, then the key. No
// two different IDs share it, and all records of one scope share a prefix
// ([AppendScope]).
func (id ID) AppendTo(b []byte) []byte {
	return append(AppendScope(b, id.Tenant, id.Operation), id.Key...)
}

// AppendScope appends the prefix that the stored forms of all IDs with this
// tenant and operation share.
func AppendScope(b []byte, tenant, operation string) []byte {
	b = append(b, idVersion, byte(len(tenant)))
	b = append(b, tenant...)
	b = append(b, byte(len(operation)))
	return append(b, operation...)
}

// ParseID is the inverse of [ID.AppendTo]. It copies what it needs.
func ParseID(b []byte) (ID, error) {
	if len(b) == 0 {
		return ID{}, fmt.Errorf("%w: empty identity", ErrCorruptRecord)
	}
	if b[0] != idVersion {
		return ID{}, &VersionError{What: "identity", Found: int(b[0]), Known: idVersion}
	}
	// One string for all three parts: reading a record is on the path of every
	// replay.
	all := string(b)
	tenant, rest, ok := cutPrefixed(all[1:])
	if !ok {
		return ID{}, fmt.Errorf("%w: identity is cut short", ErrCorruptRecord)
	}
	operation, key, ok := cutPrefixed(rest)
	if !ok || len(key) == 0 {
		return ID{}, fmt.Errorf("%w: identity is cut short", ErrCorruptRecord)
	}
	return ID{Tenant: tenant, Operation: operation, Key: key}, nil
}

func cutPrefixed(s string) (part, rest string, ok bool) {
	if len(s) == 0 || len(s) < 1+int(s[0]) {
		return "", "", false
	}
	n := 1 + int(s[0])
	return s[1:n], s[n:], true
}

// Sum is a 16-byte name for the ID: the first half of the SHA-256 of its stored
// form. Stores use it where a short fixed name is cheaper than the full one, and
// compare the full ID on a hit.
func (id ID) Sum() [16]byte {
	var buf [3 + MaxTenant + MaxOperation + MaxKey]byte
	full := sha256.Sum256(id.AppendTo(buf[:0]))
	return [16]byte(full[:16])
}
