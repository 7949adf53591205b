package throwaway

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// oldestPostgres is the first major version with everything that idem supports; it is also the first
// with DROP DATABASE ... WITH (FORCE).
const oldestPostgres = 13

// postgresBin finds the folder of PostgreSQL's server programs, which Debian and Homebrew keep out of
// PATH.
func postgresBin() (string, error) {
	if dir := os.Getenv("IDEM_TEST_PG_BIN"); dir != "" {
		if postgresVersion(dir) == 0 {
			return "", fmt.Errorf("throwaway: IDEM_TEST_PG_BIN is %s, where initdb and postgres are not", dir)
		}
		return dir, nil
	}
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // Red Hat, from PostgreSQL's own packages
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	best, newest := "", 0
	for _, dir := range dirs {
		if v := postgresVersion(dir); v > newest {
			best, newest = dir, v
		}
	}
	switch {
	case newest == 0:
		return "", noPostgres("")
	case newest < oldestPostgres:
		return "", noPostgres(fmt.Sprintf(" in version %d or later (%s has %d)", oldestPostgres, best, newest))
	}
	return best, nil
}

// postgresVersion returns the major version of the server programs in dir, 0 when they are not there.
func postgresVersion(dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	for word := range strings.FieldsSeq(string(out)) {
		major, _, _ := strings.Cut(word, ".")
		digits := strings.TrimRight(major, "abcdefghijklmnopqrstuvwxyz0123456789")
		if v, err := strconv.Atoi(strings.TrimRight(major, "abcdefghijklmnopqrstuvwxyz")); err == nil && digits == "" {
			return v
		}
	}
	return 0
}

// credential is the user that a server runs as; nil is that of this process.
type credential struct{ uid, gid uint32 }

// unprivileged returns whom PostgreSQL, which refuses to be root, runs as.
func unprivileged() (*credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &credential{uint32(uid), uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("throwaway: PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
}

// own gives a folder to the user.
func (c *credential) own(path string) error {
	if c == nil {
		return nil
	}
	return os.Chown(path, int(c.uid), int(c.gid))
}

func noPostgres(detail string) error {
	return &NotInstalledError{"PostgreSQL", detail, "postgresql", "postgresql@17"}
}
