//go:build unix && !linux

package command

import "syscall"

// attributes of the program. There is no signal for a parent's death here: when
// idem is killed, the guard is what ends the program.
func attributes(p *process) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: p.own}
}
