package testdb

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/goidem/idem/internal/throwaway"
)

// wallClock is a small library that moves a process's time of day. libfaketime would be the usual
// tool; it does not start a server that is linked with jemalloc, as Debian's Redis is.
//
//go:embed testdata/wallclock.c
var wallClock []byte // lint:const embedded

// StartRedisWithClock is [StartRedis] for a server whose wall clock the test sets: the function puts
// it ahead of the machine's by an offset, or behind. It needs Linux and a C compiler, as the race
// detector does, and skips the test without them.
func StartRedisWithClock(tb testing.TB, args ...string) (*RedisServer, func(offset time.Duration)) {
	tb.Helper()
	need(tb, "redis", throwaway.RedisInstalled())
	lib := preload(tb, "wallclock", wallClock)
	file := filepath.Join(tb.TempDir(), "offset")
	set := func(offset time.Duration) {
		tb.Helper()
		// Eight bytes in place: the server has the file mapped.
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(offset.Microseconds())))
			if e := f.Close(); err == nil {
				err = e
			}
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	set(0)
	r := startPreloaded(tb, args, "LD_PRELOAD="+lib, "WALLCLOCK_FILE="+file)
	// A library that was not loaded would make every test of it pass.
	before := r.seconds(tb)
	set(time.Hour)
	if after := r.seconds(tb); after < before+30*60 {
		tb.Fatalf("testdb: the server's clock does not move: it says %d after %d", after, before)
	}
	set(0)
	return r, set
}

// preload compiles a library for LD_PRELOAD.
func preload(tb testing.TB, name string, source []byte) string {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		tb.Skip("what stands between a server and its system needs Linux and a C compiler")
	}
	lib := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(lib+".c", source, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", lib+".so", lib+".c").CombinedOutput(); err != nil {
		tb.Fatalf("testdb: %s.c does not compile: %v\n%s", name, err, out)
	}
	return lib + ".so"
}

func startPreloaded(tb testing.TB, args []string, env ...string) *RedisServer {
	tb.Helper()
	r, err := startRedis(starting(tb), throwaway.RedisOptions{Args: args, Env: env})
	need(tb, "redis", err)
	tb.Cleanup(r.srv.Close)
	return r
}

// seconds returns the server's Unix time.
func (r *RedisServer) seconds(tb testing.TB) (at int64) {
	tb.Helper()
	if _, err := fmt.Sscan(r.Do(tb, "TIME"), &at); err != nil {
		tb.Fatal(err)
	}
	return at
}
