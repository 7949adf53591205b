package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The program under test is this test binary, started again as idem.
const envMain = "IDEM_TEST_MAIN"

// shell is a folder with a store of its own.
type shell struct {
	t   *testing.T
	dir string
}

func newShell(t *testing.T) *shell {
	t.Parallel()
	return &shell{t: t, dir: t.TempDir()}
}

func (s *shell) command(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), envMain+"=1", "IDEM_STORE="+filepath.Join(s.dir, "state", "idem.db"))
	return cmd
}

type ended struct {
	stdout, stderr string
	status         int
}

func (s *shell) idem(args ...string) ended {
	s.t.Helper()
	cmd := s.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return ended{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func (s *shell) run(key string, command ...string) ended {
	s.t.Helper()
	return s.idem(append([]string{"run", "--op", "test.op", "--key", key, "--"}, command...)...)
}

func (s *shell) lines(name string) int {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

const charge = "echo charged >> ledger.txt; echo receipt-42; echo careful >&2"

func TestRunReplaysOutputAndStatus(t *testing.T) {
	s := newShell(t)
	first := s.run("order-1001", "sh", "-c", charge)
	second := s.run("order-1001", "sh", "-c", charge)
	if s.lines("ledger.txt") != 1 {
		t.Errorf("charged %d times", s.lines("ledger.txt"))
	}
	if first.status != 0 || first.stdout != "receipt-42\n" || first.stderr != "careful\n" {
		t.Errorf("first run: %+v", first)
	}
	if second.status != 0 || second.stdout != first.stdout || !strings.HasPrefix(second.stderr, "careful\nidem: replayed test.op: attempt 1 completed at ") {
		t.Errorf("replay: %+v", second)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "state", "idem.db")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("store file: %v, %v", info, err)
	}
}

func TestTwentyAtOnceRunOnce(t *testing.T) {
	s := newShell(t)
	var wg sync.WaitGroup
	all := make([]ended, 20)
	for i := range all {
		wg.Go(func() { all[i] = s.run("order-1001", "sh", "-c", "sleep 0.3; "+charge) })
	}
	wg.Wait()
	if n := s.lines("ledger.txt"); n != 1 {
		t.Errorf("charged %d times", n)
	}
	ran := 0
	for _, e := range all {
		switch {
		case e.status == 0:
			ran++
			if e.stdout != "receipt-42\n" {
				t.Errorf("wrong output: %+v", e)
			}
		case e.status != exitInFlight || e.stdout != "" || !strings.HasPrefix(e.stderr, "idem: in flight: test.op"):
			t.Errorf("unexpected end: %+v", e)
		}
	}
	if ran == 0 {
		t.Error("nobody ran it")
	}
}

func TestWaitGetsTheResult(t *testing.T) {
	s := newShell(t)
	var wg sync.WaitGroup
	all := make([]ended, 5)
	for i := range all {
		wg.Go(func() {
			all[i] = s.idem("run", "--op", "test.op", "--key", "k", "--wait", "30s", "--", "sh", "-c", "sleep 0.3; "+charge)
		})
	}
	wg.Wait()
	for _, e := range all {
		if e.status != 0 || e.stdout != "receipt-42\n" {
			t.Errorf("%+v", e)
		}
	}
	if n := s.lines("ledger.txt"); n != 1 {
		t.Errorf("charged %d times", n)
	}
}

func TestFailureGivesTheKeyBack(t *testing.T) {
	s := newShell(t)
	if e := s.run("k", "sh", "-c", "echo try >> ledger.txt; test -e ready || exit 3"); e.status != 3 {
		t.Errorf("first: %+v", e)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "ready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e := s.run("k", "sh", "-c", "echo try >> ledger.txt; test -e ready || exit 3"); e.status != 0 {
		t.Errorf("second: %+v", e)
	}
	if n := s.lines("ledger.txt"); n != 2 {
		t.Errorf("%d tries", n)
	}
}

func TestExitStatuses(t *testing.T) {
	s := newShell(t)
	s.run("done", "true")
	for _, c := range []struct {
		name   string
		args   []string
		status int
		stderr string
	}{
		{"mismatch", []string{"run", "--op", "test.op", "--key", "done", "--", "false"}, exitMismatch, "idem: key was used for another request: test.op"},
		{"no key", []string{"run", "--op", "test.op", "--", "true"}, exitUsage, "idem: --key is missing"},
		{"empty key", []string{"run", "--op", "test.op", "--key", "", "--", "true"}, exitUsage, "idem: invalid key: key is empty"},
		{"no command", []string{"run", "--op", "test.op", "--key", "k"}, exitUsage, "idem: the command to run goes behind --"},
		{"unknown flag", []string{"run", "--oops"}, exitUsage, "unknown flag"},
		{"unknown command", []string{"walk"}, exitUsage, "unknown command"},
		{"not startable", []string{"run", "--op", "test.op", "--key", "k", "--", "./does-not-exist"}, exitNoCommand, "idem: the command could not be started"},
		{"no record", []string{"get", "--op", "test.op", "--key", "never"}, exitNotFound, "idem: no record: test.op"},
		{"no store", []string{"get", "--store", "nowhere.db", "--op", "test.op", "--key", "k"}, exitStore, "idem: there is no store at nowhere.db"},
		{"other scheme", []string{"get", "--store", "mysql://x", "--op", "test.op", "--key", "k"}, exitUsage, "idem: a store is a file (PATH, bolt:PATH or bolt:///PATH) or on a server (postgres://, cockroach://, redis://); there are no mysql:// stores"},
		{"a folder", []string{"run", "--store", ".", "--op", "test.op", "--key", "k", "--", "true"}, exitStore, "idem: "},
	} {
		e := s.idem(c.args...)
		if e.status != c.status || !strings.Contains(e.stderr, c.stderr) || e.stdout != "" {
			t.Errorf("%s: want status %d and %q, got %+v", c.name, c.status, c.stderr, e)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "nowhere.db")); err == nil {
		t.Error("get made a store")
	}
}

func TestChildKnowsItsAttempt(t *testing.T) {
	s := newShell(t)
	e := s.run("k-1", "sh", "-c", `echo "$IDEM_KEY $IDEM_ATTEMPT $IDEM_TOOK_OVER"; test -n "$IDEM_FENCE"; echo "$IDEM_DERIVED_KEY"`)
	lines := strings.Split(e.stdout, "\n")
	if e.status != 0 || lines[0] != "k-1 1 0" || len(lines[1]) != 36 {
		t.Errorf("%+v", e)
	}
}

func TestGet(t *testing.T) {
	s := newShell(t)
	s.run("k", "echo", "hello")
	if e := s.idem("get", "--op", "test.op", "--key", "k"); e.status != 0 || !strings.Contains(e.stdout, "completed") {
		t.Errorf("%+v", e)
	}
	e := s.idem("get", "--op", "test.op", "--key", "k", "--json")
	var got struct {
		State   string
		Attempt int
		Result  struct{ Output []struct{ Data []byte } }
	}
	if err := json.Unmarshal([]byte(e.stdout), &got); err != nil {
		t.Fatal(err, e)
	}
	if got.State != "completed" || got.Attempt != 1 || string(got.Result.Output[0].Data) != "hello\n" {
		t.Errorf("%+v", got)
	}
}

// A stopped idem stops its command, children included, and gives the key back.
func TestTermStopsTheGroupAndFreesTheKey(t *testing.T) {
	s := newShell(t)
	cmd := s.command("run", "--op", "test.op", "--key", "k", "--", "sh", "-c", "sleep 60 & echo $! > child; wait")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	for deadline := time.Now().Add(20 * time.Second); pid == 0; time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(filepath.Join(s.dir, "child")); err == nil {
			fmt.Sscan(string(data), &pid)
		}
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			t.Fatal("the command did not start")
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err == nil {
		t.Error("idem ended with status 0")
	}
	gone := false
	for range 200 {
		if gone = syscall.Kill(pid, 0) != nil || isZombie(pid); gone {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !gone {
		t.Errorf("process %d is left behind", pid)
	}
	if e := s.run("k", "sh", "-c", "true"); e.status != exitMismatch && e.status != 0 {
		t.Errorf("the key is not free: %+v", e)
	}
}

// isZombie reports whether a process has ended and only its parent has not asked.
func isZombie(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(data), ") Z ")
}

// Output beyond the limit does not undo the run.
func TestLongOutputCounts(t *testing.T) {
	s := newShell(t)
	long := "echo x >> ledger.txt; head -c 9000000 /dev/zero"
	if e := s.run("k", "sh", "-c", long); e.status != 0 || len(e.stdout) != 9_000_000 {
		t.Errorf("first: status %d, %d bytes, %s", e.status, len(e.stdout), e.stderr)
	}
	if e := s.run("k", "sh", "-c", long); e.status != exitGone || s.lines("ledger.txt") != 1 {
		t.Errorf("second: status %d, %s", e.status, e.stderr)
	}
}
