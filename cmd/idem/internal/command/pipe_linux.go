package command

import "golang.org/x/sys/unix"

// pipe returns the reading and the writing end of a pipe that no other program
// inherits.
func pipe() (r, w int, err error) {
	var fds [2]int
	err = unix.Pipe2(fds[:], unix.O_CLOEXEC)
	return fds[0], fds[1], err
}
