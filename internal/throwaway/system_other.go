//go:build !unix

package throwaway

import (
	"errors"
	"os"
	"syscall"
)

const (
	stopSignal = syscall.SIGTERM
	quitSignal = syscall.SIGTERM
)

func attributes(*credential, syscall.Signal) *syscall.SysProcAttr { return nil }

func killPID(int) {}

func lockDir(string) (*os.File, error) {
	return nil, errors.New("throwaway: servers are started on Unix systems only")
}
