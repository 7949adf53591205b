package bolt

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// maxCommand bounds the command line in an error message.
const maxCommand = 200

// lockHolder finds the process that holds the lock of a file in /proc/locks. Its
// lines read
//
//	1: FLOCK  ADVISORY  WRITE 1234 08:01:262145 0 EOF
//
// with device and inode. Zero: not found, or in another PID namespace.
func lockHolder(info fs.FileInfo) (pid int, command string) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, ""
	}
	inode := ":" + strconv.FormatUint(stat.Ino, 10)
	device := fmt.Sprintf("%02x:%02x", devMajor(stat.Dev), devMinor(stat.Dev))
	loose := 0
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		n, err := strconv.Atoi(f[4])
		if err != nil || n <= 0 {
			continue
		}
		if f[5] == device+inode {
			pid = n
			break
		}
		loose = n // some file systems show another device number here
	}
	if pid == 0 {
		pid = loose
	}
	if pid == 0 {
		return 0, ""
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return pid, ""
	}
	command = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
	if len(command) > maxCommand {
		command = strings.ToValidUTF8(command[:maxCommand], "") + "..."
	}
	return pid, command
}

func devMajor(dev uint64) uint64 { return (dev>>8)&0xfff | (dev>>32)&^0xfff }
func devMinor(dev uint64) uint64 { return dev&0xff | (dev>>12)&^0xff }
