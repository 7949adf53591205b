package backend

import (
	"errors"
	"fmt"
)

// Errors that a backend returns, matched with errors.Is. Package idem exports the
// same values under the same names.
var (
	// ErrInvalidKey: an ID breaks the limits of this package. Nothing was stored.
	ErrInvalidKey = errors.New("idem: invalid key")
	// ErrInvalidRequest: another field of a request is out of range. Nothing was
	// stored.
	ErrInvalidRequest = errors.New("idem: invalid request")
	// ErrNotFound: there is no such record, or its dedup window is over.
	ErrNotFound = errors.New("idem: no record")
	// ErrLeaseLost: the record no longer names this token in a state that the
	// move accepts. Nothing was changed.
	ErrLeaseLost = errors.New("idem: lease lost")
	// ErrStale: the fence of the record is not the one that the operator saw, or
	// its state has moved on. Nothing was changed; look again.
	ErrStale = errors.New("idem: record has changed since it was looked at")
	// ErrInFlight: the record belongs to a live attempt and the move does not touch
	// those. Nothing was changed.
	ErrInFlight = errors.New("idem: in flight")
	// ErrOutcomeUnknown: the move may or may not have taken effect. Sending the
	// same move with the same token again is safe and learns the truth.
	ErrOutcomeUnknown = errors.New("idem: outcome unknown")
	// ErrCorruptRecord: a stored record cannot be read. Nothing was changed.
	ErrCorruptRecord = errors.New("idem: corrupt record")
	// ErrUnknownVersion: something stored was written by a newer version. See
	// [VersionError].
	ErrUnknownVersion = errors.New("idem: unknown version")
	// ErrRetryTransaction: the caller's own transaction cannot see a record that
	// was committed after its snapshot. Roll it back and run it again.
	ErrRetryTransaction = errors.New("idem: transaction must be retried")
	// ErrTransactionEnded: a Work has ended the transaction that it was given. What it
	// did may be committed; the key is uncertain then. It comes together with
	// ErrOutcomeUnknown, and the move is not to be sent again: that would run the Work
	// a second time.
	ErrTransactionEnded = errors.New("idem: transaction ended by the operation")
	// ErrGuarantee: the store does not give what the caller requires.
	ErrGuarantee = errors.New("idem: guarantee not met")
)

// VersionError says which stored thing has a version that this code does not
// know. It matches [ErrUnknownVersion]. The caller's operation was not run; run
// it with code that knows the version.
type VersionError struct {
	What  string // "record", "identity", "fingerprint", "schema"
	Found int    // the version that is stored
	Known int    // the newest version that this code reads
}

// Error names both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("idem: unknown version: %s has version %d, this code reads up to %d; update the program that reads it", e.What, e.Found, e.Known)
}

// Is reports whether target is ErrUnknownVersion.
func (e *VersionError) Is(target error) bool { return target == ErrUnknownVersion }
