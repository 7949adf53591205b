package strategy

import (
	"os"

	"golang.org/x/sys/unix"
)

// flush makes what was written durable, without the file's times.
func flush(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
