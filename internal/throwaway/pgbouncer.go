package throwaway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Bouncer is a PgBouncer in front of a PG.
type Bouncer struct {
	host *Host
	dir  string
	port int
	proc *process
}

// PgBouncer starts a PgBouncer that pools the connections to a server by transaction. Settings are
// lines of its configuration, such as "default_pool_size=2", and win over the defaults. The error
// matches [ErrNotInstalled] when the machine lacks one.
func (h *Host) PgBouncer(ctx context.Context, pg *PG, database string, settings ...string) (*Bouncer, error) {
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	bin, _, err := bouncerBin()
	if err != nil {
		return nil, err
	}
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := h.serverDir("", "pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &Bouncer{host: h, dir: dir}
	err = retry(func() error {
		if b.port, err = freePort(); err != nil {
			return err
		}
		return b.start(ctx, bin, owner, pg, DatabaseName(database), settings)
	})
	if err != nil {
		b.discard()
		return nil, err
	}
	h.manage(b)
	return b, nil
}

// BouncerVersion returns the second number of PgBouncer's version, whose first is 1.
func BouncerVersion() (int, error) {
	_, version, err := bouncerBin()
	return version, err
}

// URL returns the URL of a database, given by its name or its URL, through the pooler.
func (b *Bouncer) URL(database string) string {
	return pgURL(address(b.port), superuser, DatabaseName(database))
}

// Close stops it and removes its files.
func (b *Bouncer) Close() { b.host.release(b) }

func (b *Bouncer) start(ctx context.Context, bin string, owner *credential, pg *PG, database string, settings []string) error {
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
	p, err := b.host.startProcess(cmd, owner, syscall.SIGKILL, b.log())
	if err != nil {
		return err
	}
	b.proc = p
	if err := writePID(b.dir, p); err != nil {
		return err
	}
	var last error
	answers := Poll(ctx, func() bool {
		if !p.alive() {
			last = errEnded
			return true
		}
		last = pg.leadsTo(address(b.port), database)
		return last == nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !answers || last != nil {
		return fmt.Errorf("throwaway: PgBouncer does not start: %w; %s", last, tail(b.log()))
	}
	return nil
}

func (b *Bouncer) discard() {
	if b.proc != nil {
		b.proc.kill()
	}
	os.RemoveAll(b.dir)
}

func (b *Bouncer) log() string { return filepath.Join(b.dir, "log") }

// bouncerBin returns the program and the second number of its version, whose first is 1.
func bouncerBin() (bin string, version int, err error) {
	if bin, err = exec.LookPath("pgbouncer"); err != nil {
		bin = "/usr/sbin/pgbouncer" // Debian keeps it out of an ordinary user's PATH
		if _, err := os.Stat(bin); err != nil {
			return "", 0, &NotInstalledError{"PgBouncer", "", "pgbouncer", "pgbouncer"}
		}
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "", 0, fmt.Errorf("throwaway: pgbouncer --version: %w", err)
	}
	if _, err := fmt.Sscanf(string(out), "PgBouncer 1.%d", &version); err != nil {
		return "", 0, fmt.Errorf("throwaway: pgbouncer --version says %q: %w", out, err)
	}
	return bin, version, nil
}
