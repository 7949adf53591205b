package bolt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/goidem/idem/backend"
)

// Errors of this package, matched with errors.Is. What is wrong with which file
// is in a [*FileError], who holds it in a [*LockError].
var (
	// ErrLocked: another process, or another handle of this one, has the file
	// open. See [LockError]. New also answers so for a database that has a store.
	ErrLocked = errors.New("idem: store file is in use")
	// ErrNotStore: the file is not one of idem's: a directory, an empty or foreign
	// file, a bbolt file without idem's bucket. It was not touched.
	ErrNotStore = errors.New("idem: not an idem store")
	// ErrDamaged: the file is idem's, but parts of it cannot be read. It is left
	// as it is: an empty file in its place would forget every key.
	// It matches backend.ErrCorruptRecord.
	ErrDamaged error = &kindError{"idem: store file is damaged", backend.ErrCorruptRecord}
	// ErrPoisoned: a write failed in a way that leaves open what the disk holds.
	// This handle answers nothing more. Open the file again and call Check.
	ErrPoisoned = errors.New("idem: store is out of use after a failed write; open the file again and check it")
	// ErrFull: the disk, the quota or Options.MaxSize leaves no room. Nothing was
	// stored; the store works again once there is room.
	ErrFull = errors.New("idem: no room to store the record")
	// ErrClosed: the store has been closed.
	ErrClosed error = &kindError{"idem: store is closed", backend.ErrInvalidRequest}
	// ErrPerCall: the move needs a transaction that stays open while the caller
	// works, which a file opened per call does not give.
	ErrPerCall error = &kindError{"idem: no transactions in per-call mode; open the file without Options.PerCall", backend.ErrInvalidRequest}
	// ErrReadOnly: the move would write, and the file was opened with
	// Options.ReadOnly.
	ErrReadOnly error = &kindError{"idem: store was opened read-only", backend.ErrInvalidRequest}
	// ErrWrongTx: the transaction given to Join is closed, read-only, or of
	// another database.
	ErrWrongTx error = &kindError{"idem: not an open write transaction of this store's file", backend.ErrInvalidRequest}
)

// kindError is an error of this package that also matches one of the contract's,
// so that the core advises what helps: asking for a damaged file, changing the
// program for a move that this handle will never make, and not to try again.
type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string { return e.text }

// Is reports whether target is the kind.
func (e *kindError) Is(target error) bool { return target == e.kind }

// FileError says what is wrong with which file. It matches ErrNotStore,
// ErrDamaged, backend.ErrUnknownVersion or the operating system's error.
type FileError struct {
	Path string
	Err  error
}

// Error names the file and the problem.
func (e *FileError) Error() string {
	text := strings.TrimPrefix(e.Err.Error(), "idem: ")
	if strings.Contains(text, e.Path) {
		return "idem: " + text
	}
	return fmt.Sprintf("idem: %s: %s", e.Path, text)
}

// Unwrap returns the problem.
func (e *FileError) Unwrap() error { return e.Err }

// LockError says who holds the lock of a file, as far as the system tells. It
// matches ErrLocked.
type LockError struct {
	Path string
	PID  int // 0: not known
	// Command is the command line of the process, empty if it is not known. It may
	// hold what does not belong into a log, such as keys: the text of the error
	// names the program only.
	Command string
}

// Error names the file and the holder of its lock.
func (e *LockError) Error() string {
	switch {
	case e.PID == os.Getpid():
		return fmt.Sprintf("idem: %s: file is locked: this process has it open already", e.Path)
	case e.PID != 0 && e.Command != "":
		program, _, _ := strings.Cut(e.Command, " ")
		return fmt.Sprintf("idem: %s: file is locked by process %d (%s)", e.Path, e.PID, filepath.Base(program))
	case e.PID != 0:
		return fmt.Sprintf("idem: %s: file is locked by process %d", e.Path, e.PID)
	}
	return fmt.Sprintf("idem: %s: file is locked by another process", e.Path)
}

// Is reports whether target is ErrLocked.
func (e *LockError) Is(target error) bool { return target == ErrLocked }

// unknownCommit wraps the error of a commit that may or may not be on disk.
func unknownCommit(cause error) error {
	return fmt.Errorf("%w: the commit failed with: %w", backend.ErrOutcomeUnknown, cause)
}

// noRoom reports whether err says that the file could not grow. bbolt keeps the
// system's error in some places and only its text in others.
func noRoom(err error) bool {
	if errors.Is(err, bbolterrors.ErrMaxSizeReached) {
		return true
	}
	for _, room := range []syscall.Errno{syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT} {
		if errors.Is(err, room) || strings.HasSuffix(err.Error(), room.Error()) {
			return true
		}
	}
	return false
}

// errOldFormat refuses a file from before the first release.
var errOldFormat error = &kindError{"idem: the file has a layout from before the first release, which this code does not read; begin a new file, or export it with the code that wrote it", backend.ErrUnknownVersion}

var (
	errTooManyGenerations = errors.New("idem: too many different retention windows are in use at once")
	// errNothing ends a round that wrote nothing: rolling back costs no sync.
	errNothing = errors.New("idem: nothing to commit")
	// errUndo ends a transaction whose effects are not wanted while its outcome is:
	// the member goes on as a plain write.
	errUndo = errors.New("idem: effects undone")
	// errGone: the caller of lent work has stopped waiting for its turn.
	errGone = errors.New("idem: caller has left")
	// errHandlerPanicked is the cause of an unknown outcome.
	errHandlerPanicked = errors.New("idem: a commit handler panicked")
	// errAborted ends a transaction because one of its members failed.
	errAborted = errors.New("idem: a member of the group failed")
)
