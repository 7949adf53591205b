package testdb

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// RedisServer is a Redis server.
type RedisServer struct {
	bin      string
	dir      string
	args     []string // behind the configuration file
	port     int
	password string
	proc     *process
}

// Redis returns the Redis server that the tests of this binary share. The first call starts it. It
// writes nothing to disk, and nobody flushes it: a test uses keys with a prefix of its own. The test is
// skipped when Redis is not installed, or fails when IDEM_TEST_REQUIRE asks for it.
func Redis(tb testing.TB) *RedisServer {
	tb.Helper()
	r, err := session.redis.get(func() (*RedisServer, error) { return startRedis(nil) })
	need(tb, "redis", err)
	return r
}

// StartRedis starts a Redis server of the test's own, which goes when the test ends. The arguments are
// those of redis-server, as in "--appendonly", "yes"; without any, it writes nothing to disk. It skips
// and fails as [Redis] does.
func StartRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	r, err := startRedis(args)
	need(tb, "redis", err)
	tb.Cleanup(func() { release(r) })
	return r
}

// Addr returns the server's address, host and port.
func (r *RedisServer) Addr() string { return address(r.port) }

// URL returns the URL of the server's database 0, with the password if it has one.
func (r *RedisServer) URL() string {
	u := url.URL{Scheme: "redis", Host: r.Addr(), Path: "/0"}
	if r.password != "" {
		u.User = url.UserPassword("", r.password)
	}
	return u.String()
}

// Dir returns the folder of the server's files.
func (r *RedisServer) Dir() string { return r.dir }

// Do sends one command and returns its answer, an array's elements one per line.
func (r *RedisServer) Do(tb testing.TB, command ...string) string {
	tb.Helper()
	answer, err := r.do(command...)
	if err != nil {
		tb.Fatalf("testdb: redis %s: %v", command[0], err)
	}
	return answer
}

func (r *RedisServer) do(command ...string) (string, error) {
	return redisDo(r.Addr(), r.password, command...)
}

// Kill ends the server at once. What it has handed to the kernel survives.
func (r *RedisServer) Kill(tb testing.TB) {
	tb.Helper()
	if !r.proc.alive() {
		tb.Fatalf("testdb: Redis does not run, so it cannot be killed; %s", tail(r.log()))
	}
	r.proc.kill()
}

// Restart starts the server again, after Kill, after Stop or while it runs, on the same port and
// files. It returns when the server answers, which is after it has read them.
func (r *RedisServer) Restart(tb testing.TB) {
	tb.Helper()
	r.Stop()
	if err := r.start(); err != nil {
		tb.Fatal(err)
	}
}

// Stop shuts the server down in order: what its settings tell it to persist, it persists.
func (r *RedisServer) Stop() { r.proc.stop(syscall.SIGTERM) }

func (r *RedisServer) discard() {
	if r.proc != nil {
		r.proc.kill()
	}
	os.RemoveAll(r.dir)
}

func (r *RedisServer) config() string { return filepath.Join(r.dir, "redis.conf") }
func (r *RedisServer) log() string    { return filepath.Join(r.dir, "log") }

func startRedis(args []string) (*RedisServer, error) {
	return startRedisWith(args, func(int) (string, error) { return "", nil })
}

// startRedisWith starts a server whose configuration has further lines, which may depend on its port.
func startRedisWith(args []string, lines func(port int) (string, error)) (*RedisServer, error) {
	bin, err := redisBin()
	if err != nil {
		return nil, err
	}
	given, err := redisConfig(args)
	if err != nil {
		return nil, err
	}
	dir, err := serverDir("", "redis")
	if err != nil {
		return nil, err
	}
	r := &RedisServer{bin: bin, dir: dir}
	if i := slices.Index(args, "--requirepass"); i >= 0 && i+1 < len(args) {
		r.password = args[i+1]
	}
	err = retry(func() error {
		if r.port, err = freePort(); err != nil {
			return err
		}
		extra, err := lines(r.port)
		if err != nil {
			return err
		}
		// A file and no arguments: Redis and Sentinel write what they become, such as the replica of
		// a new master, into the file, and a restart must not undo that.
		text := fmt.Sprintf("bind 127.0.0.1\nprotected-mode no\nport %d\ndir %q\n", r.port, dir) +
			"save \"\"\nrepl-diskless-sync-delay 0\n" + extra + given
		if err := os.WriteFile(r.config(), []byte(text), 0o600); err != nil {
			return err
		}
		return r.start()
	})
	if err != nil {
		r.discard()
		return nil, err
	}
	manage(r)
	return r, nil
}

// redisConfig makes lines of redis.conf of a command line.
func redisConfig(args []string) (string, error) {
	var lines strings.Builder
	for i, arg := range args {
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			if i > 0 {
				lines.WriteByte('\n')
			}
			lines.WriteString(name)
			continue
		}
		if i == 0 {
			return "", fmt.Errorf("testdb: the first argument of redis-server is %q, want one that starts with --", arg)
		}
		lines.WriteString(" " + strconv.Quote(arg))
	}
	return lines.String() + "\n", nil
}

func (r *RedisServer) start() error {
	cmd := exec.Command(r.bin, append([]string{r.config()}, r.args...)...)
	cmd.Dir = r.dir
	p, err := startProcess(cmd, nil, syscall.SIGKILL, r.log())
	if err != nil {
		return err
	}
	r.proc = p
	if err := writePID(r.dir, p); err != nil {
		return err
	}
	var last error
	answers := poll(func() bool {
		if !p.alive() {
			last = errEnded
			return true
		}
		if _, last = r.do("PING"); last != nil {
			return false // such as LOADING, while it reads its files
		}
		// Its process number tells this server from one of another test binary that took the port.
		if last = r.infoIs("process_id", strconv.Itoa(p.pid())); last != nil {
			last = fmt.Errorf("another server answers on its port: %w", last)
		}
		return last == nil
	})
	if !answers || last != nil {
		return fmt.Errorf("testdb: Redis does not start: %w; %s", last, tail(r.log()))
	}
	return nil
}

// infoIs returns an error unless a line of INFO has the value.
func (r *RedisServer) infoIs(name, want string) error {
	text, err := r.do("INFO")
	if err != nil {
		return err
	}
	if got := redisField(text, name); got != want {
		return fmt.Errorf("INFO says %s is %q, want %q", name, got, want)
	}
	return nil
}

// redisField finds the value of a name in what INFO and CLUSTER INFO answer.
func redisField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// oldestRedis is the first major version with everything that idem supports.
const oldestRedis = 7

func redisBin() (string, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return "", &notInstalledError{what: "Redis"}
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("testdb: redis-server --version: %w", err)
	}
	_, version, _ := strings.Cut(string(out), "v=")
	digits, _, _ := strings.Cut(version, ".")
	if major, err := strconv.Atoi(digits); err != nil || major < oldestRedis {
		return "", &notInstalledError{"Redis", fmt.Sprintf(" in version %d or later (%s has %q)", oldestRedis, bin, digits)}
	}
	return bin, nil
}

// redisDo speaks as much of Redis's protocol as testdb needs: one command on a connection of its own.
func redisDo(addr, password string, command ...string) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(soon()); err != nil {
		return "", err
	}
	c := newRESP(conn)
	if password != "" {
		if _, err := c.do("AUTH", password); err != nil {
			return "", err
		}
	}
	return c.do(command...)
}
