package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

// session is what the running test binary owns.
// lint:const a server is shared by all tests of a binary and is stopped by its TestMain: that is process-wide by nature
var session struct {
	mu      sync.Mutex
	running bool // within Main
	host    *throwaway.Host

	postgres lazy[*PG]
	redis    lazy[*RedisServer]
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

// shutdown stops the servers.
func shutdown() {
	session.mu.Lock()
	host := session.host
	session.running, session.host = false, nil
	session.mu.Unlock()
	if host != nil {
		host.Close()
	}
}

// open returns the host of the servers.
func open() (*throwaway.Host, error) {
	session.mu.Lock()
	defer session.mu.Unlock()
	if !session.running {
		return nil, errors.New("testdb: servers would never be stopped: call testdb.Main in the package's TestMain")
	}
	if session.host == nil {
		host, err := throwaway.New("")
		if err != nil {
			return nil, err
		}
		session.host = host
	}
	return session.host, nil
}

// starting is the context of a start. A test that ends early does not end it: what
// starts may be shared.
func starting(tb testing.TB) context.Context { return context.WithoutCancel(tb.Context()) }

// need skips the test when err says that a server is not installed, and fails it when there is another
// error or when the environment requires that server. name is the server's in IDEM_TEST_REQUIRE.
func need(tb testing.TB, name string, err error) {
	tb.Helper()
	var absent *throwaway.NotInstalledError
	switch {
	case err == nil:
	case !errors.As(err, &absent):
		tb.Fatal(err)
	case required(name):
		tb.Fatalf("%s: make test installs it, and IDEM_TEST_REQUIRE asks for %s", absent.Missing(), name)
	default:
		tb.Skip(absent.Missing() + ": make test installs it")
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
