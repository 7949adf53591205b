//go:build unix

package command

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardAfter is how long a program runs before it gets a guard. Short ones, which
// are most of a batch, do not pay for it.
const guardAfter = 500 * time.Millisecond

// guard is a shell that lives in the program's process group and waits for idem's
// end: when idem is killed, its pipe closes and it kills the group, children of
// the program included. As a member of the group it also keeps the group's number
// from being given to others. What has left the group (a daemon) escapes it.
type guard struct {
	p     *process
	timer *time.Timer

	mu   sync.Mutex
	over bool
	pid  int
	pipe int
}

// guardScript ignores what is forwarded to the group, and ends with it.
const guardScript = `trap '' HUP INT QUIT TERM USR1 USR2; read -r _; kill -9 0`

func newGuard(p *process) *guard {
	g := &guard{p: p}
	g.timer = time.AfterFunc(guardAfter, g.start)
	return g
}

// start starts the shell. Without one (no /bin/sh, no process to be had) the
// program still ends with idem where the system sees to that.
func (g *guard) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	r, w, err := pipe()
	if err != nil {
		return
	}
	defer unix.Close(r)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = unix.Close(w)
		return
	}
	defer null.Close()
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", guardScript}, &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{uintptr(r), null.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pgid: g.p.pid},
	})
	if err != nil {
		_ = unix.Close(w)
		return
	}
	g.pid, g.pipe = pid, w
}

// end takes the guard away.
func (g *guard) end() {
	g.timer.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if g.pid != 0 {
		_ = unix.Kill(g.pid, unix.SIGKILL)
		_, _ = ignoringEINTR(func() (int, error) { return unix.Wait4(g.pid, nil, 0, nil) })
		_ = unix.Close(g.pipe)
	}
}
