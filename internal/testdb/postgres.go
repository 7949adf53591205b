package testdb

import (
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
	"sync/atomic"
	"syscall"
	"testing"
)

// superuser is the role that every URL logs in with.
const superuser = "postgres"

// PG is a PostgreSQL server. It trusts every connection of the machine.
type PG struct {
	bin     string
	dir     string
	owner   *credential
	port    int
	proc    *process
	counter atomic.Int64 // numbers databases and roles
}

// PGOptions are the options of [StartPostgres].
type PGOptions struct {
	// Parent is the folder in which the data directory is made, the system's temporary folder when
	// it is "". Every user must be able to pass through it: PostgreSQL does not run as root. When the
	// test binary is killed, the files there stay.
	Parent string

	// Settings are lines of postgresql.conf, as in {"max_connections": "10"}. A value is quoted when
	// it is written. They win over testdb's own.
	Settings map[string]string
}

// Postgres returns the PostgreSQL server that the tests of this binary share. The first call starts
// it. The test is skipped when PostgreSQL is not installed, or fails when IDEM_TEST_REQUIRE asks for
// it.
func Postgres(tb testing.TB) *PG {
	tb.Helper()
	pg, err := session.postgres.get(func() (*PG, error) { return startPostgres(PGOptions{}) })
	need(tb, "postgres", err)
	return pg
}

// StartPostgres starts a PostgreSQL server of the test's own, which goes when the test ends. It skips
// and fails as [Postgres] does.
func StartPostgres(tb testing.TB, o PGOptions) *PG {
	tb.Helper()
	pg, err := startPostgres(o)
	need(tb, "postgres", err)
	tb.Cleanup(func() { release(pg) })
	return pg
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

// Database makes an empty database, which goes when the test ends, whoever is still connected, and
// returns its URL as superuser.
func (pg *PG) Database(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("test%d", pg.counter.Add(1))
	// template0 admits no connections, so none can block the copy.
	pg.Exec(tb, "postgres", "CREATE DATABASE "+name+" TEMPLATE template0")
	tb.Cleanup(func() {
		if pg.proc.alive() { // else the test killed it, and the database goes with its server
			pg.Exec(tb, "postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		}
	})
	return pg.URL(superuser, name)
}

// Role makes a role that may log in, with attributes such as "NOINHERIT" or "IN ROLE app", and returns
// its name. It has no right but what it is granted, and stays until the server goes.
func (pg *PG) Role(tb testing.TB, attributes ...string) string {
	tb.Helper()
	name := fmt.Sprintf("role%d", pg.counter.Add(1))
	pg.Exec(tb, "postgres", "CREATE ROLE "+name+" LOGIN "+strings.Join(attributes, " "))
	return name
}

// Exec runs a statement as superuser in a database, named by its name or its URL, and returns the
// first column of its rows.
func (pg *PG) Exec(tb testing.TB, database, sql string) []string {
	tb.Helper()
	column, err := pg.exec(database, sql)
	if err != nil {
		tb.Fatalf("testdb: %s: %v", sql, err)
	}
	return column
}

func (pg *PG) exec(database, sql string) ([]string, error) {
	return pgQuery(pg.Addr(), databaseName(database), sql)
}

func pgQuery(addr, database, sql string) ([]string, error) {
	c, err := pgConnect(addr, superuser, database)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.query(sql)
}

// databaseName returns the name in a database's URL, or the name itself.
func databaseName(database string) string {
	if u, err := url.Parse(database); err == nil && u.Scheme != "" {
		return strings.TrimPrefix(u.Path, "/")
	}
	return database
}

// leadsTo returns an error unless this server answers at addr: its data directory tells it from one of
// another test binary that took the port.
func leadsTo(pg *PG, addr, database string) error {
	dir, err := pgQuery(addr, database, "SHOW data_directory")
	if err == nil && !slices.Equal(dir, []string{pg.data()}) {
		err = errors.New("another server answers on its port")
	}
	return err
}

// Kill ends the server and all its backends at once, as a power cut of the machine's processes. What
// the kernel has in its cache survives; what PostgreSQL has in memory does not.
func (pg *PG) Kill(tb testing.TB) {
	tb.Helper()
	if !pg.proc.alive() {
		tb.Fatalf("testdb: PostgreSQL does not run, so it cannot be killed; %s", tail(pg.log()))
	}
	pg.proc.kill()
}

// Restart starts the server again, after Kill, after Stop or while it runs, on the same port and data.
// It returns when the server answers, crash recovery included.
func (pg *PG) Restart(tb testing.TB) {
	tb.Helper()
	pg.Stop()
	if err := pg.start(false); err != nil {
		tb.Fatal(err)
	}
}

// Stop shuts the server down in order: it ends all connections and flushes everything.
func (pg *PG) Stop() { pg.proc.stop(os.Interrupt) }

func (pg *PG) discard() {
	if pg.proc != nil {
		pg.proc.stop(quitSignal)
	}
	removeSharedMemory(filepath.Join(pg.data(), "postmaster.pid"))
	os.RemoveAll(pg.dir)
}

func (pg *PG) data() string { return filepath.Join(pg.dir, "data") }
func (pg *PG) log() string  { return filepath.Join(pg.dir, "log") }

func startPostgres(o PGOptions) (*PG, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := serverDir(o.Parent, "postgres")
	if err != nil {
		return nil, err
	}
	pg := &PG{bin: bin, dir: dir, owner: owner}
	if err = pg.initialise(o.Settings); err == nil {
		err = pg.start(true)
	}
	if err != nil {
		pg.discard()
		return nil, err
	}
	manage(pg)
	return pg, nil
}

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
	p, err := startProcess(cmd, pg.owner, syscall.SIGKILL, pg.log())
	if err != nil {
		return err
	}
	<-p.done
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("testdb: initdb: %v; %s", cmd.ProcessState, tail(pg.log()))
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
func (pg *PG) start(pick bool) (err error) {
	return retry(func() error {
		if pick {
			if pg.port, err = freePort(); err != nil {
				return err
			}
		}
		return pg.startOnce()
	})
}

// errEnded says that a server ended while its start was waited for.
var errEnded = errors.New("it ended at once")

func (pg *PG) startOnce() error {
	cmd := exec.Command(filepath.Join(pg.bin, "postgres"), "-D", pg.data(), "-p", strconv.Itoa(pg.port))
	cmd.Dir, cmd.Env = pg.dir, pgEnv()
	// SIGQUIT is the immediate shutdown, which takes the backends along.
	p, err := startProcess(cmd, pg.owner, quitSignal, pg.log())
	if err != nil {
		return err
	}
	pg.proc = p
	if err := writePID(pg.dir, p); err != nil {
		return err
	}
	var last error
	answers := poll(func() bool {
		if !p.alive() {
			last = errEnded
			return true
		}
		last = leadsTo(pg, pg.Addr(), "postgres")
		return last == nil
	})
	if !answers || last != nil {
		return fmt.Errorf("testdb: PostgreSQL does not start: %w; %s", last, tail(pg.log()))
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
