package testdb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goidem/idem/internal/throwaway"
)

// childEnv makes this test binary a child of one of its tests.
const childEnv = "IDEM_TESTDB_CHILD"

func TestMain(m *testing.M) {
	noLeaks := func() error { return goleak.Find() }
	if os.Getenv(childEnv) != "" {
		Main(child{}, noLeaks)
	}
	Main(m, noLeaks)
}

// child starts servers, says where, and ends when its input does, unless it is killed before.
type child struct{}

func (child) Run() int {
	ctx := context.Background()
	pg, err := startPostgres(ctx, PGOptions{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	r, err := startRedis(ctx, throwaway.RedisOptions{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("started", pg.Addr(), r.Addr(), session.host.Dir())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// startChild starts a child that owns servers, in a temporary folder of its own, and returns their
// addresses and the child's folder. Closing stdin ends it.
func startChild(t *testing.T) (cmd *exec.Cmd, stdin io.Closer, addrs []string, dir string) {
	t.Helper()
	Postgres(t) // both skip where a server is missing
	Redis(t)
	tmp, err := os.MkdirTemp("", "idem-child-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o711); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	f := strings.Fields(line)
	if len(f) != 4 || f[0] != "started" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the child says %q", line)
	}
	return cmd, in, f[1:3], f[3]
}

func TestMainLeavesNothing(t *testing.T) {
	t.Parallel()
	cmd, stdin, addrs, dir := startChild(t)
	for _, addr := range addrs {
		if refuses(addr) {
			t.Errorf("no server at %s", addr)
		}
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the child ends with %v", err)
	}
	for _, addr := range addrs {
		if !refuses(addr) {
			t.Errorf("the server at %s outlives Main", addr)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the files: %v, want them removed", err)
	}
}

func TestKilledBinaryLeavesNoServer(t *testing.T) {
	t.Parallel()
	cmd, _, addrs, dir := startChild(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	// Linux ends the servers by itself, other systems when the next binary looks for stale files. Its
	// look is played with a folder that is old enough.
	tmp := filepath.Dir(dir)
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, past, past); err != nil {
		t.Fatal(err)
	}
	look := func() {
		next, err := throwaway.New(tmp)
		if err != nil {
			t.Fatal(err)
		}
		next.Close()
	}
	if runtime.GOOS != "linux" {
		look()
	}
	for _, addr := range addrs {
		if !throwaway.Poll(t.Context(), func() bool { return refuses(addr) }) {
			t.Errorf("the server at %s outlives its test binary", addr)
		}
	}
	look()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the killed binary's files: %v, want them removed", err)
	}
}

func refuses(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		conn.Close()
	}
	return err != nil
}

// recorder is a testing.TB that notes how a test would end.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Skip(args ...any)          { r.skipped = fmt.Sprint(args...) }
func (r *recorder) Fatal(args ...any)         { r.failed = fmt.Sprint(args...) }
func (r *recorder) Fatalf(f string, a ...any) { r.failed = fmt.Sprintf(f, a...) }

func TestAbsentServer(t *testing.T) {
	absent := fmt.Errorf("wrapped: %w", &throwaway.NotInstalledError{Server: "Redis"})
	for _, tt := range []struct {
		name, require string
		err           error
		skips, fails  string
	}{
		{name: "there"},
		{name: "skipped", err: absent, skips: "Redis is not installed: make test installs it"},
		{name: "another is required", require: "postgres,pgbouncer", err: absent, skips: "make test installs it"},
		{name: "required", require: "postgres, redis", err: absent, fails: "IDEM_TEST_REQUIRE asks for redis"},
		{name: "all required", require: "all", err: absent, fails: "IDEM_TEST_REQUIRE asks for redis"},
		{name: "broken", err: errors.New("it burns"), fails: "it burns"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("IDEM_TEST_REQUIRE", tt.require)
			r := &recorder{TB: t}
			need(r, "redis", tt.err)
			if !strings.Contains(r.skipped, tt.skips) || (r.skipped == "") != (tt.skips == "") {
				t.Errorf("it skips with %q, want %q", r.skipped, tt.skips)
			}
			if !strings.Contains(r.failed, tt.fails) || (r.failed == "") != (tt.fails == "") {
				t.Errorf("it fails with %q, want %q", r.failed, tt.fails)
			}
		})
	}
}
