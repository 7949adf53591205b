package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bolt"
)

// openStore opens the store file in per-call mode: the file is open only while a
// record is touched, so that many commands share it. create says whether a file
// that does not exist is made.
func openStore(name string, create bool, o *idem.Options) (*idem.Store, error) {
	path, err := storePath(name)
	if err != nil {
		return nil, err
	}
	if create {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, &storeError{err: fmt.Errorf("idem: the folder of the store cannot be made: %w", err)}
		}
	} else if _, err := os.Stat(path); err != nil {
		return nil, &storeError{err: fmt.Errorf("idem: there is no store at %s; name it with --store or IDEM_STORE, or make one with idem run", path)}
	}
	file, err := bolt.Open(path, &bolt.Options{PerCall: true})
	if err != nil {
		return nil, &storeError{err: err}
	}
	return idem.New(file, o)
}

// storePath is the file that --store, IDEM_STORE or the default names.
func storePath(name string) (string, error) {
	if name == "" {
		name = os.Getenv("IDEM_STORE")
	}
	if rest, ok := strings.CutPrefix(name, "bolt://"); ok {
		name = rest
	}
	if strings.Contains(name, "://") {
		scheme, _, _ := strings.Cut(name, "://")
		return "", &usageError{err: fmt.Errorf("idem: this program opens bolt files only, not %s:// stores", scheme), hint: "idem help run"}
	}
	if name != "" {
		return name, nil
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", &usageError{err: fmt.Errorf("idem: there is no home folder to keep a store in: %w; name one with --store", err), hint: "idem help run"}
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "idem", "idem.db"), nil
}
