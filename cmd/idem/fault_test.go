//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start starts idem in the background.
func (s *shell) start(env []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	s.t.Helper()
	cmd := s.command(args...)
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, &stderr
}

// pid waits for a file with a process number.
func (s *shell) pid(name string) (pid int) {
	s.t.Helper()
	s.until("process number in "+name, func() bool {
		data, _ := os.ReadFile(filepath.Join(s.dir, name))
		n, err := fmt.Sscanf(string(data), "%d\n", &pid)
		return n == 1 && err == nil && bytes.HasSuffix(data, []byte("\n"))
	})
	return pid
}

func (s *shell) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

func gone(pid int) bool { return syscall.Kill(pid, 0) != nil || isZombie(pid) }

// runs is idem run with a short lease and the given flags.
func runs(flags ...string) []string {
	return append([]string{"run", "--op", "fault", "--key", "k", "--lease", "1s"}, flags...)
}

// Kill -9 of idem while the command runs: the command and, once it has a guard, its
// children end with it. The key is blocked until the lease is over; then the policy
// decides.
func TestKillOfIdemEndsTheGroup(t *testing.T) {
	s := newShell(t)
	script := "sleep 61 & echo $! > child; echo $$ > self; wait"
	cmd, _ := s.start(nil, append(runs("--", "sh", "-c"), script)...)
	child, self := s.pid("child"), s.pid("self")
	time.Sleep(time.Second) // long enough for a guard
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.until("the command ends", func() bool { return gone(self) })
	s.until("its child ends", func() bool { return gone(child) })
	if e := s.idem(append(runs("--", "sh", "-c"), script)...); e.status != exitInFlight || !strings.HasPrefix(e.stderr, "idem: in flight: fault") || !strings.Contains(e.stderr, "\nnext: the same command again later, or with --wait 1m; who runs it: idem get --op fault --key k\n") {
		t.Errorf("while the lease lasts: %+v", e)
	}
	if e := s.idem(append(runs("--no-hash", "--wait", "30s", "--", "sh", "-c"), "echo $IDEM_ATTEMPT $IDEM_TOOK_OVER")...); e.status != exitMismatch {
		t.Errorf("another command: %+v", e)
	}
	if e := s.idem(append(runs("--timeout", "300ms", "--wait", "30s", "--", "sh", "-c"), script)...); e.status != exitTimeout {
		t.Errorf("after the lease: %+v", e)
	}
}

// Under hold a killed run waits for a person; --recover asks a command.
func TestKillOfIdemAsksFirst(t *testing.T) {
	for _, c := range []struct {
		name   string
		flags  []string
		status int
		stdout string
		stderr string
	}{
		{"rerun", nil, 0, "again 2 1\n", ""},
		{"hold", []string{"--on-abandoned", "hold"}, exitUnresolved, "", "idem: unresolved: fault: "},
		{"recovered", []string{"--recover", "echo found $IDEM_KEY"}, 0, "found k\n", "idem: replayed fault: attempt 2 "},
		{"not applied", []string{"--recover", "exit 1"}, 0, "again 2 1\n", ""},
		{"cannot say", []string{"--recover", "exit 2"}, exitUnresolved, "", "idem: unresolved: fault: an earlier run was cut off, and --recover could not say whether it took effect (exit status 2; "},
		{"cannot say by a signal", []string{"--recover", "kill -9 $$"}, exitUnresolved, "", "(signal: killed; "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShell(t)
			call := append(runs(c.flags...), "--wait", "30s", "--", "sh", "-c",
				"if test -e once; then echo again $IDEM_ATTEMPT $IDEM_TOOK_OVER; else echo $$ > once; sleep 60; fi")
			cmd, _ := s.start(nil, call...)
			self := s.pid("once")
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			s.until("the command ends", func() bool { return gone(self) })
			e := s.idem(call...)
			if e.status != c.status || e.stdout != c.stdout || !strings.Contains(e.stderr, c.stderr) {
				t.Errorf("%+v", e)
			}
			if c.status != 0 && !strings.Contains(e.stderr, "\nnext: idem get --op fault --key k\n") {
				t.Errorf("it does not say what to type next: %s", e.stderr)
			}
		})
	}
}

// Kill -9 of the command alone: its key is free at once. Of both: as for idem.
func TestKillOfTheCommand(t *testing.T) {
	s := newShell(t)
	call := append(runs("--", "sh", "-c"), "if test -e once; then echo again; else echo $$ > once; sleep 60; fi")
	cmd, stderr := s.start(nil, call...)
	_ = syscall.Kill(s.pid("once"), syscall.SIGKILL)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 137 {
		t.Errorf("%v: %s", err, stderr)
	}
	if e := s.idem(call...); e.status != 0 || e.stdout != "again\n" {
		t.Errorf("%+v", e)
	}

	both := newShellIn(t)
	cmd, _ = both.start(nil, call...)
	self := both.pid("once")
	_ = cmd.Process.Kill()
	_ = syscall.Kill(self, syscall.SIGKILL)
	_ = cmd.Wait()
	if e := both.idem(call...); e.status != exitInFlight {
		t.Errorf("both killed, within the lease: %+v", e)
	}
	if e := both.idem(append(append([]string{}, call[:7]...), append([]string{"--wait", "30s"}, call[7:]...)...)...); e.status != 0 || e.stdout != "again\n" {
		t.Errorf("both killed, after the lease: %+v", e)
	}
}

func newShellIn(t *testing.T) *shell { return &shell{t: t, dir: t.TempDir()} }

// The end of idem between the command's end and the record of it: under rerun the
// effect happens again, under hold nothing does before a person has looked.
func TestKillBeforeTheRecord(t *testing.T) {
	for policy, want := range map[string]int{"rerun": 0, "hold": exitUnresolved} {
		t.Run(policy, func(t *testing.T) {
			s := newShell(t)
			call := append(runs("--on-abandoned", policy, "--wait", "30s", "--", "sh", "-c"), "echo x >> ledger; echo done")
			cmd, stderr := s.start([]string{envEnded + "=die"}, call...)
			_ = cmd.Wait()
			if ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || s.lines("ledger") != 1 {
				t.Fatalf("it was not killed at the point: %v, %s", cmd.ProcessState, stderr)
			}
			e := s.idem(call...)
			if e.status != want {
				t.Errorf("%+v", e)
			}
			effects := map[string]int{"rerun": 2, "hold": 1}[policy]
			if n := s.lines("ledger"); n != effects {
				t.Errorf("%d effects, want %d", n, effects)
			}
			if policy == "rerun" {
				return
			}
			if e := s.idem("resolve", "--op", "fault", "--key", "k", "--applied", "--evidence", "the ledger has the line"); e.status != 0 {
				t.Errorf("resolve: %+v", e)
			}
			if e := s.idem(call...); e.status != 0 || s.lines("ledger") != 1 {
				t.Errorf("after resolve: %+v, %d effects", e, s.lines("ledger"))
			}
		})
	}
}

// A lease that cannot be kept ends the command before another begins, and with a
// lease shorter than the run two processes never overlap.
func TestLongRunKeepsItsLease(t *testing.T) {
	s := newShell(t)
	call := func(wait string) []string {
		return []string{"run", "--op", "fault", "--key", "k", "--lease", "1500ms", "--wait", wait, "--", "sh", "-c", "echo begin >> ledger; echo $$ > once; sleep 4; echo end >> ledger; echo done"}
	}
	cmd, stderr := s.start(nil, call("0s")...)
	s.pid("once")
	if e := s.idem(call("0s")...); e.status != exitInFlight {
		t.Errorf("second: %+v", e)
	}
	if e := s.idem(call("30s")...); e.status != 0 || e.stdout != "done\n" || !strings.HasPrefix(e.stderr, "idem: replayed") {
		t.Errorf("waiting: %+v", e)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr)
	}
	if n := s.lines("ledger"); n != 2 {
		t.Errorf("%d lines in the ledger", n)
	}
}

// The record of the key is taken away: the next renewal finds out, and the whole
// group is killed.
func TestLostLeaseKillsTheGroup(t *testing.T) {
	s := newShell(t)
	cmd, stderr := s.start(nil, append(runs("--", "sh", "-c"), "trap '' TERM; sleep 62 & echo $! > child; wait; sleep 62")...)
	child := s.pid("child")
	if e := s.idem("forget", "--op", "fault", "--key", "k", "--force"); e.status != 0 {
		t.Fatalf("forget: %+v", e)
	}
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != exitInFlight || !strings.HasPrefix(stderr.String(), "idem: lease lost: fault: ") {
		t.Errorf("%v: %s", err, stderr)
	}
	s.until("the child ends", func() bool { return gone(child) })
}

// Signals reach the command, which decides; a second one kills.
func TestSignalsAreHandedOn(t *testing.T) {
	s := newShell(t)
	cmd, stderr := s.start(nil, append(runs("--", "sh", "-c"), "trap 'echo got >> got' USR1; trap 'echo cleaned >> got; exit 0' TERM; echo $$ > once; while :; do sleep 0.05; done")...)
	s.pid("once")
	_ = cmd.Process.Signal(syscall.SIGUSR1)
	s.until("USR1 arrives", func() bool { return s.lines("got") == 1 })
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil || s.lines("got") != 2 {
		t.Errorf("a command that ends well after TERM is done: %v, %s", err, stderr)
	}

	deaf := newShellIn(t)
	cmd, _ = deaf.start(nil, append(runs("--", "sh", "-c"), "trap '' INT; echo $$ > once; while :; do sleep 0.05; done")...)
	self := deaf.pid("once")
	_ = cmd.Process.Signal(syscall.SIGINT)
	time.Sleep(200 * time.Millisecond)
	if gone(self) {
		t.Error("one INT killed a command that ignores it")
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 137 || !gone(self) {
		t.Errorf("two INTs: status %d", code)
	}
	if e := deaf.idem(runs("--no-hash", "--", "true")...); e.status != 0 {
		t.Errorf("the key is not free: %+v", e)
	}
}

// A signal before the command has begun stops the call; nothing runs.
func TestSignalWhileWaiting(t *testing.T) {
	s := newShell(t)
	holder, _ := s.start(nil, append(runs("--", "sh", "-c"), "echo $$ > once; sleep 60")...)
	s.pid("once")
	cmd, stderr := s.start(nil, append(runs("--wait", "60s", "--", "sh", "-c"), "echo $$ > once; sleep 60")...)
	time.Sleep(300 * time.Millisecond)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 || !strings.HasPrefix(stderr.String(), "idem: stopped by a signal (terminated) before the command was started; nothing was run\n") {
		t.Errorf("status %d: %s", code, stderr)
	}
	_ = holder.Process.Signal(syscall.SIGTERM)
	_ = holder.Wait()
}

// A reader that goes away early stops neither idem nor the command.
func TestReaderThatGoesAway(t *testing.T) {
	s := newShell(t)
	cmd := s.command(append(runs("--", "sh", "-c"), "i=0; while test $i -lt 20000; do echo line $i; i=$((i+1)); done; echo end > finished")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(out, make([]byte, 10))
	_ = out.Close()
	if err := cmd.Wait(); err != nil || s.lines("finished") != 1 {
		t.Errorf("%v, finished %d", err, s.lines("finished"))
	}
}

// One gigabyte passes through a process that stays small.
func TestGigabyteInBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	s := newShell(t)
	cmd := s.command(append(runs("--", "sh", "-c"), "head -c 1000000000 /dev/zero; grep VmHWM /proc/$PPID/status >&2")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err, stderr.String())
	}
	var kib int
	limit := 120 << 10
	if raceEnabled {
		limit *= 4 // the detector's own memory; still half of what the command writes
	}
	if _, err := fmt.Sscanf(stderr.String(), "VmHWM: %d kB", &kib); err != nil || kib > limit {
		t.Errorf("%d KiB at the most (%v): %s", kib, err, stderr.String())
	}
}
