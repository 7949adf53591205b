//go:build unix

package command

import (
	"os"
	"os/exec"
	"syscall"
)

// setGroup prepares the program's process group and returns how to ask it to
// stop: the whole group where it has one of its own, so that no child of a shell
// stays behind.
func setGroup(cmd *exec.Cmd, own bool) func(*os.Process) error {
	if !own {
		return func(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGTERM) }
}

// exitCode is the status as a shell reports it: 128 and the signal for a program
// that a signal ended.
func exitCode(e *exec.ExitError) int {
	if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return e.ExitCode()
}
