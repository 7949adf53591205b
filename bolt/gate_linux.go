package bolt

import (
	"os"
	"syscall"
)

// The gate is a lock on one byte far behind the end of the file, in front of
// bbolt's own lock. Whoever wants the file alone holds the gate while he waits
// for it, and readers that come later do not get past: without it, readers that
// overlap keep a writer out for ever. It is bound to the open file, like bbolt's.
const (
	gateByte = 1 << 62
	ofdSet   = 37 // F_OFD_SETLK
)

// tryGate takes the gate, alone or as one of several readers. True where the
// kernel or the file system does not have such locks: then there is no gate.
func tryGate(f *os.File, exclusive bool) bool {
	kind := int16(syscall.F_RDLCK)
	if exclusive {
		kind = syscall.F_WRLCK
	}
	err := gate(f, kind)
	return err != syscall.EAGAIN && err != syscall.EACCES
}

func leaveGate(f *os.File) { _ = gate(f, syscall.F_UNLCK) }

func gate(f *os.File, kind int16) error {
	return syscall.FcntlFlock(f.Fd(), ofdSet, &syscall.Flock_t{Type: kind, Start: gateByte, Len: 1})
}
