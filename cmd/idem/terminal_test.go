package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// screen collects what a program draws on a terminal.
type screen struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.String()
}

// onTerminal starts a program on a terminal of its own. wait waits for its end.
func onTerminal(t *testing.T, cmd *exec.Cmd) (drawn *screen, terminal *os.File, wait func() error) {
	t.Helper()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	drawn = new(screen)
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(drawn, terminal) }) // ends with the program
	return drawn, terminal, func() error {
		reading.Wait()
		return cmd.Wait()
	}
}

func TestColoursOnATerminalOnly(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	for _, c := range []struct {
		env      string
		coloured bool
	}{{"TERM=xterm", true}, {"NO_COLOR=1", false}, {"TERM=dumb", false}} {
		cmd := s.command("list")
		cmd.Env = append(cmd.Env, "TERM=xterm", "NO_COLOR=", c.env)
		drawn, _, wait := onTerminal(t, cmd)
		if err := wait(); err != nil {
			t.Errorf("%s: %v", c.env, err)
		}
		text := drawn.String()
		if got := strings.Contains(text, "\x1b[32mcompleted\x1b[0m"); got != c.coloured || !strings.Contains(text, "completed") {
			t.Errorf("%s: %q", c.env, text)
		}
	}
}

// watch draws over what it drew before, and ends well with Ctrl-C.
func TestWatchRedrawsATerminal(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	cmd := s.command("watch", "--interval", "100ms")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	drawn, terminal, wait := onTerminal(t, cmd)
	for range 200 {
		if strings.Count(drawn.String(), "\x1b[H\x1b[2J") >= 3 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if _, err := terminal.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if text := drawn.String(); strings.Count(text, "\x1b[H\x1b[2J") < 3 || !strings.Contains(text, "0 in flight") {
		t.Errorf("%q", text)
	}
}
