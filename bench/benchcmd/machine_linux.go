package benchcmd

import (
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goidem/idem/bench/result"
)

func flush(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// describe fills in what Linux tells.
func describe(m *result.Machine, dir string) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) == nil {
		m.Memory = int64(s.Totalram) * int64(s.Unit)
		m.Load = math.Round(float64(s.Loads[0])/(1<<16)*100) / 100 // a fixed-point number
	}
	m.FileSystem = fileSystem(dir)
}

// memoryFileSystem is what a folder is on whose flushes cost nothing.
const memoryFileSystem = "tmpfs"

func fileSystem(dir string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "unknown"
	}
	switch uint32(fs.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return memoryFileSystem
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case 0x2fc12fc1:
		return "zfs"
	}
	return fmt.Sprintf("0x%x", uint32(fs.Type))
}
