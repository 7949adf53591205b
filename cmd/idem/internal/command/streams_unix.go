//go:build unix

package command

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// leftFor is how long output is waited for that another process than the program,
// one that it has left behind, may still write.
const leftFor = 2 * time.Second

// streams are the ends of a program's standard streams. Both outputs are read by
// one thread, in the order in which they become ready: that is as near to the
// order of writing as two pipes show.
type streams struct {
	out    *output
	child  [3]uintptr // what the program gets
	read   [2]int     // our ends of its output; -1: none
	opened []int      // to be closed once the program has its copies
	null   *os.File
	feed   *os.File // where its input is written
}

// streams makes the streams of a program.
func (s *Spec) streams(out *output) (_ *streams, err error) {
	t := &streams{out: out, read: [2]int{-1, -1}}
	defer func() {
		if err != nil {
			t.started()
			t.close()
		}
	}()
	switch {
	case s.Input != nil:
		r, w, err := pipe()
		if err != nil {
			return nil, err
		}
		t.child[0], t.opened = uintptr(r), append(t.opened, r)
		_ = unix.SetNonblock(w, true)
		t.feed = os.NewFile(uintptr(w), "input")
	case s.Stdin != nil:
		t.child[0] = s.Stdin.Fd()
	default:
		if t.null, err = os.Open(os.DevNull); err != nil {
			return nil, err
		}
		t.child[0] = t.null.Fd()
	}
	for i, w := range []any{s.Stdout, s.Stderr} {
		if f, ok := w.(*os.File); ok && s.NoOutput {
			t.child[1+i] = f.Fd()
			continue
		}
		r, w, err := pipe()
		if err != nil {
			return nil, err
		}
		_ = unix.SetNonblock(r, true)
		t.read[i], t.child[1+i], t.opened = r, uintptr(w), append(t.opened, w)
	}
	if t.feed != nil {
		go func(f *os.File, input []byte) {
			_, _ = f.Write(input) // a program need not read all of it
			_ = f.Close()
		}(t.feed, s.Input)
	}
	return t, nil
}

// started closes what is the program's alone.
func (t *streams) started() {
	for _, fd := range t.opened {
		_ = unix.Close(fd)
	}
	t.opened = nil
}

// close lets go of all the rest.
func (t *streams) close() {
	for i, fd := range t.read {
		if fd >= 0 {
			_ = unix.Close(fd)
			t.read[i] = -1
		}
	}
	if t.null != nil {
		_ = t.null.Close()
	}
	if t.feed != nil {
		_ = t.feed.Close()
	}
}

// follow reads what the program writes until it has ended and nobody has its
// output open, or, when another process keeps it open, for a short while longer.
func (t *streams) follow(p *process) (status int, left bool, err error) {
	exited, err := p.exit()
	if err != nil {
		p.signal(unix.SIGKILL)
		status, _ = p.wait()
		return status, false, err
	}
	defer exited.close()
	var buf []byte
	var until time.Time
	for ended := false; ; {
		// A negative descriptor is skipped.
		set := [3]unix.PollFd{
			{Fd: int32(t.read[0]), Events: unix.POLLIN},
			{Fd: int32(t.read[1]), Events: unix.POLLIN},
			{Fd: int32(exited.fd), Events: unix.POLLIN},
		}
		open, wait := t.read[0] >= 0 || t.read[1] >= 0, -1
		if ended {
			set[2].Fd = -1
			wait = int(max(0, time.Until(until).Milliseconds()))
			if left = open && wait == 0; !open || left {
				return status, left, nil
			}
		}
		if _, err := unix.Poll(set[:], wait); err != nil && err != unix.EINTR {
			return status, left, os.NewSyscallError("poll", err)
		} else if err != nil {
			continue
		}
		for i := range t.read {
			if set[i].Revents != 0 {
				if buf == nil {
					buf = make([]byte, 32<<10)
				}
				t.take(i, buf)
			}
		}
		if set[2].Revents != 0 {
			if status, err = exited.wait(); err != nil {
				return status, left, err
			}
			ended, until = true, time.Now().Add(leftFor)
		}
	}
}

// take reads what there is on one stream, once.
func (t *streams) take(i int, buf []byte) {
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(t.read[i], buf) })
	switch {
	case n > 0:
		t.out.write(buf[:n], i == 1)
	case err == unix.EAGAIN:
	default:
		_ = unix.Close(t.read[i])
		t.read[i] = -1
	}
}
