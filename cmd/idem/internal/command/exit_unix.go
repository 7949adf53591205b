//go:build unix

package command

import "golang.org/x/sys/unix"

// exit is a program's end as something that can be polled.
type exit struct {
	fd   int
	wait func() (int, error) // after fd has become readable
}

func (e *exit) close() { _ = unix.Close(e.fd) }

// exit returns a descriptor that becomes readable when the program has ended: the
// system's own where it has one, else the end of a pipe that a goroutine closes.
func (p *process) exit() (*exit, error) {
	if p.pidfd >= 0 {
		return &exit{fd: p.pidfd, wait: p.wait}, nil
	}
	r, w, err := pipe()
	if err != nil {
		return nil, err
	}
	type end struct {
		status int
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		status, err := p.wait()
		ended <- end{status, err}
		_ = unix.Close(w)
	}()
	return &exit{fd: r, wait: func() (int, error) {
		e := <-ended
		return e.status, e.err
	}}, nil
}
