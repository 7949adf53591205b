package idem

import "crypto/rand"

// newOwner returns a token for one attempt: 128 random bits, so that nobody else
// can hold or guess it (R3). crypto/rand does not fail.
func newOwner() (token [16]byte) {
	rand.Read(token[:])
	return token
}
