package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// fingerprintVersion is the version of the digests that this code makes. A change
// in how a request is normalised gets the next number, and for one release both
// are carried, so that old and new programs recognise each other's records.
const fingerprintVersion = 1

// Fingerprint tells one request from another: a SHA-256 with a version, not the
// request itself. The zero value is refused with ErrNoFingerprint, so that
// forgetting it is not the same as going without.
type Fingerprint struct {
	sum [sha256.Size]byte
	set bool // a digest is there
	off bool // none, on purpose
	err error
}

// FingerprintBytes makes a fingerprint of raw bytes. Each part is preceded by its
// length, so ("ab", "c") and ("a", "bc") differ.
func FingerprintBytes(parts ...[]byte) Fingerprint {
	h := sha256.New()
	h.Write([]byte("idem bytes"))
	var length [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write(p)
	}
	f := Fingerprint{set: true}
	h.Sum(f.sum[:0])
	return f
}

// FingerprintJSON makes a fingerprint of the canonical JSON of v: white space,
// member order and string escapes do not matter, array order does. A
// json.RawMessage is taken as the document that it is.
//
// The form is RFC 8785's but for numbers, which stay as they are written: RFC
// 8785 rounds them to double precision, and two different large amounts would
// then be one request.
//
// An error (v cannot be marshalled, a member occurs twice, text is not UTF-8)
// is kept and returned by the call that uses the fingerprint; see
// [Fingerprint.Err].
func FingerprintJSON(v any) Fingerprint {
	data, err := json.Marshal(v, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false), jsontext.AllowDuplicateNames(false))
	doc := jsontext.Value(data)
	if err == nil {
		err = doc.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	}
	if err != nil {
		return Fingerprint{err: fmt.Errorf("%w: the request has no canonical JSON: it must marshal to JSON with unique member names and valid UTF-8 (%T)", ErrInvalidOption, v)}
	}
	h := sha256.New()
	h.Write([]byte("idem json"))
	h.Write(doc)
	f := Fingerprint{set: true}
	h.Sum(f.sum[:0])
	return f
}

// NoFingerprint says that requests with the same key are not compared. A record
// made without a fingerprint matches only calls without one.
func NoFingerprint() Fingerprint { return Fingerprint{off: true} }

// Err returns the error that the fingerprint was made with, if any, and
// ErrNoFingerprint for the zero value.
func (f Fingerprint) Err() error {
	if f.err != nil {
		return f.err
	}
	if !f.set && !f.off {
		return fmt.Errorf("%w: pass FingerprintBytes, FingerprintJSON, or NoFingerprint() to go without", ErrNoFingerprint)
	}
	return nil
}

// storedFingerprint is the length of the form that backends keep, in bytes.
const storedFingerprint = 1 + sha256.Size

// stored returns the form that backends keep and compare, appended to b; nil for
// none.
func (f *Fingerprint) stored(b []byte) []byte {
	if f.off {
		return nil
	}
	return append(append(b, fingerprintVersion), f.sum[:]...)
}
