//go:build !linux

package benchcmd

import (
	"os"

	"github.com/goidem/idem/bench/result"
)

const memoryFileSystem = "tmpfs"

func flush(f *os.File) error { return f.Sync() }

func describe(m *result.Machine, _ string) { m.FileSystem = "unknown" }
