package bolt

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// ensureFile makes sure that there is a file at path that is worth opening.
//
// bbolt would create a missing file in place, and a crash half-way would leave
// one that never opens again. So the new file is complete and synced under
// another name first, and gets its own by a link: unlike a rename, a link never
// takes the place of a file that somebody else has created meanwhile.
func ensureFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil:
		return regular(info)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return fmt.Errorf("its folder %s: %w", dir, errors.Unwrap(err))
	} else if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a folder", ErrNotStore, dir)
	}
	temp := filepath.Join(dir, "."+filepath.Base(path)+"."+rand.Text()[:8]+".new")
	defer os.Remove(temp)
	if err := createFile(temp); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

// regular refuses what is not a file with content. An empty file is no store: it
// may be what a crash, or a hand, has left of one.
func regular(info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fmt.Errorf("%w: it is a folder", ErrNotStore)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is not a regular file", ErrNotStore)
	case info.Size() == 0:
		return fmt.Errorf("%w: the file is empty; remove it if it never held a store", ErrNotStore)
	}
	return nil
}

func createFile(path string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	return errors.Join(db.Update(initialise), db.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
