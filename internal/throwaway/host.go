package throwaway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Host owns the servers that a process starts: their folder, and the thread that they
// hang on. Methods are safe for concurrent use.
type Host struct {
	spawner *spawner
	dir     *ownedDir

	closing chan struct{} // closed when Close begins
	starts  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	servers []server // in the order of their start
}

// server is what Close stops at the end.
type server interface {
	// discard stops the server without care for its data and removes its files.
	discard()
}

// New returns a host whose folder is made in parent, or in the system's temporary
// folder when parent is "". Every user must be able to pass through parent:
// PostgreSQL does not run as root. What killed processes left there, New removes.
func New(parent string) (*Host, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("throwaway: %w", err)
	}
	removeStale(parent)
	dir, err := newOwnedDir(parent)
	if err != nil {
		return nil, fmt.Errorf("throwaway: make a folder for servers: %w", err)
	}
	return &Host{spawner: newSpawner(), dir: dir, closing: make(chan struct{})}, nil
}

// Dir returns the folder in which each server has one.
func (h *Host) Dir() string { return h.dir.path }

// Close stops the servers, the newest first, so that a replica goes before its master,
// and removes their files. A start that is under way ends in an error. Calling it
// again does nothing.
func (h *Host) Close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	close(h.closing)
	h.mu.Unlock()

	h.starts.Wait() // none is between its process and the list any more
	for _, s := range slices.Backward(h.servers) {
		s.discard()
	}
	h.spawner.stop()
	h.dir.remove()
}

// begin makes Close wait for a start, which calls done, and ends the start's context
// when Close begins.
func (h *Host) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, errClosed
	}
	h.starts.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	finished := make(chan struct{})
	h.starts.Go(func() {
		select {
		case <-h.closing:
			cancel(errClosed)
		case <-finished:
		}
	})
	return ctx, func() { close(finished); cancel(nil); h.starts.Done() }, nil
}

// serverDir makes a folder for one server, in parent or, when that is "", in the host's.
func (h *Host) serverDir(parent, name string) (string, error) {
	if parent == "" {
		parent = h.dir.path
	}
	dir, err := os.MkdirTemp(parent, name+"-")
	if err != nil {
		return "", fmt.Errorf("throwaway: make a folder for a server: %w", err)
	}
	// Another user's server passes through it.
	return dir, os.Chmod(dir, 0o711)
}

// manage makes Close stop s. The start of s has begun and is not done.
func (h *Host) manage(s server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers = append(h.servers, s)
}

// release stops s now.
func (h *Host) release(s server) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return // Close discards it
	}
	n := len(h.servers)
	h.servers = slices.DeleteFunc(h.servers, func(other server) bool { return other == s })
	mine := len(h.servers) < n
	h.mu.Unlock()
	if mine { // else it is discarded already
		s.discard()
	}
}

var errClosed = errors.New("throwaway: the host of the servers is closed")

// ErrNotInstalled matches the error of a server whose programs the machine lacks, or
// has in a version that is too old. The error is a [*NotInstalledError].
var ErrNotInstalled = errors.New("throwaway: not installed")

// NotInstalledError says which server is missing, and where it comes from.
type NotInstalledError struct {
	Server string // for example "PostgreSQL"
	Detail string // begins with a space, as in " in version 13 or later (...)", or is empty
	Debian string // the package of Debian and Ubuntu
	Brew   string // the formula of Homebrew
}

// Missing says what is not installed.
func (e *NotInstalledError) Missing() string { return e.Server + " is not installed" + e.Detail }

// Error says what is missing and how to get it.
func (e *NotInstalledError) Error() string {
	return fmt.Sprintf("throwaway: %s: it is in Debian's package %s and in Homebrew's %s", e.Missing(), e.Debian, e.Brew)
}

// Is reports whether target is ErrNotInstalled.
func (e *NotInstalledError) Is(target error) bool { return target == ErrNotInstalled }

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
