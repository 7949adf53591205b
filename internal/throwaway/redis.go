package throwaway

import (
	"context"
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
)

// Redis is a Redis server, or a sentinel. Kill, Stop and Restart are not for concurrent
// use.
type Redis struct {
	host     *Host
	bin      string
	dir      string
	args     []string // behind the configuration file
	env      []string
	port     int
	password string
	proc     *process
}

// RedisOptions are the options of a Redis server.
type RedisOptions struct {
	// Args are those of redis-server, as in "--appendonly", "yes". Without any, the
	// server writes nothing to disk.
	Args []string
	// Env is what its environment has beside that of this process.
	Env []string
	// Lines, when set, returns further lines of redis.conf, which may depend on the port.
	Lines func(port int) (string, error)
}

// Redis starts a Redis server. The error matches [ErrNotInstalled] when the machine lacks
// one. ctx governs the start only.
func (h *Host) Redis(ctx context.Context, o RedisOptions) (*Redis, error) {
	given, err := redisConfig(o.Args)
	if err != nil {
		return nil, err
	}
	return h.startRedis(ctx, "redis", nil, o.Env, password(o.Args), func(port int, dir string) (text string, err error) {
		if o.Lines != nil {
			if text, err = o.Lines(port); err != nil {
				return "", err
			}
		}
		return "protected-mode no\nsave \"\"\nrepl-diskless-sync-delay 0\n" + text + given, nil
	})
}

// startRedis starts redis-server in one of its roles, with the lines of its
// configuration.
func (h *Host) startRedis(ctx context.Context, role string, args, env []string, password string, lines func(port int, dir string) (string, error)) (*Redis, error) {
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	bin, err := redisBin()
	if err != nil {
		return nil, err
	}
	dir, err := h.serverDir("", role)
	if err != nil {
		return nil, err
	}
	r := &Redis{host: h, bin: bin, dir: dir, args: args, env: env, password: password}
	err = retry(func() error {
		if r.port, err = freePort(); err != nil {
			return err
		}
		extra, err := lines(r.port, dir)
		if err != nil {
			return err
		}
		// A file and no arguments: Redis and Sentinel write what they become, such as the replica of
		// a new master, into the file, and a restart must not undo that.
		text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %q\n", r.port, dir) + extra
		if err := os.WriteFile(r.config(), []byte(text), 0o600); err != nil {
			return err
		}
		return r.start(ctx)
	})
	if err != nil {
		r.discard()
		return nil, err
	}
	h.manage(r)
	return r, nil
}

// password is what the arguments of redis-server set.
func password(args []string) string {
	if i := slices.Index(args, "--requirepass"); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// Addr returns the server's address, host and port.
func (r *Redis) Addr() string { return address(r.port) }

// URL returns the URL of the server's database 0, with the password if it has one.
func (r *Redis) URL() string {
	u := url.URL{Scheme: "redis", Host: r.Addr(), Path: "/0"}
	if r.password != "" {
		u.User = url.UserPassword("", r.password)
	}
	return u.String()
}

// Dir returns the folder of the server's files.
func (r *Redis) Dir() string { return r.dir }

// Do sends one command and returns its answer, an array's elements one per line.
func (r *Redis) Do(command ...string) (string, error) {
	return RedisDo(r.Addr(), r.password, command...)
}

// Version returns the server's version, such as "7.2.4".
func (r *Redis) Version() (string, error) { return r.info("redis_version") }

// Settings returns the settings that decide what a write costs and survives.
func (r *Redis) Settings() (map[string]string, error) {
	settings := make(map[string]string)
	for _, name := range []string{"appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy"} {
		got, err := r.Do("CONFIG", "GET", name)
		if err != nil {
			return nil, err
		}
		_, settings[name], _ = strings.Cut(got, "\n")
	}
	return settings, nil
}

// PID returns the number of the server's process.
func (r *Redis) PID() int { return r.proc.pid() }

// PIDs returns the numbers of the server's processes: itself, and one that writes a file.
func (r *Redis) PIDs() []int { return r.proc.family() }

// Alive reports whether the server runs.
func (r *Redis) Alive() bool { return r.proc.alive() }

// Log returns the end of the server's log.
func (r *Redis) Log() string { return tail(r.log()) }

// Kill ends the server at once. What it has handed to the kernel survives.
func (r *Redis) Kill() error {
	if !r.proc.alive() {
		return fmt.Errorf("throwaway: Redis does not run, so it cannot be killed; %s", tail(r.log()))
	}
	r.proc.kill()
	return nil
}

// Restart starts the server again, after Kill, after Stop or while it runs, on the same port and
// files. It returns when the server answers, which is after it has read them.
func (r *Redis) Restart(ctx context.Context) error {
	ctx, done, err := r.host.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	r.Stop()
	return r.start(ctx)
}

// Stop shuts the server down in order: what its settings tell it to persist, it persists.
func (r *Redis) Stop() { r.proc.stop(syscall.SIGTERM) }

// Close stops the server and removes its files.
func (r *Redis) Close() { r.host.release(r) }

func (r *Redis) discard() {
	if r.proc != nil {
		r.proc.kill()
	}
	os.RemoveAll(r.dir)
}

func (r *Redis) config() string { return filepath.Join(r.dir, "redis.conf") }
func (r *Redis) log() string    { return filepath.Join(r.dir, "log") }

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
			return "", fmt.Errorf("throwaway: the first argument of redis-server is %q, want one that starts with --", arg)
		}
		lines.WriteString(" " + strconv.Quote(arg))
	}
	return lines.String() + "\n", nil
}

func (r *Redis) start(ctx context.Context) error {
	cmd := exec.Command(r.bin, append([]string{r.config()}, r.args...)...)
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), r.env...)
	p, err := r.host.startProcess(cmd, nil, syscall.SIGKILL, r.log())
	if err != nil {
		return err
	}
	r.proc = p
	if err := writePID(r.dir, p); err != nil {
		return err
	}
	var last error
	answers := Poll(ctx, func() bool {
		if !p.alive() {
			last = errEnded
			return true
		}
		if _, last = r.Do("PING"); last != nil {
			return false // such as LOADING, while it reads its files
		}
		// Its process number tells this server from one of another process that took the port.
		if last = r.InfoIs("process_id", strconv.Itoa(p.pid())); last != nil {
			last = fmt.Errorf("another server answers on its port: %w", last)
		}
		return last == nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !answers || last != nil {
		return fmt.Errorf("throwaway: Redis does not start: %w; %s", last, tail(r.log()))
	}
	return nil
}

// InfoIs returns an error unless a line of INFO has the value.
func (r *Redis) InfoIs(name, want string) error {
	got, err := r.info(name)
	if err == nil && got != want {
		err = fmt.Errorf("INFO says %s is %q, want %q", name, got, want)
	}
	return err
}

func (r *Redis) info(name string) (string, error) {
	text, err := r.Do("INFO")
	return redisField(text, name), err
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

func noRedis(detail string) error {
	return &NotInstalledError{"Redis", detail, "redis-server", "redis"}
}

// RedisInstalled returns nil, or why no Redis server can start here.
func RedisInstalled() error {
	_, err := redisBin()
	return err
}

func redisBin() (string, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return "", noRedis("")
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("throwaway: redis-server --version: %w", err)
	}
	_, version, _ := strings.Cut(string(out), "v=")
	digits, _, _ := strings.Cut(version, ".")
	if major, err := strconv.Atoi(digits); err != nil || major < oldestRedis {
		return "", noRedis(fmt.Sprintf(" in version %d or later (%s has %q)", oldestRedis, bin, digits))
	}
	return bin, nil
}

// RedisDo sends one command to a server, on a connection of its own, and returns its answer, an
// array's elements one per line.
func RedisDo(addr, password string, command ...string) (string, error) {
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
