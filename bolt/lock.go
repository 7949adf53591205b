package bolt

import (
	"os"
	"time"
)

type locking struct {
	path      string
	exclusive bool
	wait      time.Duration
	thorough  bool
}

func (l *locking) open(name string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, mode)
}
func (l *locking) refused() error { return &LockError{Path: l.path} }
