package redis

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and a server and loses replies on purpose.
type proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	match []byte        // of the request whose reply is to be lost; nil: none
	stall chan struct{} // replies wait until it is closed; nil: none
	conns map[net.Conn]struct{}

	lost atomic.Int64 // replies swallowed
}

func newProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: make(map[net.Conn]struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c, &wg) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		p.heal()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// lose makes the proxy forward the next request that contains text, swallow its
// reply and close the connection.
func (p *proxy) lose(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.match = []byte(text)
}

// hang holds up all replies until heal.
func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stall = make(chan struct{})
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stall != nil {
		close(p.stall)
		p.stall = nil
	}
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
}

func (p *proxy) serve(client net.Conn, wg *sync.WaitGroup) {
	defer client.Close()
	server, err := net.Dial("tcp4", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.track(client)
	p.track(server)
	var drop atomic.Bool
	wg.Go(func() { // replies
		defer client.Close()
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			if drop.Load() {
				p.lost.Add(1)
				return
			}
			p.mu.Lock()
			stall := p.stall
			p.mu.Unlock()
			if stall != nil {
				<-stall
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.match != nil && bytes.Contains(buf[:n], p.match) {
			drop.Store(true)
			p.match = nil
		}
		p.mu.Unlock()
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}
