//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package bolt

import (
	"io/fs"
	"os"
)

// What this system does not tell about a file counts as not there.

func namesOf(fs.FileInfo) int { return 1 }

func ownerOf(fs.FileInfo) (uid, gid int) { return -1, -1 }

// syncFolder leaves the names in a folder to the system.
func syncFolder(*os.File) error { return nil }

// tryLock leaves the lock to bbolt.
func tryLock(*os.File, bool) (bool, error) { return true, nil }

func renamed(f *os.File, _ string) (*os.File, error) { return f, nil }

// abandon closes f without bbolt's help.
func abandon(f *os.File) error { return f.Close() }
