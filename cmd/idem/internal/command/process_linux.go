package command

import "syscall"

// attributes of the program. It is killed when idem is: what nobody can record
// must not go on. Its own children are the guard's business.
func attributes(p *process) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: p.own, Pdeathsig: syscall.SIGKILL, PidFD: &p.pidfd}
}
