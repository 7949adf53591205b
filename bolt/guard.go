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
func guarded(fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	return fn()
}

// panicError describes a panic of bbolt. Text of bbolt's may quote keys and
// stays out; a runtime error names addresses only.
func panicError(p any) error {
	if e, ok := p.(runtime.Error); ok {
		return fmt.Errorf("%w: reading it failed: %s", ErrDamaged, e.Error())
	}
	return fmt.Errorf("%w: a page is not what it should be", ErrDamaged)
}
