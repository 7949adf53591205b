package throwaway

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started returns a host that goes with the test, or skips it where a server is missing.
func started[S any](t *testing.T, start func(*Host) (S, error)) S {
	t.Helper()
	h, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	s, err := start(h)
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startedPostgres(t *testing.T) *PG {
	t.Helper()
	return started(t, func(h *Host) (*PG, error) { return h.Postgres(t.Context(), PGOptions{}) })
}

func startedRedis(t *testing.T) *Redis {
	t.Helper()
	return started(t, func(h *Host) (*Redis, error) { return h.Redis(t.Context(), RedisOptions{}) })
}

// saysWhatItIs holds what a report wants of a server that runs.
func saysWhatItIs(t *testing.T, s interface {
	Version() (string, error)
	Settings() (map[string]string, error)
	PIDs() []int
}, setting, want string) {
	t.Helper()
	if v, err := s.Version(); err != nil || strings.Count(v, ".") == 0 {
		t.Errorf("%T: version %q, %v", s, v, err)
	}
	if settings, err := s.Settings(); err != nil || settings[setting] != want {
		t.Errorf("%T: settings %v, %v; want %s to be %s", s, settings, err, setting, want)
	}
	if len(s.PIDs()) == 0 {
		t.Errorf("%T has no process", s)
	}
}

// TestCloseEndsAStart closes a host while a server starts: it must neither be left
// running nor be waited for in vain.
func TestCloseEndsAStart(t *testing.T) {
	t.Parallel()
	if err := RedisInstalled(); err != nil {
		t.Skip(err)
	}
	h, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	under := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		// Its lines are asked for when its start has begun.
		r, err := h.Redis(t.Context(), RedisOptions{Lines: func(int) (string, error) {
			close(under)
			for !isClosed(h.closing) {
				time.Sleep(time.Millisecond)
			}
			return "", nil
		}})
		if err == nil {
			r.Close()
		}
		result <- err
	}()
	<-under
	dir := h.Dir()
	h.Close()
	h.Close()
	if err := <-result; !errors.Is(err, errClosed) {
		t.Errorf("the start under way: %v, want %v", err, errClosed)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder after Close: %v, want it removed", err)
	}
	if _, err := h.Redis(t.Context(), RedisOptions{}); !errors.Is(err, errClosed) {
		t.Errorf("a start after Close: %v, want %v", err, errClosed)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := startedRedis(t)
	saysWhatItIs(t, r, "appendonly", "no")
	r.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Restart(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a restart under a context that has ended: %v, want %v", err, context.Canceled)
	}
}

func TestRemoveStaleSparesTheLiving(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	living, err := newOwnedDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	defer living.remove()
	young, foreign := filepath.Join(tmp, dirPrefix+"young"), filepath.Join(tmp, "other")
	for _, dir := range []string{young, foreign} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	for _, dir := range []string{living.path, foreign} {
		if err := os.Chtimes(dir, past, past); err != nil {
			t.Fatal(err)
		}
	}
	removeStale(tmp)
	for _, dir := range []string{living.path, young, foreign} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("removed: %v", err)
		}
	}
}

func TestAbsentProgramsAreNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := redisBin(); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "redis-server") {
		t.Errorf("Redis out of PATH: %v, want that it is not installed, and its package", err)
	}
	t.Setenv("IDEM_TEST_PG_BIN", t.TempDir())
	if _, err := postgresBin(); err == nil || errors.Is(err, ErrNotInstalled) {
		t.Errorf("a folder without PostgreSQL: %v, want a failure, not a skip", err)
	}
}
