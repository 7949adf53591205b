package backend

import "bytes"

// A stored fingerprint is a list of digests, one for each version of the
// normalisation that its writer supported: a version byte and 32 bytes of
// SHA-256 each. An empty list means that the caller gave no fingerprint on
// purpose.
const digestSize = 1 + 32

// MaxFingerprint is the longest stored fingerprint in bytes: five digests.
const MaxFingerprint = 5 * digestSize

// MatchFingerprint compares the fingerprint of a record with that of a call.
// Digests of equal versions are compared, the newest common version decides. A
// record without a fingerprint matches only calls without one. Where no version
// is common to both, nobody can say, and the error is a [*VersionError].
func MatchFingerprint(stored, given []byte) (bool, error) {
	if len(stored) == 0 || len(given) == 0 {
		return len(stored) == len(given), nil
	}
	if bytes.Equal(stored, given) {
		return true, nil
	}
	best, match := 0, false
	for s := stored; len(s) >= digestSize; s = s[digestSize:] {
		for g := given; len(g) >= digestSize; g = g[digestSize:] {
			if s[0] == g[0] && int(s[0]) > best {
				best, match = int(s[0]), bytes.Equal(s[:digestSize], g[:digestSize])
			}
		}
	}
	if best == 0 {
		return false, &VersionError{What: "fingerprint", Found: int(stored[0]), Known: int(given[0])}
	}
	return match, nil
}
