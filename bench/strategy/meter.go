package strategy

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
)

// meter counts the connections that it dials, and what goes over them, both ways.
type meter struct{ dials, bytes atomic.Int64 }

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// around returns dial with its connections counted.
func (m *meter) around(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		m.dials.Add(1)
		return &meteredConn{conn, m}, nil
	}
}

type meteredConn struct {
	net.Conn
	meter *meter
}

// Read counts what it has read.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.meter.bytes.Add(int64(n))
	return n, err
}

// Write counts what it has written.
func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.meter.bytes.Add(int64(n))
	return n, err
}

// SyscallConn lets a pool see whether an idle connection was closed by the server, as
// it does with a connection that is not counted.
func (c *meteredConn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
