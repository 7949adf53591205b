package pgstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire watches the connections of a pool: it counts round trips, and cuts the link
// at a commit.
type wire struct {
	trips atomic.Int64
	mu    sync.Mutex
	cut   cut
	any   bool   // whatever is sent next, not only a commit
	only  []byte // what carries this, instead of a commit
}

type cut int

const (
	cutNothing cut = iota
	cutBefore      // the commit does not reach the server
	cutAfter       // it does, and takes effect; its answer does not come back
	cutStall       // as cutAfter, and the link stays open and silent
)

// next arms the cut of the next commit, and returns what was armed.
func (w *wire) next(c cut) cut {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.cut
	w.cut = c
	return was
}

// armed takes the cut, if p carries a commit.
func (w *wire) armed(p []byte) cut {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.any || w.only == nil && commits(p) || w.only != nil && bytes.Contains(p, w.only)
	if w.cut == cutNothing || !found {
		return cutNothing
	}
	c := w.cut
	w.cut = cutNothing
	return c
}

// executes is what the driver sends to execute a statement that it has prepared.
func executes(sql string) []byte {
	name := sha256.Sum256([]byte(sql))
	return []byte("\x00stmtcache_" + hex.EncodeToString(name[:24]) + "\x00")
}

// commits reports whether p executes a COMMIT of idem or of the driver, in any of the
// driver's modes. Preparing one is not executing it.
func commits(p []byte) bool {
	name := sha256.Sum256([]byte("commit"))
	for _, pattern := range []string{
		"\x00stmtcache_" + hex.EncodeToString(name[:24]) + "\x00", // Bind, from the unnamed portal
		"\x0e\x00commit\x00", // Parse of the unnamed statement
		"Q\x00\x00\x00\x0bcommit\x00",
		";commit\x00", // at the end of a simple query
	} {
		if bytes.Contains(p, []byte(pattern)) {
			return true
		}
	}
	return false
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, w: w, stalled: make(chan struct{})}, nil
}

type wireConn struct {
	net.Conn
	w       *wire
	open    atomic.Bool // something was sent that has not been answered
	dead    atomic.Bool
	stalled chan struct{}
	once    sync.Once
}

func (c *wireConn) Write(p []byte) (int, error) {
	if !c.open.Swap(true) {
		c.w.trips.Add(1)
	}
	switch cut := c.w.armed(p); cut {
	case cutBefore:
		c.dead.Store(true)
		c.Close()
		return len(p), nil
	case cutAfter, cutStall:
		c.dead.Store(true)
		n, err := c.Conn.Write(p)
		if err == nil {
			// The answer has come when a byte of it can be read; what it says is lost. One
			// byte is enough: the server sends its answer at the end of the pipeline.
			_, _ = c.Conn.Read(make([]byte, 1))
			if cut == cutAfter {
				c.Close()
			}
		}
		return n, err
	}
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	if c.dead.Load() {
		<-c.stalled
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.open.Store(false)
	}
	return n, err
}

func (c *wireConn) SetDeadline(t time.Time) error {
	if c.dead.Load() && !t.IsZero() {
		c.once.Do(func() { close(c.stalled) })
	}
	return c.Conn.SetDeadline(t)
}

func (c *wireConn) Close() error {
	c.once.Do(func() { close(c.stalled) })
	return c.Conn.Close()
}

func (w *wire) config(c *pgconn.Config) { c.DialFunc = w.dial }

// count returns the round trips that do takes.
func (w *wire) count(t testing.TB, do func()) int64 {
	t.Helper()
	before := w.trips.Load()
	do()
	return w.trips.Load() - before
}
