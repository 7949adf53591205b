package bolt

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"
)

// resolve returns what a path means now, whatever folder the process is in later:
// the file, not a link to it, because compaction gives the file's name to another
// one. What does not exist yet keeps its name, in the folder that is meant.
func resolve(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return path, err
	}
	if _, err := os.Lstat(full); err == nil {
		// A link to nothing fails here: it may mean a disk that is not mounted.
		meant, err := filepath.EvalSymlinks(full)
		if err != nil {
			return full, err
		}
		return meant, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(full))
	if err != nil {
		return full, nil // whoever opens the file says why it cannot be
	}
	return filepath.Join(dir, filepath.Base(full)), nil
}

// existing refuses a path without a file that is worth opening.
func existing(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return regular(info)
}

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
	// That the folder can be synced at all is found out while nothing has happened.
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := syncFolder(folder); err != nil {
		return err
	}
	temp := tempName(path, newSuffix)
	defer os.Remove(temp)
	if err := createFile(temp); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil {
		// Somebody else has created it meanwhile, and may even have cleared our file
		// away already.
		if _, there := os.Stat(path); there != nil {
			return err
		}
	}
	return syncFolder(folder)
}

// Names of files that are not complete: a dot, the name of the store, a random
// part, a suffix.
const (
	newSuffix     = ".new"
	compactSuffix = ".compact"
	randomLetters = 8
)

func tempName(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+rand.Text()[:randomLetters]+suffix)
}

// isTemp reports whether a name is one that tempName gives for the base name of a
// store.
func isTemp(name, base string) bool {
	rest, ok := strings.CutPrefix(name, "."+base+".")
	if !ok || len(rest) < randomLetters {
		return false
	}
	if suffix := rest[randomLetters:]; suffix != newSuffix && suffix != compactSuffix {
		return false
	}
	return strings.Trim(rest[:randomLetters], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// removeLeftovers removes what killed processes have left of a store that the
// caller has locked. Nobody is compacting it then. Somebody may still be about to
// create it; he finds that it is there, whatever becomes of his own file. What is
// locked is in use all the same.
func removeLeftovers(path string) {
	dir := filepath.Dir(path)
	folder, err := os.Open(dir)
	if err != nil {
		return
	}
	defer folder.Close()
	store, err := os.Stat(path)
	if err != nil {
		return
	}
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		if isTemp(name, filepath.Base(path)) {
			removeUnlocked(filepath.Join(dir, name), store)
		}
	}
}

// removeUnlocked removes a file that nobody has locked, or that is a second name
// of the store itself.
func removeUnlocked(path string, store fs.FileInfo) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if os.SameFile(info, store) {
		_ = os.Remove(path)
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if ok, err := tryLock(f, true); err == nil && ok && stillNamed(f, path) {
		_ = os.Remove(path)
	}
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
