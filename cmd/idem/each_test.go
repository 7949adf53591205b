//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/goidem/idem/bolt"
)

// input writes n lines.
func (s *shell) input(n int) string {
	s.t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "record-%03d\n", i)
	}
	path := filepath.Join(s.dir, "in.txt")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// each is idem each over the input, with a command that notes each effect.
func (s *shell) each(in, script string, flags ...string) []string {
	return append(append([]string{"each", "--op", "batch", "--key", "{{.line}}", "--jobs", "4"}, flags...), in, "--", "sh", "-c", script, "{{.line}}")
}

// ledger returns how often each record took effect.
func (s *shell) ledger() map[string]int {
	data, _ := os.ReadFile(filepath.Join(s.dir, "ledger"))
	count := map[string]int{}
	for line := range strings.Lines(string(data)) {
		count[strings.TrimSpace(line)]++
	}
	return count
}

// A batch that is killed goes on where it was, at once. Records that were running
// may take effect again; those that were done do not.
func TestEachResumesAfterKill(t *testing.T) {
	s := newShell(t)
	in := s.input(120)
	call := s.each(in, `echo "$0" >> ledger; sleep 0.02; echo "$0" >> done`)
	cmd, _ := s.start(nil, call...)
	s.until("a third is done", func() bool { return s.lines("done") > 40 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	begun := time.Now()
	e := s.idem(call...)
	if e.status != 0 || !strings.Contains(e.stderr, "idem: 120 records: ") {
		t.Fatalf("%+v", e)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v: it waited for the leases of the dead", took)
	}
	ledger, again := s.ledger(), 0
	for _, n := range ledger {
		if n > 1 {
			again++
		}
	}
	if len(ledger) != 120 || again > 8 { // four that ran, and four whose record was on its way
		t.Errorf("%d records took effect, %d of them twice", len(ledger), again)
	}
	if e := s.idem(call...); !strings.Contains(e.stderr, "0 run, 120 done before") {
		t.Errorf("%+v", e)
	}
}

// Under hold a killed batch leaves what was running to a person.
func TestEachHoldAfterKill(t *testing.T) {
	s := newShell(t)
	in := s.input(40)
	call := s.each(in, `echo "$0" >> ledger; sleep 0.1`, "--on-abandoned", "hold", "--lease", "1s", "--wait", "5s")
	cmd, _ := s.start(nil, call...)
	s.until("some are done", func() bool { return s.lines("ledger") > 10 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	e := s.idem(call...)
	if e.status != exitUnresolved || !strings.Contains(e.stderr, " unresolved") {
		t.Errorf("%+v", e)
	}
	for record, n := range s.ledger() {
		if n != 1 {
			t.Errorf("%s took effect %d times", record, n)
		}
	}
}

// screen is a terminal that a program runs on.
type terminal struct {
	f    *os.File
	mu   sync.Mutex
	text bytes.Buffer
	done chan struct{}
}

func (s *shell) terminal(args ...string) (*exec.Cmd, *terminal) {
	s.t.Helper()
	cmd := s.command(args...)
	cmd.Env = append(cmd.Env, "TERM=xterm")
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 160})
	if err != nil {
		s.t.Skip("no terminal to be had:", err)
	}
	term := &terminal{f: f, done: make(chan struct{})}
	go func() {
		defer close(term.done)
		buf := make([]byte, 4096)
		for {
			n, err := f.Read(buf)
			term.mu.Lock()
			term.text.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	s.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = f.Close() })
	return cmd, term
}

func (t *terminal) shown() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// On a terminal there is a bar with rate, time left and counts; Ctrl-C starts
// nothing more, says so, and the same call goes on from there.
func TestEachOnATerminal(t *testing.T) {
	s := newShell(t)
	in := s.input(100)
	call := s.each(in, `echo "$0" >> ledger; sleep 0.1`)
	cmd, term := s.terminal(call...)
	bar := regexp.MustCompile(`\d+ run, 0 done before, 0 failed, 4 in flight +\d+% .*\(\d+/100, \d+ rec/s\) \[\d+s:\d+s\]`)
	s.until("the bar is shown", func() bool { return bar.MatchString(term.shown()) })
	if _, err := term.f.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	<-term.done
	text := term.shown()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("status %d", code)
	}
	for _, want := range []string{"idem: starting nothing more, waiting for 4 commands; Ctrl-C again stops them\r\n", "idem: ", " not started; "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not shown:\n%q", want, text)
		}
	}
	ran := s.lines("ledger")
	if ran == 0 || ran == 100 {
		t.Errorf("%d were run", ran)
	}
	if e := s.idem(call...); e.status != 0 || !strings.Contains(e.stderr, fmt.Sprintf("idem: 100 records: %d run, %d done before", 100-ran, ran)) {
		t.Errorf("resuming after %d: %+v", ran, e)
	}
	for record, n := range s.ledger() {
		if n != 1 {
			t.Errorf("%s took effect %d times", record, n)
		}
	}
}

// A second Ctrl-C stops what is running; its keys are free.
func TestEachSecondCtrlC(t *testing.T) {
	s := newShell(t)
	in := s.input(10)
	cmd, term := s.terminal(s.each(in, `echo "$0" >> ledger; sleep 60; :`)...)
	s.until("four are running", func() bool { return s.lines("ledger") == 4 })
	begun := time.Now()
	_, _ = term.f.WriteString("\x03")
	s.until("it says what it does", func() bool { return strings.Contains(term.shown(), "Ctrl-C again stops them") })
	_, _ = term.f.WriteString("\x03")
	_ = cmd.Wait()
	<-term.done
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || time.Since(begun) > 20*time.Second {
		t.Errorf("status %d after %v", code, time.Since(begun))
	}
	if !strings.Contains(term.shown(), "4 stopped, 6 not started; ") {
		t.Errorf("%q", term.shown())
	}
	if e := s.idem(s.each(in, "true", "--no-hash")...); e.status != 0 || !strings.Contains(e.stderr, "10 run, 0 done before") {
		t.Errorf("%+v", e)
	}
}

// At a terminal a command of idem run can read it, and Ctrl-C reaches it once.
func TestRunOnATerminal(t *testing.T) {
	s := newShell(t)
	cmd, term := s.terminal("run", "--op", "o", "--key", "k", "--", "sh", "-c", `trap 'echo x >> got' INT; read -r name; echo "hello $name"; echo ready; sleep 2; sleep 0.2; exit 3`)
	_, _ = term.f.WriteString("world\n")
	s.until("the command has read", func() bool { return strings.Contains(term.shown(), "hello world") })
	_, _ = term.f.WriteString("\x03")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || s.lines("got") != 1 {
		t.Errorf("status %d, %d signals: %q", code, s.lines("got"), term.shown())
	}
}

// Without a terminal progress is plain lines.
func TestEachPlainLines(t *testing.T) {
	s := newShell(t)
	e := s.idem(s.each(s.input(8), "sleep 3")...)
	if !regexp.MustCompile(`(?m)^idem: 4 of 8 records, 1/s: 4 run, 0 done before, 0 failed, 4 in flight; \ds left$`).MatchString(e.stderr) || strings.Contains(e.stderr, "\r") {
		t.Errorf("%q", e.stderr)
	}
}

// C35: another process has the file. Every call ends soon, says who has it, and
// changes nothing; and the other way round, a service gets a typed error.
func TestC35LockedStore(t *testing.T) {
	s := newShell(t)
	path := filepath.Join(s.dir, "state", "idem.db")
	if e := s.run("made", "true"); e.status != 0 {
		t.Fatalf("%+v", e)
	}
	file, err := bolt.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := s.input(3)
	for name, call := range map[string][]string{
		"run":    {"run", "--op", "o", "--key", "k", "--", "touch", "ran"},
		"replay": {"run", "--op", "test.op", "--key", "made", "--", "true"},
		"each":   s.each(in, "touch ran"),
		"shared": s.each(in, "touch ran", "--shared"),
	} {
		begun := time.Now()
		e := s.idem(call...)
		if e.status != exitStore || !strings.HasPrefix(e.stderr, "idem: ") || !strings.Contains(e.stderr, path) || !strings.Contains(e.stderr, "locked by process") || !strings.Contains(e.stderr, "\nnext: ") {
			t.Errorf("%s: %+v", name, e)
		}
		if took := time.Since(begun); took > 4*time.Second { // two, and a loaded machine
			t.Errorf("%s: it took %v", name, took)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "ran")); err == nil {
		t.Error("a command was run")
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}

	cmd, _ := s.start(nil, s.each(in, "sleep 30")...)
	var locked *bolt.LockError
	s.until("the batch has the file", func() bool {
		f, err := bolt.Open(path, &bolt.Options{OpenTimeout: 50 * time.Millisecond})
		if err == nil {
			_ = f.Close()
			return false
		}
		locked, _ = err.(*bolt.LockError)
		return locked != nil
	})
	if locked.PID != cmd.Process.Pid {
		t.Errorf("%v, want process %d", locked, cmd.Process.Pid)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("status %d", code)
	}
}
