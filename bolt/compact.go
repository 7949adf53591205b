package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// compactTx is how many bytes one transaction of a compaction copies.
const compactTx = 16 << 20

// errs of a file that cannot be replaced under its name alone.
var (
	errTwoNames = errors.New("idem: the file has a second name (a hard link), which would keep the old content; remove that first")
	errMoved    = errors.New("idem: the name of the file means another file by now")
)

// errShared refuses to replace a file that somebody else has opened.
var errShared = errors.New("idem: the database belongs to the caller; compact it with bbolt's own tools while nothing has it open")

// Compact rewrites the file without its free pages, which bbolt keeps for ever: a
// file that was big once stays big. The copy is complete and synced before it
// takes the place of the file, so that a crash leaves one or the other. It keeps
// the file's mode and owner, or fails. A file with a second name (a hard link) is
// refused. If it is not known whether the new file's name has reached the disk,
// the handle answers ErrPoisoned from then on.
//
// Writes wait until the copy is done; reads go on. It needs room for the copy. A
// store made with New refuses. What Bolt returned before is closed afterwards:
// ask again, and have no transactions of your own open meanwhile. In per-call
// mode the file is kept locked for the whole time.
func (d *DB) Compact(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
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
	err := d.excl.compact(ctx, d.path)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return ctx.Err()
	}
	return fileErrorOrNil(d.path, err)
}

func (p *perCall) compact(ctx context.Context) error {
	if p.o.ReadOnly {
		return ErrReadOnly
	}
	if _, err := os.Stat(p.path); err != nil {
		return fileError(p.path, err)
	}
	o := p.o
	// A file that goes away from here on is not created again.
	o.PerCall, o.OpenTimeout, o.MustExist = false, p.o.LockWait, true
	d, err := openExclusive(p.path, &o, ctx.Done())
	if errors.Is(err, errGone) {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Compact(ctx), d.Close())
}

// compact copies the file and puts the copy in its place.
func (s *exclusive) compact(ctx context.Context, path string) (err error) {
	select {
	case s.compacting <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	tx, err := s.beginCompaction(ctx)
	if err != nil {
		return err
	}
	defer func() { <-s.compacting }()
	// Our own transaction keeps all other writers out, here and in the caller's
	// code, and writes nothing.
	defer func() { _ = tx.Rollback() }()
	old := s.bolt()

	info, err := replaceable(path, s.file)
	if err != nil {
		return err
	}
	// That the folder can be synced at all is found out while nothing has happened.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.syncDir(dir); err != nil {
		return err
	}

	temp := tempName(path, compactSuffix)
	inPlace := false // the copy is the file
	defer func() {
		if !inPlace {
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
		if !inPlace {
			_ = guarded(db.Close)
		}
	}()
	if err := sameAccess(file, info); err != nil {
		return err
	}
	db.NoSync = true // one sync at the end
	err = guarded(func() error { return bbolt.Compact(db, old, compactTx) })
	db.NoSync = false
	if err == nil {
		err = db.Sync()
	}
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	inPlace = true
	err = s.syncDir(dir)
	if err != nil {
		// After a crash of the machine the old file may be there again, without
		// anything that is written from now on: so nothing is.
		s.poison()
	}
	// The copy is the file from here on. A write through a handle on the old one
	// would be lost, so the old one's descriptor goes first: such a write fails.
	stores.replace(old, db)
	oldFile := s.file
	s.file = file
	s.db.Store(db) // last: who sees the new database writes to it at once
	_ = oldFile.Close()
	_ = tx.Rollback()
	_ = guarded(old.Close)
	return err
}

// beginCompaction begins the transaction that keeps writers out. bbolt would wait
// for its lock however long somebody's work takes. Whoever gives up leaves that
// wait, and s.compacting with it, to a goroutine: it ends when the work does, and
// Close waits for it.
func (s *exclusive) beginCompaction(ctx context.Context) (*bbolt.Tx, error) {
	type begun struct {
		tx  *bbolt.Tx
		err error
	}
	got := make(chan begun)
	go func() {
		var b begun
		if b.err = s.usable(); b.err == nil {
			b.err = guarded(func() (err error) {
				b.tx, err = s.bolt().Begin(true)
				return err
			})
		}
		select {
		case got <- b:
		case <-ctx.Done():
			if b.err == nil {
				_ = b.tx.Rollback()
			}
			<-s.compacting
		}
	}()
	select {
	case b := <-got:
		if b.err == nil {
			// Close, or a failed write, may have come meanwhile.
			if b.err = s.usable(); b.err != nil {
				_ = b.tx.Rollback()
			}
		}
		if b.err != nil {
			<-s.compacting
			return nil, b.err
		}
		return b.tx, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// replaceable returns what is known about the file at path. It must be the open
// one, and have no other name: that would go on meaning the old file, and be a
// store of its own.
func replaceable(path string, open *os.File) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	have, err := open.Stat()
	switch {
	case err != nil:
		return nil, err
	case !os.SameFile(info, have):
		return nil, errMoved
	case namesOf(info) > 1:
		return nil, errTwoNames
	}
	return info, nil
}

// sameAccess gives the copy the owner and the mode of the file: another user's
// command must find it as open, or as closed, as it was.
func sameAccess(f *os.File, like fs.FileInfo) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	uid, gid := ownerOf(like)
	if haveUID, haveGID := ownerOf(info); haveUID != uid || haveGID != gid {
		if err := f.Chown(uid, gid); err != nil {
			return fmt.Errorf("idem: the new file cannot be given the owner of the old one: %w", errors.Unwrap(err))
		}
	}
	// After the owner: changing that clears bits of the mode.
	if info, err = f.Stat(); err == nil && info.Mode() != like.Mode() {
		err = f.Chmod(like.Mode())
	}
	return err
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
