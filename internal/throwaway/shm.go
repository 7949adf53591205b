//go:build linux || darwin

package throwaway

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes the System V segment of a killed PostgreSQL server, which nothing but its
// restart or the system's would. The server notes its number in the last but one line of its lock file
// and removes that file when it stops by itself.
func removeSharedMemory(lockFile string) {
	text, err := os.ReadFile(lockFile)
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	const line = 7 // "key id"
	if len(lines) < line {
		return
	}
	f := strings.Fields(lines[line-1])
	if len(f) != 2 {
		return
	}
	if id, err := strconv.Atoi(f[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}
