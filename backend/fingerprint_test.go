package backend

import (
	"bytes"
	"errors"
	"testing"
)

// digest returns one digest of a version; content stands for the request.
func digest(version, content byte) []byte {
	return append([]byte{version}, bytes.Repeat([]byte{content}, digestSize-1)...)
}

func TestMatchFingerprint(t *testing.T) {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name          string
		stored, given []byte
		match         bool
		unknown       bool
	}{
		{name: "none, none", match: true},
		{name: "none, empty", given: []byte{}, match: true},
		{name: "none, some", given: digest(1, 'a')},
		{name: "some, none", stored: digest(1, 'a')},
		{name: "equal", stored: digest(1, 'a'), given: digest(1, 'a'), match: true},
		{name: "different", stored: digest(1, 'a'), given: digest(1, 'b')},
		{name: "differs in the last bit", stored: digest(1, 'a'), given: append(digest(1, 'a')[:digestSize-1], 'a'^1)},
		{name: "caller knows more", stored: digest(1, 'a'), given: join(digest(2, 'x'), digest(1, 'a')), match: true},
		{name: "record knows more", stored: join(digest(1, 'a'), digest(2, 'x')), given: digest(1, 'a'), match: true},
		{name: "caller knows more and differs", stored: digest(1, 'a'), given: join(digest(2, 'a'), digest(1, 'b'))},
		{name: "two common versions, the newer agrees", stored: join(digest(1, 'a'), digest(2, 'b')), given: join(digest(2, 'b'), digest(1, 'x')), match: true},
		{name: "two common versions, the newer differs", stored: join(digest(1, 'a'), digest(2, 'b')), given: join(digest(2, 'x'), digest(1, 'a'))},
		{name: "order does not matter", stored: join(digest(3, 'c'), digest(1, 'a')), given: join(digest(1, 'a'), digest(3, 'c')), match: true},
		{name: "nothing in common", stored: digest(1, 'a'), given: digest(2, 'a'), unknown: true},
		{name: "nothing in common, several", stored: join(digest(1, 'a'), digest(3, 'a')), given: join(digest(2, 'a'), digest(4, 'a')), unknown: true},
		{name: "version 255", stored: digest(255, 'a'), given: join(digest(254, 'x'), digest(255, 'a')), match: true},
		{name: "version 254 common, equal bytes elsewhere", stored: join(digest(254, 'a'), digest(255, 'b')), given: digest(254, 'b')},
		{name: "damaged: too short", stored: []byte{1, 2, 3}, given: digest(1, 'a'), unknown: true},
	} {
		match, err := MatchFingerprint(c.stored, c.given)
		if match != c.match || errors.Is(err, ErrUnknownVersion) != c.unknown || (err != nil) != c.unknown {
			t.Errorf("%s: %v, %v; want %v, unknown version %v", c.name, match, err, c.match, c.unknown)
		}
		var version *VersionError
		if c.unknown && (!errors.As(err, &version) || version.What != "fingerprint") {
			t.Errorf("%s: the error is %v; want a VersionError about the fingerprint", c.name, err)
		}
	}
}

func TestMatchFingerprintIsSymmetric(t *testing.T) {
	all := [][]byte{nil}
	for v := byte(1); v < 4; v++ {
		for _, c := range []byte{'a', 'b'} {
			all = append(all, digest(v, c), append(digest(v, c), digest(v+1, 'a')...))
		}
	}
	for _, a := range all {
		for _, b := range all {
			m1, e1 := MatchFingerprint(a, b)
			m2, e2 := MatchFingerprint(b, a)
			if m1 != m2 || (e1 == nil) != (e2 == nil) {
				t.Errorf("%x and %x: %v, %v one way; %v, %v the other", a, b, m1, e1, m2, e2)
			}
		}
	}
}
