//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package bolt

import (
	"errors"
	"os"
	"syscall"
)

// vetPages checks all pages of the file through a mapping of its own. A page that
// the disk cannot deliver faults, which guarded turns into an error.
func vetPages(f *os.File, m metaPage) error {
	data, err := syscall.Mmap(int(f.Fd()), 0, int(m.pages*m.pageSize), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Munmap(data) }()
	return guarded(func() error { return vetMapped(data, m) })
}

// tryLock takes bbolt's lock on f, shared or exclusive, if it is free. It belongs
// to the open file, so that bbolt finds it taken already.
func tryLock(f *os.File, exclusive bool) (bool, error) {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, os.NewSyscallError("flock", err)
		}
	}
}

// renamed returns f under another name. The lock stays with it.
func renamed(f *os.File, name string) (*os.File, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Dup(int(f.Fd()))
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), name), f.Close()
}
