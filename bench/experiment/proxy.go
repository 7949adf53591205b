package experiment

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
)

// proxy stands before a PostgreSQL server and cuts a connection at a commit.
type proxy struct {
	url    string // of the server, through the proxy
	target string
	listen net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	armed  bool
	before bool // cut before the server sees the commit, else before the client hears of it
	skip   int  // commits to let through first
	fired  bool
}

func newProxy(target string) (*proxy, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, errors.New("the server's URL cannot be read")
	}
	if u.Query().Get("sslmode") != "disable" {
		return nil, errSkip{reason: "the proxy reads the protocol, so the server's URL must say sslmode=disable"}
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("a proxy: %w", err)
	}
	p := &proxy{target: u.Host, listen: listen, conns: make(map[net.Conn]bool)}
	u.Host = listen.Addr().String()
	p.url = u.String()
	p.wg.Go(p.accept)
	return p, nil
}

// arm makes the proxy cut at one of the next commits.
func (p *proxy) arm(before bool, skip int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.before, p.skip, p.fired = true, before, skip, false
}

// disarm tells whether it has cut.
func (p *proxy) disarm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	return p.fired
}

// cut decides about a commit: whether this is where the connection ends.
func (p *proxy) cut(before bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed || p.before != before {
		return false
	}
	if p.skip > 0 {
		p.skip--
		return false
	}
	p.armed, p.fired = false, true
	return true
}

func (p *proxy) close() {
	p.listen.Close()
	p.mu.Lock()
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
}

func (p *proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.track(client)
		p.track(server)
		both := func() { client.Close(); server.Close() }
		s := &session{p: p, statements: make(map[string]string), status: 'I'}
		p.wg.Go(func() { defer both(); s.requests(client, server) })
		p.wg.Go(func() { defer both(); s.answers(server, client) })
	}
}

// session is one connection: enough of the protocol to know a commit.
type session struct {
	p          *proxy
	mu         sync.Mutex
	statements map[string]string // prepared ones, by name
	status     byte              // of the transaction: I when there is none
}

// writes reports whether a statement by itself is a commit: one that changes
// something outside a transaction.
func writes(sql string) (commit, begin, change bool) {
	sql = strings.ToUpper(strings.TrimSpace(sql))
	has := func(words ...string) bool {
		for _, word := range words {
			if strings.HasPrefix(sql, word) {
				return true
			}
		}
		return false
	}
	return has("COMMIT", "END"), has("BEGIN", "START"), has("INSERT", "UPDATE", "DELETE", "MERGE") || has("WITH") && (strings.Contains(sql, "INSERT") || strings.Contains(sql, "UPDATE"))
}

// requests copies what the client says, message by message. What it says up to a Sync
// or in a simple query is held back until it is known whether that is a commit.
func (s *session) requests(client io.Reader, to io.Writer) {
	from := bufio.NewReader(client)
	if !startup(from, to) {
		return
	}
	var held []byte
	var commit, begin, change bool
	for {
		kind, body, raw, err := message(from)
		if err != nil {
			return
		}
		held = append(held, raw...)
		text := ""
		switch kind {
		case 'Q':
			text = cstring(body)
		case 'P':
			name := cstring(body)
			text = cstring(body[len(name)+1:])
			s.statements[name] = text
			if name != "" {
				text = "" // it counts when it is bound
			}
		case 'B':
			portal := cstring(body)
			if name := cstring(body[len(portal)+1:]); name != "" {
				text = s.statements[name]
			}
		}
		for _, part := range strings.Split(text, ";") {
			c, b, ch := writes(part)
			commit, begin, change = commit || c, begin || b, change || ch
		}
		if kind == 'P' || kind == 'B' || kind == 'E' || kind == 'D' || kind == 'C' {
			continue
		}
		s.mu.Lock()
		idle := s.status == 'I'
		s.mu.Unlock()
		if (commit || change && idle && !begin) && s.p.cut(true) {
			return
		}
		if kind == 'S' || kind == 'Q' {
			commit, begin, change = false, false, false
		}
		if _, err := to.Write(held); err != nil {
			return
		}
		held = held[:0]
	}
}

// answers copies what the server says. The answer to a commit is held back up to the
// ReadyForQuery that says that it is over.
func (s *session) answers(server io.Reader, to io.Writer) {
	from := bufio.NewReader(server)
	var held []byte
	var commit, change, begin bool
	for {
		kind, body, raw, err := message(from)
		if err != nil {
			return
		}
		held = append(held, raw...)
		if kind == 'C' {
			c, b, ch := writes(cstring(body))
			commit, begin, change = commit || c, begin || b, change || ch
		}
		if kind == 'Z' && len(body) == 1 {
			s.mu.Lock()
			was := s.status
			s.status = body[0]
			s.mu.Unlock()
			done := commit || change && !begin && was == 'I'
			commit, begin, change = false, false, false
			if done && body[0] == 'I' && s.p.cut(false) {
				return
			}
		} else if commit || change || kind == 'C' {
			continue
		}
		if _, err := to.Write(held); err != nil {
			return
		}
		held = held[:0]
	}
}

// startup passes the first message on, which has no kind.
func startup(from io.Reader, to io.Writer) bool {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return false
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if n < 8 || n > 1<<16 {
		return false
	}
	rest := make([]byte, n-4)
	if _, err := io.ReadFull(from, rest); err != nil {
		return false
	}
	_, err := to.Write(append(size[:], rest...))
	return err == nil
}

// message reads one message of either side.
func message(from io.Reader) (kind byte, body, raw []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, nil, err
	}
	n := int(binary.BigEndian.Uint32(head[1:]))
	if n < 4 || n > 1<<28 {
		return 0, nil, nil, errors.New("no PostgreSQL message")
	}
	raw = make([]byte, 1+n)
	copy(raw, head[:])
	if _, err := io.ReadFull(from, raw[5:]); err != nil {
		return 0, nil, nil, err
	}
	return head[0], raw[5:], raw, nil
}

// cstring returns the text up to a NUL.
func cstring(b []byte) string {
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}
