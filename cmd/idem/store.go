package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/cmd/idem/internal/storage"
	"github.com/goidem/idem/postgres"
)

// global holds the flags that all commands share, besides --store.
var global struct {
	config   string
	lockWait time.Duration
	opened   []storage.Store // on servers
}

// openStore opens the store. A file is opened in per-call mode: it is open only while a
// record is touched, so that many commands share it. create says whether a file
// that does not exist is made. What o leaves open is taken from the file of
// policies: the windows by scope and outcome.
func openStore(ctx context.Context, name string, create bool, o *idem.Options) (*idem.Store, error) {
	mode := storage.Mend
	if create {
		mode = storage.Run
	}
	b, err := openBackend(ctx, name, mode)
	if err != nil {
		return nil, err
	}
	return over(b, o)
}

// lookStore opens the store; a file is opened read-only and never created.
func lookStore(ctx context.Context, name string) (*idem.Store, error) {
	b, err := openBackend(ctx, name, storage.Look)
	if err != nil {
		return nil, err
	}
	return over(b, nil)
}

// openBackend opens the store, a file in the given mode.
func openBackend(ctx context.Context, name string, mode storage.Mode) (storage.Store, error) {
	u, ok, err := serverURL(name)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return openServer(ctx, u)
	}
	file, err := openFile(name, mode)
	if err != nil {
		return nil, err // not file, which would be a nil that is none
	}
	return file, nil
}

// serverURL says whether the store is on a server, and on which.
func serverURL(name string) (*storage.URL, bool, error) {
	u, ok, err := storage.ParseURL(name)
	if err != nil {
		return nil, false, &usageError{err: err, hint: "idem help"}
	}
	return &u, ok, nil
}

// serverLimit bounds how long a command tries to open a store on a server.
const serverLimit = 15 * time.Second

func openServer(ctx context.Context, u *storage.URL) (storage.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, serverLimit)
	defer cancel()
	s, err := storage.OpenServer(ctx, u)
	if err != nil {
		return nil, serverError(err, u)
	}
	global.opened = append(global.opened, s)
	return s, nil
}

// closeServers says goodbye to the servers that were used.
func closeServers() {
	for _, s := range global.opened {
		_ = s.Close()
	}
}

// serverError says what to type next about a server that could not be opened.
func serverError(err error, u *storage.URL) error {
	var schema *postgres.SchemaError // which is cockroach's, too
	switch {
	case errors.Is(err, backend.ErrInvalidRequest):
		return &usageError{err: err, hint: "idem help"}
	case errors.As(err, &schema) && !schema.TooNew():
		return withNext(&storeError{err: err}, "idem migrate --store %s", quote(u.String()))
	}
	return &storeError{err: err}
}

// onlyFile refuses what has a meaning for stores in a file only, and says what does it
// on a server.
func onlyFile(cmd *cobra.Command, name, what, onSQL, onRedis string) error {
	u, ok, err := serverURL(name)
	if err != nil || !ok {
		return err
	}
	instead := onRedis
	if u.NeedsMigration() {
		instead = onSQL
	}
	return wrongCall(cmd, "idem: %s is for stores in a file, and %s is on a server: %s", what, u, instead)
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

func over(b backend.Backend, o *idem.Options) (*idem.Store, error) {
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
	return idem.New(b, &with)
}
