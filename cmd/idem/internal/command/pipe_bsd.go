//go:build unix && !linux

package command

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// pipe returns the reading and the writing end of a pipe that no other program
// inherits.
func pipe() (r, w int, err error) {
	var fds [2]int
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err = unix.Pipe(fds[:]); err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	return fds[0], fds[1], err
}
