package pgstore

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire watches the connections of a pool: it counts round trips, and cuts the link
// at a commit.
type wire struct {
	trips atomic.Int64
	mu    sync.Mutex
	cut   cut
	log   []string
}

type cut int

const (
	cutNothing cut = iota
	cutBefore      // the commit does not reach the server
	cutAfter       // it does, and takes effect; its answer does not come back
)

// next arms the cut of the next commit.
func (w *wire) next(c cut) {
	w.mu.Lock()
	w.cut = c
	w.mu.Unlock()
}

// armed takes the cut, if p carries a commit.
func (w *wire) armed(p []byte) cut {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut == cutNothing || !bytes.Contains(p, []byte("commit")) && !bytes.Contains(p, []byte("COMMIT")) {
		return cutNothing
	}
	c := w.cut
	w.cut = cutNothing
	return c
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, w: w}, nil
}

type wireConn struct {
	net.Conn
	w       *wire
	reading atomic.Bool // since the last write
	dead    atomic.Bool
}

func (c *wireConn) Write(p []byte) (int, error) {
	if c.reading.Swap(false) || c.w.trips.Load() == 0 {
		c.w.trips.Add(1)
	}
	switch c.w.armed(p) {
	case cutBefore:
		c.dead.Store(true)
		c.Close()
		return len(p), nil
	case cutAfter:
		n, err := c.Conn.Write(p)
		if err == nil {
			c.dead.Store(true)
			// The answer has come when a byte of it can be read; what it says is lost. One
			// byte is enough: the server sends its answer at the end of the pipeline.
			_, _ = c.Conn.Read(make([]byte, 1))
			c.Close()
		}
		return n, err
	}
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	c.reading.Store(true)
	if c.dead.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Read(p)
}

func (w *wire) config(c *pgconn.Config) { c.DialFunc = w.dial }

// count returns the round trips that do takes.
func (w *wire) count(t testing.TB, do func()) int64 {
	t.Helper()
	before := w.trips.Load()
	do()
	return w.trips.Load() - before
}
