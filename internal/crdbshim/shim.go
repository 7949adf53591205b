package crdbshim

import (
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
)

// Version is what version() answers unless [Options.Version] says otherwise.
const Version = "CockroachDB CCL v24.3.1 (x86_64-pc-linux-gnu, built 2025/01/01 00:00:00, go1.22)"

// Options say how a shim behaves. The zero value is CockroachDB's face.
type Options struct {
	// Plain leaves PostgreSQL's face: statements and answers pass unchanged, and only faults, the log
	// and the counters work.
	Plain bool
	// Version is the answer to version(). Empty means [Version].
	Version string
	// AdvisoryNoop lets advisory locks succeed without locking anything, as some of them do on
	// CockroachDB. Without it they are refused.
	AdvisoryNoop bool
	// LogLimit is the number of statements that the log keeps, the newest ones. 0 means 10000.
	LogLimit int
}

// Shim is a running proxy.
type Shim struct {
	server   *url.URL
	listener net.Listener
	face     *face // nil when plain
	faults   faults
	done     chan struct{}
	wg       sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]struct{}
	log      []string
	refused  []string
	logLimit int
	trips    int
	ttl      map[string]string
}

// Start starts a proxy in front of the PostgreSQL at postgresURL, which it reaches by TCP without TLS.
// It ends with the test.
func Start(tb testing.TB, postgresURL string, o Options) *Shim {
	tb.Helper()
	s, err := start(postgresURL, o)
	if err != nil {
		tb.Fatalf("crdbshim: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}

func start(postgresURL string, o Options) (*Shim, error) {
	u, err := url.Parse(postgresURL)
	if err != nil {
		return nil, errors.New("the PostgreSQL URL cannot be parsed")
	}
	if u.Hostname() == "" {
		return nil, errors.New("the PostgreSQL URL must name a host: the shim does not use Unix sockets")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Shim{
		server: u, listener: l, done: make(chan struct{}), conns: make(map[net.Conn]struct{}),
		logLimit: o.LogLimit, ttl: make(map[string]string),
	}
	if s.logLimit == 0 {
		s.logLimit = 10000
	}
	if !o.Plain {
		s.face = &face{version: o.Version, advisory: o.AdvisoryNoop}
		if o.Version == "" {
			s.face.version = Version
		}
	}
	s.wg.Go(s.accept)
	return s, nil
}

// URL is where clients connect: the server's URL with the shim's address in it.
func (s *Shim) URL() string {
	u := *s.server
	u.Host = s.listener.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

// Inject makes f happen.
func (s *Shim) Inject(f Fault) *Injected { return s.faults.add(f) }

// ClearFaults takes back the faults that have not happened yet.
func (s *Shim) ClearFaults() { s.faults.clear() }

// Fired counts the faults that really happened.
func (s *Shim) Fired() int { return s.faults.total() }

// Log returns the statements that clients had executed, as they wrote them, the oldest first. It
// includes those that were refused.
func (s *Shim) Log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Refused returns the statements that were refused because CockroachDB would refuse them.
func (s *Shim) Refused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}

// ClearLog forgets what [Shim.Log] and [Shim.Refused] return.
func (s *Shim) ClearLog() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log, s.refused = nil, nil
}

// TTL returns the storage parameters of row-level TTL that are set, as "table.parameter".
func (s *Shim) TTL() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.ttl)
}

// Trips counts the round trips of all connections since the start or [Shim.ResetTrips]: each Sync or
// simple query that a client had answered.
func (s *Shim) Trips() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trips
}

// ResetTrips sets the count of [Shim.Trips] to zero.
func (s *Shim) ResetTrips() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trips = 0
}

// CutAll cuts every connection there is, on both sides, at whatever it is doing.
func (s *Shim) CutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Close cuts all connections, and returns when nothing of the shim runs any more.
func (s *Shim) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
		s.listener.Close()
		for c := range s.conns {
			c.Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *Shim) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		if !s.keep(conn) {
			return
		}
		s.wg.Go(func() {
			defer s.drop(conn)
			s.serve(conn)
		})
	}
}

// keep registers conn, so that Close ends whoever waits for it. It reports whether the shim is open;
// conn is closed if not.
func (s *Shim) keep(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *Shim) drop(conn net.Conn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// dial opens a connection to the server.
func (s *Shim) dial() (net.Conn, error) {
	port := s.server.Port()
	if port == "" {
		port = "5432"
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(s.server.Hostname(), port), patience)
	if err != nil {
		return nil, err
	}
	if !s.keep(conn) {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// note logs a statement that is about to be executed or refused.
func (s *Shim) note(st *statement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = bounded(append(s.log, st.text), s.logLimit)
	if st.refusal != nil {
		s.refused = bounded(append(s.refused, st.text), s.logLimit)
		return
	}
	for _, p := range st.ttl {
		if p.remove {
			delete(s.ttl, p.key)
		} else {
			s.ttl[p.key] = p.value
		}
	}
}

// bounded keeps the newest entries. It cuts only when the list has twice the length, so that a long
// log is not copied for each statement.
func bounded(list []string, limit int) []string {
	if len(list) < 2*limit {
		return list
	}
	return slices.Clone(list[len(list)-limit:])
}

func (s *Shim) tripped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trips++
}
