package throwaway

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// spawner starts processes on a thread of its own. Linux sends a child its parent-death signal when
// the thread that started it ends, not when the process does: from a thread of Go's pool, a server
// could die in the middle of its work.
type spawner struct {
	work chan func()
	quit chan struct{}
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	go s.loop()
	return s
}

func (s *spawner) loop() {
	defer close(s.done)
	// Never unlocked: the thread ends with this goroutine and takes what still runs with it.
	runtime.LockOSThread()
	for {
		select {
		case f := <-s.work:
			f()
		case <-s.quit:
			return
		}
	}
}

// run calls start on the thread, unless that is stopped.
func (s *spawner) run(start func() error) error {
	started := make(chan error, 1)
	select {
	case s.work <- func() { started <- start() }:
		return <-started
	case <-s.done:
		return errClosed
	}
}

func (s *spawner) stop() {
	close(s.quit)
	<-s.done
}

// process is a running server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startProcess runs a command in its own process group, its output appended to the file log. The
// system sends it the signal death when this process dies.
func (h *Host) startProcess(cmd *exec.Cmd, owner *credential, death syscall.Signal, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = attributes(owner, death)

	if err := h.spawner.run(cmd.Start); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go p.wait()
	return p, nil
}

func (p *process) wait() {
	defer close(p.done)
	_ = p.cmd.Wait()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process and all its descendants as a power cut does: none can react to the death of
// another. The parent is stopped first, so that it starts no child that is missing from the list.
func (p *process) kill() {
	if !p.alive() {
		return
	}
	_ = p.cmd.Process.Signal(stopSignal)
	family := descendants(p.pid())
	_ = p.cmd.Process.Kill()
	for _, pid := range family {
		killPID(pid)
	}
	<-p.done
	settled(func() bool {
		for _, pid := range family {
			if running(pid) {
				return false
			}
		}
		return true
	})
}

// stop sends sig, waits, and kills what does not listen.
func (p *process) stop(sig os.Signal) {
	if p.cmd.Process.Signal(sig) == nil {
		settled(func() bool { return !p.alive() })
	}
	p.kill()
}

// family lists the process and all its descendants.
func (p *process) family() []int {
	if !p.alive() {
		return nil
	}
	return append([]int{p.pid()}, descendants(p.pid())...)
}

// descendants lists the processes below pid. A process group would not do: PostgreSQL gives every
// backend a group of its own.
func descendants(pid int) []int {
	children := make(map[int][]int)
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	var found []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		found = append(found, children[queue[0]]...)
		queue = append(queue, children[queue[0]]...)
	}
	return found
}

// running reports whether pid exists and is no zombie: a killed orphan may wait for an init process
// that never collects it.
func running(pid int) bool {
	for _, p := range processes() {
		if p.pid == pid {
			return !p.zombie
		}
	}
	return false
}

type processInfo struct {
	pid, parent int
	zombie      bool
}

// processes lists all processes: from /proc where there is one, else from ps.
func processes() []processInfo {
	var list []processInfo
	if entries, err := os.ReadDir("/proc"); err == nil {
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err != nil {
				continue
			}
			// The command's name, in parentheses, may contain anything.
			_, rest, _ := strings.Cut(string(stat[max(0, strings.LastIndexByte(string(stat), ')')):]), ") ")
			if f := strings.Fields(rest); len(f) > 1 {
				parent, _ := strconv.Atoi(f[1])
				list = append(list, processInfo{pid, parent, f[0] == "Z"})
			}
		}
		if list != nil {
			return list
		}
	}
	out, _ := exec.Command("ps", "-A", "-o", "pid=,ppid=,state=").Output()
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 {
			pid, err1 := strconv.Atoi(f[0])
			parent, err2 := strconv.Atoi(f[1])
			if err1 == nil && err2 == nil {
				list = append(list, processInfo{pid, parent, strings.HasPrefix(f[2], "Z")})
			}
		}
	}
	return list
}
