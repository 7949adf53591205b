//go:build unix && !linux

package throwaway

import "syscall"

// attributes puts a server into its own process group. No parent-death signal exists here: a server
// that outlives a killed process is ended by removeStale.
func attributes(owner *credential, _ syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if owner != nil {
		attr.Credential = &syscall.Credential{Uid: owner.uid, Gid: owner.gid}
	}
	return attr
}
