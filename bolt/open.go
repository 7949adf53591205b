package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// initialMmap is how much address space the file gets at first: bbolt moves the
// map when it is outgrown, and waits for every reader to do so.
const initialMmap = 1 << 30

// openExclusive opens the file for as long as the store lives. Closing done ends
// the wait for its lock, with errGone.
func openExclusive(path string, o *Options, done <-chan struct{}) (*DB, error) {
	ensure := ensureFile
	if o.MustExist {
		ensure = existing
	}
	if err := ensure(path); err != nil {
		return nil, fileError(path, err)
	}
	lock := locking{path: path, exclusive: true, wait: o.OpenTimeout, done: done}
	db, file, err := openBolt(path, exclusiveOptions(o.MaxSize), &lock)
	if err != nil {
		return nil, fileError(path, err)
	}
	removeLeftovers(path)
	db.AllocSize = growBy(0)
	s := newExclusive(db, o.clock())
	s.file, s.vetted = file, lock.vetted
	_ = stores.add(db) // a new handle has no store
	d, err := startExclusive(s, path)
	if err != nil {
		stores.remove(db)
		_ = s.closeFile()
		return nil, fileError(path, err)
	}
	d.owned = true
	return d, nil
}

// growBy returns by how much a file of this size grows when it must: an eighth.
// bbolt's fixed 16 MB would make every small store that large.
func growBy(size int64) int {
	const least, most = 1 << 20, 16 << 20
	return int(min(max(size/8, least), most))
}

// exclusiveOptions are bbolt's options for a file that stays open.
func exclusiveOptions(maxSize int) *bbolt.Options {
	return &bbolt.Options{
		// A big free list, written with every commit, would make each of them several
		// times slower for ever after a big removal.
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: initialMmap,
		MaxSize:         maxSize,
		NoStatistics:    true,
	}
}

// newShared builds a store on the caller's database.
func newShared(db *bbolt.DB, o *Options) (*DB, error) {
	path := db.Path()
	switch {
	case db.IsReadOnly():
		return nil, fileError(path, ErrReadOnly)
	case db.NoSync:
		return nil, fileError(path, errNoSync)
	}
	if err := stores.add(db); err != nil {
		return nil, fileError(path, err)
	}
	err := guarded(func() error {
		var have bool
		if err := db.View(func(tx *bbolt.Tx) error {
			have = tx.Bucket([]byte(topName)) != nil
			return nil
		}); err != nil || have {
			return err
		}
		if o.MustExist {
			return errNoBucket
		}
		return db.Update(initialise)
	})
	var d *DB
	if err == nil {
		d, err = startExclusive(newExclusive(db, o.clock()), path)
	}
	if err != nil {
		stores.remove(db)
		return nil, fileError(path, err)
	}
	return d, nil
}

func startExclusive(s *exclusive, path string) (*DB, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	d := &DB{engine: s, excl: s, name: path, path: path}
	d.found = inspect(path, false)
	return d, nil
}

// openBolt opens a bbolt file that exists. The lock is taken and the file checked
// before bbolt sees it.
func openBolt(path string, o *bbolt.Options, lock *locking) (db *bbolt.DB, file *os.File, err error) {
	o.Timeout = lock.wait
	o.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := lock.open(name, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		if lock.vetted, err = vet(f, lock.thorough, lock.exclusive); err != nil {
			_ = f.Close()
			return nil, err
		}
		file = f
		return f, nil
	}
	err = guarded(func() error {
		db, err = bbolt.Open(path, 0o600, o)
		return err
	})
	if err != nil {
		if file != nil {
			// bbolt closes the file when it fails, but not when it panics; the lock
			// would stay for as long as the process lives.
			_ = abandon(file)
		}
		switch {
		case errors.Is(err, bbolterrors.ErrTimeout):
			err = &LockError{Path: lock.path}
		case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum), errors.Is(err, bbolterrors.ErrVersionMismatch):
			err = errors.Join(ErrDamaged, err)
		}
		return nil, nil, err
	}
	return db, file, nil
}

// fileError says which file an error is about, once.
func fileError(path string, err error) error {
	var named *FileError
	var locked *LockError
	if errors.As(err, &named) || errors.As(err, &locked) {
		return err
	}
	var op *fs.PathError
	if errors.As(err, &op) && op.Path == path {
		err = op.Err
	}
	return &FileError{Path: path, Err: err}
}

var errNoBucket = fmt.Errorf("%w: the database has no bucket %q", ErrNotStore, topName)

var errNoSync = errors.New("idem: the database was opened with NoSync; a store that loses what it acknowledged is none; open it without")
