package bolt

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// guarded runs fn and turns a panic in it into an error that matches ErrDamaged.
// bbolt panics when a page is not what its parent says, and reading a mapped
// page that the disk cannot deliver faults; both are findings about the file,
// not reasons to end the process. No user code runs inside: a panic of the
// user's own goes its own way.
func guarded(fn func() error) error {
	_, err := watched(fn)
	return err
}

// watched is guarded that tells whether it was a panic. One that comes out of
// bbolt's own commit, or its roll-back, leaves bbolt's locks as they were: that
// handle must not be used again, not even to close it.
func watched(fn func() error) (panicked bool, err error) {
	old := debug.SetPanicOnFault(true)
	panicked = true
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	err = fn()
	return false, err
}

// panicError describes a panic of bbolt. Text of bbolt's may quote keys and
// stays out; a runtime error names addresses only.
func panicError(p any) error {
	if e, ok := p.(runtime.Error); ok {
		return fmt.Errorf("%w: reading it failed: %s", ErrDamaged, e.Error())
	}
	return fmt.Errorf("%w: a page is not what it should be", ErrDamaged)
}
