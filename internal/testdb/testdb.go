package testdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// session is what the running test binary owns.
// lint:const a server is shared by all tests of a binary and is stopped by its TestMain: that is process-wide by nature
var session struct {
	mu      sync.Mutex
	running bool // within Main
	spawner *spawner
	dir     *ownedDir
	servers []server // in the order of their start

	postgres lazy[*PG]
	redis    lazy[*RedisServer]
}

// server is what Main stops at the end.
type server interface {
	// discard stops the server without care for its data and removes its files.
	discard()
}

// lazy is a server that starts when it is first asked for.
type lazy[S any] struct {
	once sync.Once
	srv  S
	err  error
}

// get starts the server on the first call. Its error is that of every later call, too: what failed to
// start once is not tried again by each of a hundred tests.
func (l *lazy[S]) get(start func() (S, error)) (S, error) {
	l.once.Do(func() {
		l.err = errors.New("testdb: its start did not return") // stays when start ends in a panic
		l.srv, l.err = start()
	})
	return l.srv, l.err
}

// Main runs the tests of a package, stops every server that they started, removes the servers' files,
// calls the functions in after and exits. It is the whole body of a TestMain. The functions in after
// fail the package by returning an error; they run when none of testdb's goroutines is left, which
// makes this the place for goleak:
//
//	func TestMain(m *testing.M) { testdb.Main(m, func() error { return goleak.Find() }) }
func Main(m interface{ Run() int }, after ...func() error) {
	os.Exit(run(m, after))
}

func run(m interface{ Run() int }, after []func() error) (code int) {
	session.mu.Lock()
	session.running = true
	session.mu.Unlock()
	code = m.Run()
	shutdown()
	for _, f := range after {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// shutdown stops the servers, the newest first: a replica goes before its master.
func shutdown() {
	session.mu.Lock()
	defer session.mu.Unlock()
	session.running = false
	for _, s := range slices.Backward(session.servers) {
		s.discard()
	}
	session.servers = nil
	if session.spawner != nil {
		session.spawner.stop()
		session.spawner = nil
	}
	if session.dir != nil {
		session.dir.remove()
		session.dir = nil
	}
}

// open makes ready what every server needs: the folder and the thread that starts processes.
func open() (dir string, err error) {
	session.mu.Lock()
	defer session.mu.Unlock()
	if !session.running {
		return "", errors.New("testdb: servers would never be stopped: call testdb.Main in the package's TestMain")
	}
	if session.spawner == nil {
		session.spawner = newSpawner()
	}
	if session.dir == nil {
		removeStale(os.TempDir())
		if session.dir, err = newOwnedDir(os.TempDir()); err != nil {
			return "", err
		}
	}
	return session.dir.path, nil
}

// serverDir makes a folder for one server, in parent or, when that is "", in the session's folder.
func serverDir(parent, name string) (string, error) {
	base, err := open()
	if err != nil {
		return "", err
	}
	if parent == "" {
		parent = base
	}
	dir, err := os.MkdirTemp(parent, name+"-")
	if err != nil {
		return "", err
	}
	// Another user's server passes through it.
	return dir, os.Chmod(dir, 0o711)
}

// manage makes Main stop s, in case that no test does.
func manage(s server) {
	session.mu.Lock()
	defer session.mu.Unlock()
	session.servers = append(session.servers, s)
}

// release stops s now.
func release(s server) {
	session.mu.Lock()
	session.servers = slices.DeleteFunc(session.servers, func(other server) bool { return other == s })
	session.mu.Unlock()
	s.discard()
}

// need skips the test when err says that a server is not installed, and fails it when there is another
// error or when the environment requires that server. name is the server's in IDEM_TEST_REQUIRE.
func need(tb testing.TB, name string, err error) {
	tb.Helper()
	var absent *notInstalledError
	switch {
	case err == nil:
	case !errors.As(err, &absent):
		tb.Fatal(err)
	case required(name):
		tb.Fatalf("%v, and IDEM_TEST_REQUIRE asks for %s", err, name)
	default:
		tb.Skip(err)
	}
}

func required(name string) bool {
	for want := range strings.SplitSeq(os.Getenv("IDEM_TEST_REQUIRE"), ",") {
		if want = strings.TrimSpace(want); want == name || want == "all" {
			return true
		}
	}
	return false
}

// notInstalledError says that the machine lacks a server.
type notInstalledError struct{ what, detail string }

func (e *notInstalledError) Error() string {
	return fmt.Sprintf("%s is not installed%s: make test installs it", e.what, e.detail)
}

// tail returns the last lines of a server's log.
func tail(log string) string {
	const lines = 20
	text, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return filepath.Base(log) + " ends with:\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}
