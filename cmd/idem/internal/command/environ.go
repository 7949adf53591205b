package command

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"strconv"
	"strings"

	"github.com/goidem/idem"
)

// derivedStep names the one derived key that a program is given.
const derivedStep = "command"

// environment is what a program learns about its attempt.
func environment(a *idem.Attempt) []string {
	tookOver := "0"
	if a.TookOver {
		tookOver = "1"
	}
	return append(identity(a.Scope, a.Key),
		"IDEM_ATTEMPT="+strconv.Itoa(a.Number),
		"IDEM_FENCE="+strconv.FormatUint(a.Fence, 10),
		"IDEM_TOOK_OVER="+tookOver,
	)
}

// identity is the part of the environment that does not depend on the attempt.
func identity(scope idem.Scope, key idem.Key) []string {
	return []string{
		"IDEM_OPERATION=" + scope.Operation,
		"IDEM_TENANT=" + scope.Tenant,
		"IDEM_KEY=" + string(key),
		"IDEM_DERIVED_KEY=" + string(DerivedKey(scope, key, derivedStep)),
	}
}

// Environ is this process's environment without what idem sets in a program's:
// idem may itself be run by idem.
func Environ() []string {
	env := os.Environ()
	clean := make([]string, 0, len(env)+8)
	for _, e := range env {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "IDEM_OPERATION", "IDEM_TENANT", "IDEM_KEY", "IDEM_DERIVED_KEY", "IDEM_ATTEMPT", "IDEM_FENCE", "IDEM_TOOK_OVER":
		default:
			clean = append(clean, e)
		}
	}
	return clean
}

// DerivedKey is the key of one step of an intent; see [idem.Attempt.DeriveKey].
// The step "command" is what a program finds in IDEM_DERIVED_KEY.
func DerivedKey(scope idem.Scope, key idem.Key, step string) idem.Key {
	return (&idem.Attempt{Scope: scope, Key: key}).DeriveKey(step)
}

// Inputs are what a call is compared by.
type Inputs struct {
	Args  []string            // the command line; nil leaves it out
	Files [][sha256.Size]byte // digests of files
	Stdin [sha256.Size]byte   // digest of the standard input
	Piped bool                // Stdin counts
}

// Fingerprint tells one call from another: by its command line, which may be any
// bytes, and by the contents of files and of the standard input where asked for.
func (in *Inputs) Fingerprint() idem.Fingerprint {
	var parts [][]byte
	if len(in.Files) > 0 || in.Piped {
		// No argument starts with a NUL byte, so this is no command line.
		parts = append(parts, []byte("\x00inputs"), binary.AppendUvarint(nil, uint64(len(in.Args))))
	}
	for _, a := range in.Args {
		parts = append(parts, []byte(a))
	}
	for _, sum := range in.Files {
		parts = append(parts, append([]byte("f"), sum[:]...))
	}
	if in.Piped {
		parts = append(parts, append([]byte("i"), in.Stdin[:]...))
	}
	if len(parts) == 0 {
		return idem.NoFingerprint()
	}
	return idem.FingerprintBytes(parts...)
}
