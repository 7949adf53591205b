package bolt

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"time"
)

// locking opens the file and takes its lock.
type locking struct {
	path      string
	exclusive bool
	wait      time.Duration
	// patience is how long one and the same process may have the lock before it is
	// taken for one that keeps it; zero: only wait counts.
	patience time.Duration
	done     <-chan struct{} // gives up early, with errGone; nil: never
	thorough bool            // look at every page before bbolt does
	vetted   bool            // set when that was done
}

// open opens the file and waits for its lock. It looks every other millisecond,
// at random, so that everybody who waits has the same chance, also against one
// who has just had it; bbolt would look every 50 ms only.
func (l *locking) open(name string, flag int, mode os.FileMode) (*os.File, error) {
	deadline := stopwatch().Add(l.wait)
	for {
		f, err := os.OpenFile(name, flag, mode)
		if err != nil {
			return nil, err
		}
		if err := l.acquire(f, deadline); err != nil {
			_ = f.Close()
			return nil, err
		}
		// Compaction puts a new file in the place of the old one while others wait
		// for the lock of the old one: what they get then is a file without a name.
		if stillNamed(f, name) {
			return f, nil
		}
		_ = f.Close()
	}
}

// acquire takes the lock before the deadline.
func (l *locking) acquire(f *os.File, deadline time.Time) error {
	began, holder, changed, atGate := stopwatch(), -1, false, false
	defer func() {
		if atGate {
			leaveGate(f)
		}
	}()
	for looks := 0; ; looks++ {
		if !atGate {
			atGate = tryGate(f, l.exclusive)
		}
		if atGate {
			ok, err := tryLock(f, l.exclusive)
			if err != nil || ok {
				return err
			}
			if !l.exclusive { // only who waits for the file alone stays at the gate
				leaveGate(f)
				atGate = false
			}
		}
		now := stopwatch()
		left := deadline.Sub(now)
		if l.patience > 0 && !changed {
			if looks%16 == 0 {
				if info, err := f.Stat(); err == nil {
					pid, _ := lockHolder(info)
					changed = holder > 0 && pid > 0 && pid != holder
					holder = pid
				}
			}
			if !changed {
				left = min(left, l.patience-now.Sub(began))
			}
		}
		if left <= 0 {
			return l.refused(f)
		}
		timer := time.NewTimer(min(left, time.Millisecond+rand.N(2*time.Millisecond)))
		select {
		case <-timer.C:
		case <-l.done:
			timer.Stop()
			return errGone
		}
	}
}

// refused says who has the lock.
func (l *locking) refused(f fs.File) error {
	e := &LockError{Path: l.path}
	if info, err := f.Stat(); err == nil {
		e.PID, e.Command = lockHolder(info)
	}
	return e
}

// stillNamed reports whether name still means the open file.
func stillNamed(f *os.File, name string) bool {
	have, err := f.Stat()
	if err != nil {
		return true
	}
	want, err := os.Stat(name)
	return err != nil || os.SameFile(have, want)
}
