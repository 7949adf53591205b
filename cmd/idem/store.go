package main

import (
	"errors"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/cmd/idem/internal/storage"
)

// global holds the flags that all commands share, besides --store.
var global struct {
	config   string
	lockWait time.Duration
}

// openStore opens the store file in per-call mode: the file is open only while a
// record is touched, so that many commands share it. create says whether a file
// that does not exist is made. What o leaves open is taken from the file of
// policies: the windows by scope and outcome.
func openStore(name string, create bool, o *idem.Options) (*idem.Store, error) {
	mode := storage.Mend
	if create {
		mode = storage.Run
	}
	file, err := openFile(name, mode)
	if err != nil {
		return nil, err
	}
	return overFile(file, o)
}

// lookStore opens the store file read-only and never creates it.
func lookStore(name string) (*idem.Store, error) {
	file, err := openFile(name, storage.Look)
	if err != nil {
		return nil, err
	}
	return overFile(file, nil)
}

// openFile opens the file of the store in any mode.
func openFile(name string, mode storage.Mode) (*bolt.DB, error) {
	path, _, err := storage.Path(name)
	if err != nil {
		return nil, &usageError{err: err, hint: "idem help"}
	}
	if global.lockWait < 0 {
		return nil, &usageError{err: errors.New("idem: --lock-wait must be positive"), hint: "idem help"}
	}
	file, err := storage.Open(path, mode, global.lockWait)
	if err != nil {
		return nil, &storeError{err: err}
	}
	return file, nil
}

func overFile(file *bolt.DB, o *idem.Options) (*idem.Store, error) {
	policies, err := loadPolicies()
	if err != nil {
		return nil, err
	}
	var with idem.Options
	if o != nil {
		with = *o
	}
	if with.Retention == nil {
		with.Retention = policies.Policy()
	}
	return idem.New(file, &with)
}
