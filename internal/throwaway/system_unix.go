//go:build unix

package throwaway

import (
	"os"
	"syscall"
)

const (
	stopSignal = syscall.SIGSTOP
	quitSignal = syscall.SIGQUIT
)

func killPID(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }

// lockDir takes the lock of a folder, which ends with the process, whatever ends that.
func lockDir(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
