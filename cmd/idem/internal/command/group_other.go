//go:build !unix

package command

import (
	"os"
	"os/exec"
)

// setGroup returns how to stop the program; there are no process groups here.
func setGroup(_ *exec.Cmd, _ bool) func(*os.Process) error {
	return func(p *os.Process) error { return p.Kill() }
}

func exitCode(e *exec.ExitError) int { return e.ExitCode() }
