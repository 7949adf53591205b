package testdb

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// bouncer is a PgBouncer in front of a PG.
type bouncer struct {
	dir  string
	port int
	proc *process
}

// PgBouncer starts a PgBouncer that pools the connections to a server by transaction, and returns the
// URL of a database, given by its name or its URL, through it. It goes when the test ends. Settings
// are lines of its configuration, such as "default_pool_size=2", and win over testdb's own. The test
// is skipped when PgBouncer is not installed, or fails when IDEM_TEST_REQUIRE asks for it; it is
// skipped as well when it sets max_prepared_statements and the installed version is older than 1.21,
// which brought them.
func PgBouncer(tb testing.TB, pg *PG, database string, settings ...string) string {
	tb.Helper()
	bin, version, err := bouncerBin()
	need(tb, "pgbouncer", err)
	const preparedSince = 21
	settings = slices.DeleteFunc(slices.Clone(settings), func(line string) bool {
		name, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(name) != "max_prepared_statements" || version >= preparedSince {
			return false
		}
		if n, err := strconv.Atoi(strings.TrimSpace(value)); err != nil || n != 0 {
			tb.Skipf("PgBouncer 1.%d knows no prepared statements, 1.%d does", version, preparedSince)
		}
		return true
	})
	database = databaseName(database)
	b, err := startBouncer(bin, pg, database, settings)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { release(b) })
	return pgURL(address(b.port), superuser, database)
}

func startBouncer(bin string, pg *PG, database string, settings []string) (*bouncer, error) {
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := serverDir("", "pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &bouncer{dir: dir}
	err = retry(func() error {
		if b.port, err = freePort(); err != nil {
			return err
		}
		return b.start(bin, owner, pg, database, settings)
	})
	if err != nil {
		b.discard()
		return nil, err
	}
	manage(b)
	return b, nil
}

func (b *bouncer) start(bin string, owner *credential, pg *PG, database string, settings []string) error {
	users, config := filepath.Join(b.dir, "users"), filepath.Join(b.dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\n", pg.port) +
		fmt.Sprintf("listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n", b.port) +
		fmt.Sprintf("auth_type = trust\nauth_file = %s\n", users) +
		"pool_mode = transaction\nmax_client_conn = 1000\nserver_login_retry = 1\n" +
		strings.Join(settings, "\n") + "\n"
	// Both are read by the user that PgBouncer runs as, which is never root.
	err := errors.Join(
		os.WriteFile(users, []byte(fmt.Sprintf("%q \"\"\n", superuser)), 0o644),
		os.WriteFile(config, []byte(text), 0o644),
	)
	if err != nil {
		return err
	}
	cmd := exec.Command(bin, config)
	cmd.Dir, cmd.Env = b.dir, pgEnv()
	p, err := startProcess(cmd, owner, syscall.SIGKILL, b.log())
	if err != nil {
		return err
	}
	b.proc = p
	if err := writePID(b.dir, p); err != nil {
		return err
	}
	var last error
	answers := poll(func() bool {
		if !p.alive() {
			last = errEnded
			return true
		}
		last = leadsTo(pg, address(b.port), database)
		return last == nil
	})
	if !answers || last != nil {
		return fmt.Errorf("testdb: PgBouncer does not start: %w; %s", last, tail(b.log()))
	}
	return nil
}

func (b *bouncer) discard() {
	if b.proc != nil {
		b.proc.kill()
	}
	os.RemoveAll(b.dir)
}

func (b *bouncer) log() string { return filepath.Join(b.dir, "log") }

// bouncerBin returns the program and the second number of its version, whose first is 1.
func bouncerBin() (bin string, version int, err error) {
	if bin, err = exec.LookPath("pgbouncer"); err != nil {
		bin = "/usr/sbin/pgbouncer" // Debian keeps it out of an ordinary user's PATH
		if _, err := os.Stat(bin); err != nil {
			return "", 0, &notInstalledError{what: "PgBouncer"}
		}
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "", 0, fmt.Errorf("testdb: pgbouncer --version: %w", err)
	}
	if _, err := fmt.Sscanf(string(out), "PgBouncer 1.%d", &version); err != nil {
		return "", 0, fmt.Errorf("testdb: pgbouncer --version says %q: %w", out, err)
	}
	return bin, version, nil
}
