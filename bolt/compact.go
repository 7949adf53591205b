package bolt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// compactTx is how many bytes one transaction of a compaction copies.
const compactTx = 16 << 20

// errShared refuses to replace a file that somebody else has opened.
var errShared = errors.New("idem: the database belongs to the caller; compact it with bbolt's own tools while nothing has it open")

// Compact rewrites the file without its free pages, which bbolt keeps for ever: a
// file that was big once stays big. The copy is complete and synced before it
// takes the place of the file, so that a crash leaves one or the other.
//
// Writes wait until the copy is done; reads go on. It needs room for the copy. A
// store made with New refuses. What Bolt returned before is closed afterwards:
// ask again, and have no transactions of your own open meanwhile. In per-call
// mode the file is kept locked for the whole time.
func (d *DB) Compact(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p, ok := d.engine.(*perCall); ok {
		return p.compact(ctx)
	}
	if !d.owned {
		return errShared
	}
	if err := d.excl.usable(); err != nil {
		return err
	}
	return fileErrorOrNil(d.path, d.excl.compact(ctx, d.path))
}

func (p *perCall) compact(ctx context.Context) error {
	if p.o.ReadOnly {
		return ErrReadOnly
	}
	if _, err := os.Stat(p.path); err != nil {
		return fileError(p.path, err)
	}
	o := p.o
	o.PerCall, o.OpenTimeout = false, p.o.LockWait
	d, err := openExclusive(p.path, &o)
	if err != nil {
		return err
	}
	return errors.Join(d.Compact(ctx), d.Close())
}

// compact copies the file and puts the copy in its place.
func (s *exclusive) compact(ctx context.Context, path string) (err error) {
	s.compacting.Lock()
	defer s.compacting.Unlock()
	old := s.bolt()
	// Our own transaction keeps all other writers out, here and in the caller's
	// code, and writes nothing.
	tx, err := old.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()

	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+rand.Text()[:8]+".compact")
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	// The copy carries the name of the file from the start, and its lock: whoever
	// waits for the file finds the copy locked when it appears.
	db, file, err := createCopy(temp, path, old.MaxSize)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = guarded(db.Close)
		}
	}()
	db.NoSync = true // one sync at the end
	err = guarded(func() error { return bbolt.Compact(db, old, compactTx) })
	db.NoSync = false
	if err == nil {
		err = db.Sync()
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	// The copy is the file from here on. A write through a handle on the old one
	// would be lost, so the old one's descriptor goes first: such a write fails.
	s.db.Store(db)
	oldFile := s.file
	s.file = file
	_ = oldFile.Close()
	_ = tx.Rollback()
	_ = guarded(old.Close)
	return syncDir(filepath.Dir(path))
}

// createCopy opens an empty bbolt file at temp that calls itself path.
func createCopy(temp, path string, maxSize int) (db *bbolt.DB, file *os.File, err error) {
	o := exclusiveOptions(maxSize)
	o.OpenFile = func(_ string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(temp, flag|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return nil, err
		}
		if file, err = renamed(f, path); err != nil {
			return nil, err
		}
		if ok, err := tryLock(file, true); err != nil || !ok {
			_ = file.Close()
			return nil, fmt.Errorf("idem: the new file cannot be locked: %w", err)
		}
		return file, nil
	}
	err = guarded(func() error {
		db, err = bbolt.Open(path, 0o600, o)
		return err
	})
	if err == nil {
		db.AllocSize = growBy(0)
	}
	return db, file, err
}

func fileErrorOrNil(path string, err error) error {
	if err == nil {
		return nil
	}
	return fileError(path, err)
}
