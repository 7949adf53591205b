package bolt

import (
	"fmt"
	"syscall"
)

// fileSystem names the file system that a folder is on. The numbers are the
// kernel's, from statfs(2).
func fileSystem(dir string) (name string, kind int) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "not known", fsUnknown
	}
	switch uint32(s.Type) {
	case 0xEF53:
		return "ext4", fsDisk
	case 0x58465342:
		return "xfs", fsDisk
	case 0x9123683E:
		return "btrfs", fsDisk
	case 0x2FC12FC1:
		return "zfs", fsDisk
	case 0xF2F52010:
		return "f2fs", fsDisk
	case 0x794C7630:
		return "overlay", fsDisk
	case 0x01021994:
		return "tmpfs", fsMemory
	case 0x858458F6:
		return "ramfs", fsMemory
	case 0x6969:
		return "nfs", fsRemote
	case 0xFF534D42:
		return "cifs", fsRemote
	case 0xFE534D42:
		return "smb2", fsRemote
	case 0x01021997:
		return "9p", fsRemote
	case 0x65735546:
		return "fuse", fsRemote
	}
	return fmt.Sprintf("type %#x", uint32(s.Type)), fsUnknown
}
