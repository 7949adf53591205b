//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package bolt

import "os"

// tryLock leaves the lock to bbolt.
func tryLock(*os.File, bool) (bool, error) { return true, nil }

func renamed(f *os.File, _ string) (*os.File, error) { return f, nil }

// abandon closes f without bbolt's help.
func abandon(f *os.File) error { return f.Close() }
