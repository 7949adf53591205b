package throwaway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// superuser is the role that every URL logs in with.
const superuser = "postgres"

// PG is a PostgreSQL server. It trusts every connection of the machine. Kill, Stop and
// Restart are not for concurrent use.
type PG struct {
	host  *Host
	bin   string
	dir   string
	owner *credential
	port  int
	proc  *process
}

// PGOptions are the options of a PostgreSQL server.
type PGOptions struct {
	// Parent is the folder in which the data directory is made, that of the host when it is "".
	// Every user must be able to pass through it: PostgreSQL does not run as root. When the process
	// is killed, the files there stay.
	Parent string

	// Settings are lines of postgresql.conf, as in {"max_connections": "10"}. A value is quoted when
	// it is written. They win over the durable defaults.
	Settings map[string]string
}

// Postgres starts a PostgreSQL server. The error matches [ErrNotInstalled] when the
// machine lacks one. ctx governs the start only.
func (h *Host) Postgres(ctx context.Context, o PGOptions) (*PG, error) {
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := h.serverDir(o.Parent, "postgres")
	if err != nil {
		return nil, err
	}
	pg := &PG{host: h, bin: bin, dir: dir, owner: owner}
	if err = pg.initialise(o.Settings); err == nil {
		err = pg.start(ctx, true)
	}
	if err != nil {
		pg.discard()
		return nil, err
	}
	h.manage(pg)
	return pg, nil
}

// Addr returns the server's address, host and port.
func (pg *PG) Addr() string { return address(pg.port) }

// AdminURL returns the URL of the maintenance database, as superuser.
func (pg *PG) AdminURL() string { return pg.URL(superuser, "postgres") }

// URL returns the URL of a database for a role.
func (pg *PG) URL(role, database string) string { return pgURL(pg.Addr(), role, database) }

func pgURL(addr, role, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(role), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Exec runs a statement as superuser in a database, named by its name or its URL, and returns the
// first column of its rows.
func (pg *PG) Exec(database, sql string) ([]string, error) {
	return pgQuery(pg.Addr(), DatabaseName(database), sql)
}

// CreateDatabase makes an empty database and returns its URL as superuser.
func (pg *PG) CreateDatabase(name string) (string, error) {
	// template0 admits no connections, so none can block the copy.
	_, err := pg.Exec("postgres", "CREATE DATABASE "+name+" TEMPLATE template0")
	return pg.URL(superuser, name), err
}

// Version returns the server's version, such as "15.4".
func (pg *PG) Version() (string, error) {
	got, err := pg.Exec("postgres", "SHOW server_version")
	if err != nil || len(got) == 0 {
		return "", err
	}
	version, _, _ := strings.Cut(got[0], " ") // behind it, how it was packaged
	return version, nil
}

// Settings returns the settings that decide what a commit costs and survives.
func (pg *PG) Settings() (map[string]string, error) {
	settings := make(map[string]string)
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "commit_delay", "shared_buffers", "max_wal_size"} {
		got, err := pg.Exec("postgres", "SHOW "+name)
		if err != nil {
			return nil, err
		}
		settings[name] = strings.Join(got, "")
	}
	return settings, nil
}

// PID returns the number of the server's first process.
func (pg *PG) PID() int { return pg.proc.pid() }

// PIDs returns the numbers of the server's processes, its backends included.
func (pg *PG) PIDs() []int { return pg.proc.family() }

// Alive reports whether the server's first process runs.
func (pg *PG) Alive() bool { return pg.proc.alive() }

// Log returns the end of the server's log.
func (pg *PG) Log() string { return tail(pg.log()) }

func pgQuery(addr, database, sql string) ([]string, error) {
	c, err := Connect(addr, superuser, database)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Query(sql)
}

// DatabaseName returns the name in a database's URL, or the name itself.
func DatabaseName(database string) string {
	if u, err := url.Parse(database); err == nil && u.Scheme != "" {
		return strings.TrimPrefix(u.Path, "/")
	}
	return database
}

// leadsTo returns an error unless this server answers at addr: its data directory tells it from one of
// another process that took the port.
func (pg *PG) leadsTo(addr, database string) error {
	dir, err := pgQuery(addr, database, "SHOW data_directory")
	if err == nil && !slices.Equal(dir, []string{pg.data()}) {
		err = errors.New("another server answers on its port")
	}
	return err
}

// Kill ends the server and all its backends at once, as a power cut of the machine's processes. What
// the kernel has in its cache survives; what PostgreSQL has in memory does not.
func (pg *PG) Kill() error {
	if !pg.proc.alive() {
		return fmt.Errorf("throwaway: PostgreSQL does not run, so it cannot be killed; %s", tail(pg.log()))
	}
	pg.proc.kill()
	return nil
}

// Restart starts the server again, after Kill, after Stop or while it runs, on the same port and data.
// It returns when the server answers, crash recovery included.
func (pg *PG) Restart(ctx context.Context) error {
	ctx, done, err := pg.host.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	pg.Stop()
	return pg.start(ctx, false)
}

// Stop shuts the server down in order: it ends all connections and flushes everything.
func (pg *PG) Stop() { pg.proc.stop(os.Interrupt) }

// Close stops the server and removes its files.
func (pg *PG) Close() { pg.host.release(pg) }

func (pg *PG) discard() {
	if pg.proc != nil {
		pg.proc.stop(quitSignal)
	}
	removeSharedMemory(filepath.Join(pg.data(), "postmaster.pid"))
	os.RemoveAll(pg.dir)
}

func (pg *PG) data() string { return filepath.Join(pg.dir, "data") }
func (pg *PG) log() string  { return filepath.Join(pg.dir, "log") }

// initialise makes the data directory.
func (pg *PG) initialise(extra map[string]string) error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": pg.data(),
		"fsync":                   "on",
		"synchronous_commit":      "on",
		"full_page_writes":        "on",
		"max_connections":         "300",
		"shared_buffers":          "256MB",
		"max_wal_size":            "4GB",
		"timezone":                "UTC",
	}
	if len(pg.data()) > 80 { // a socket's path has room for 103 bytes on the meanest system
		settings["unix_socket_directories"] = ""
	}
	maps.Copy(settings, extra)

	if err := pg.owner.own(pg.dir); err != nil {
		return err
	}
	// Losing an empty cluster loses nothing, so initdb alone may skip flushing.
	cmd := exec.Command(filepath.Join(pg.bin, "initdb"), "-D", pg.data(), "-U", superuser,
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir, cmd.Env = pg.dir, pgEnv()
	p, err := pg.host.startProcess(cmd, pg.owner, syscall.SIGKILL, pg.log())
	if err != nil {
		return err
	}
	<-p.done
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("throwaway: initdb: %v; %s", cmd.ProcessState, tail(pg.log()))
	}
	f, err := os.OpenFile(filepath.Join(pg.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		_, err = fmt.Fprintf(f, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
		if err != nil {
			break
		}
	}
	return errors.Join(err, f.Close())
}

// start starts the server on its port, or on a free one when pick is set, and waits until it answers.
func (pg *PG) start(ctx context.Context, pick bool) (err error) {
	return retry(func() error {
		if pick {
			if pg.port, err = freePort(); err != nil {
				return err
			}
		}
		return pg.startOnce(ctx)
	})
}

// errEnded says that a server ended while its start was waited for.
var errEnded = errors.New("it ended at once")

func (pg *PG) startOnce(ctx context.Context) error {
	cmd := exec.Command(filepath.Join(pg.bin, "postgres"), "-D", pg.data(), "-p", strconv.Itoa(pg.port))
	cmd.Dir, cmd.Env = pg.dir, pgEnv()
	// SIGQUIT is the immediate shutdown, which takes the backends along.
	p, err := pg.host.startProcess(cmd, pg.owner, quitSignal, pg.log())
	if err != nil {
		return err
	}
	pg.proc = p
	if err := writePID(pg.dir, p); err != nil {
		return err
	}
	var last error
	answers := Poll(ctx, func() bool {
		if !p.alive() {
			last = errEnded
			return true
		}
		last = pg.leadsTo(pg.Addr(), "postgres")
		return last == nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !answers || last != nil {
		return fmt.Errorf("throwaway: PostgreSQL does not start: %w; %s", last, tail(pg.log()))
	}
	return nil
}

// pgEnv is the environment without the variables that PostgreSQL's programs and their locale obey.
func pgEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	return append(env, "LC_ALL=C")
}

func writePID(dir string, p *process) error {
	return os.WriteFile(filepath.Join(dir, pidFile), []byte(strconv.Itoa(p.pid())+"\n"), 0o644)
}
