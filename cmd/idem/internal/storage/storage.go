// Package storage finds and opens the store that a command line names.
package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goidem/idem/bolt"
)

// Env is the environment variable that names the store where no flag does.
const Env = "IDEM_STORE"

// DefaultWait is how long a command that looks or mends waits for a file that one
// process keeps to itself: short enough that nobody takes it for a hang.
const DefaultWait = 1500 * time.Millisecond

// NameError is a store name that this program cannot open. It is a wrong call, not
// a broken store.
type NameError struct{ text string }

// Error says what is wrong with the name and which names are right.
func (e *NameError) Error() string { return e.text }

// MissingError is a store that is not there. Only commands that may store
// something create one.
type MissingError struct{ Path string }

// Error names the path that was looked at.
func (e *MissingError) Error() string {
	return fmt.Sprintf("idem: there is no store at %s; nothing was created", e.Path)
}

// Path turns a store name into the path of its file. The name is a path,
// bolt:PATH or bolt:///PATH; if it is empty, IDEM_STORE counts, then idem/idem.db
// in the user's state folder. byDefault says that nobody named it.
func Path(name string) (path string, byDefault bool, err error) {
	if name == "" {
		name = os.Getenv(Env)
	}
	if name == "" {
		path, err = defaultPath()
		return path, true, err
	}
	scheme, rest, isURL := strings.Cut(name, "://")
	switch {
	case isURL && scheme == "bolt":
		if !strings.HasPrefix(rest, "/") {
			return "", false, &NameError{"idem: bolt://NAME would name a host, and a bolt store is a file: write bolt:PATH, or bolt:///PATH with three slashes"}
		}
		path = rest
	case isURL:
		// Never the whole name: it may carry a password.
		return "", false, &NameError{fmt.Sprintf("idem: a store is a file (PATH, bolt:PATH or bolt:///PATH) or on a server (postgres://, cockroach://, redis://); there are no %s:// stores", scheme)}
	default:
		path = strings.TrimPrefix(name, "bolt:")
	}
	if path == "" {
		return "", false, &NameError{"idem: the store name has no path; write bolt:PATH, or the path alone"}
	}
	return path, false, nil
}

func defaultPath() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", &NameError{fmt.Sprintf("idem: there is no home folder to keep a store in (%v); name one with --store or %s", err, Env)}
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "idem", "idem.db"), nil
}

// Mode says what a command does with the store.
type Mode int

// The modes.
const (
	// Look reads only, shares the file with other readers and never creates it.
	Look Mode = iota
	// Mend changes records of a store that exists, opening the file per move.
	Mend
	// Run is Mend, and creates the store with its folder.
	Run
	// Bulk keeps the file of a store that exists to itself, which is much faster
	// for many changes.
	Bulk
	// Build is Bulk, and creates the store with its folder.
	Build
)

func (m Mode) creates() bool { return m == Run || m == Build }

// Open opens the store at path. wait bounds how long it waits for a process that
// keeps the file; zero means DefaultWait, and for Run bolt's own defaults, which
// are more patient with other commands.
func Open(path string, mode Mode, wait time.Duration) (*bolt.DB, error) {
	o := &bolt.Options{OpenTimeout: wait, LockWait: wait}
	if wait == 0 && mode != Run {
		o.OpenTimeout, o.LockWait = DefaultWait, DefaultWait
	}
	switch mode {
	case Look:
		o.ReadOnly = true
	case Mend, Run:
		o.PerCall = true
	}
	if mode.creates() {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("idem: the folder of the store cannot be made: %w; name another store with --store", err)
		}
	} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, &MissingError{Path: path}
	}
	return bolt.Open(path, o)
}
