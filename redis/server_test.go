package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// infoServer answers INFO with text, or refuses it where text is empty, and knows
// no other command.
func infoServer(t *testing.T, info string) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
					args := make([]string, n)
					for i := range args {
						size, err := r.ReadString('\n')
						if err != nil {
							return
						}
						k, _ := strconv.Atoi(strings.TrimSpace(size[1:]))
						b := make([]byte, k+2)
						if _, err := io.ReadFull(r, b); err != nil {
							return
						}
						args[i] = strings.ToLower(string(b[:k]))
					}
					switch {
					case args[0] != "info":
						_, _ = fmt.Fprintf(c, "-ERR unknown command '%s'\r\n", args[0])
					case info == "":
						_, _ = fmt.Fprint(c, "-NOPERM this user has no permissions to run the 'info' command\r\n")
					default:
						_, _ = fmt.Fprintf(c, "$%d\r\n%s\r\n", len(info), info)
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestOldServerIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info, found string
		ok          bool
	}{
		{"# Server\r\nredis_version:6.2.14\r\n", "6.2.14", false},
		{"redis_version:5.0.7\r\n", "5.0.7", false},
		{"redis_version:255.255.255\r\n", "255.255.255", true},
		{"redis_version:7.0.0\r\n", "7.0.0", true},
		{"redis_version:10.0.0\r\n", "10.0.0", true},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n", "Valkey 8.1.0", true},
		{"nothing of use\r\n", "", false},
		{"", "", false}, // may not ask, and PEXPIRETIME is unknown
	} {
		client := redis.NewClient(&redis.Options{Addr: infoServer(t, c.info)})
		s, err := New(t.Context(), client, nil)
		var old *ServerVersionError
		switch {
		case c.ok && err != nil:
			t.Errorf("%q: %v; want it accepted", c.info, err)
		case c.ok:
			if got := s.Guarantees().Findings[0].Value; got != c.found {
				t.Errorf("%q: found %q; want %q", c.info, got, c.found)
			}
		case !errors.As(err, &old) || !errors.Is(err, ErrOldServer) || old.Found != c.found || !strings.Contains(err.Error(), "7.0") || !strings.Contains(err.Error(), c.found):
			t.Errorf("%q: %v; want an error that names %q and 7.0", c.info, err, c.found)
		}
		_ = client.Close()
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	addr := testdb.Redis(t).Addr()
	client := newClient(t, addr)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}})
	replicas := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, RouteByLatency: true})
	t.Cleanup(func() { _, _ = ring.Close(), replicas.Close() })
	for name, do := range map[string]func() (*Store, error){
		"a ring":                func() (*Store, error) { return New(t.Context(), ring, nil) },
		"reads from replicas":   func() (*Store, error) { return New(t.Context(), replicas, nil) },
		"no client":             func() (*Store, error) { return New(t.Context(), nil, nil) },
		"braces in the prefix":  func() (*Store, error) { return New(t.Context(), client, &Options{Prefix: "a{b}"}) },
		"a long prefix":         func() (*Store, error) { return New(t.Context(), client, &Options{Prefix: strings.Repeat("p", 200)}) },
		"another scheme":        func() (*Store, error) { return Open(t.Context(), "http://user:s3cret@host/", nil) },
		"a URL with a bad port": func() (*Store, error) { return Open(t.Context(), "redis://user:s3cret@host:port/x", nil) },
	} {
		if _, err := do(); !errors.Is(err, backend.ErrInvalidRequest) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want ErrInvalidRequest without the password", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, client, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with a dead context: %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), testdb.Redis(t).URL(), &Options{Prefix: newPrefix()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reserve(t.Context(), request("k")); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), request("k").ID); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Get after Close: %v; want an error that says so", err)
	}
	// The URL of one node opens the whole Cluster.
	node := testdb.StartCluster(t, 3)[0]
	s, err = Open(t.Context(), "redis://"+node, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 20 {
		if _, err := s.Reserve(t.Context(), request(fmt.Sprint("k", i))); err != nil {
			t.Fatal(err)
		}
	}
	// A client of the caller's stays open.
	own := newClient(t, testdb.Redis(t).Addr())
	if err := newStore(t, own, newPrefix()).Close(); err != nil || own.Ping(t.Context()).Err() != nil {
		t.Error("Close closed a client that it did not open")
	}
}

// TestPatternInPrefix: List shows a store its own records only, whatever its
// prefix looks like to a server.
func TestPatternInPrefix(t *testing.T) {
	client := newClient(t, testdb.Redis(t).Addr())
	base := newPrefix()
	for _, prefix := range []string{base + "*:", base + "x:", base + "[ab]:", base + "a:", base + `\:`, base + "?:", base} {
		s := newStore(t, client, prefix)
		r := request("of " + prefix)
		if _, err := s.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		n := 0
		for rec, err := range s.List(t.Context(), backend.Filter{}) {
			if err != nil || rec.ID != r.ID {
				t.Errorf("List of prefix %q shows %q, %v", prefix, rec.ID.Key, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("List of prefix %q shows %d records; want its own", prefix, n)
		}
	}
}
