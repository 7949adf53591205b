package crdbshim

import (
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgproto3"
)

// session is one connection of a client with its session of the server. One goroutine reads what the
// client sends, so that a client that leaves is noticed at once; another one does everything else.
type session struct {
	shim   *Shim
	client net.Conn
	server net.Conn
	be     *pgproto3.Backend  // to the client
	fe     *pgproto3.Frontend // to the server
	in     *inbox

	stmts   map[string]*statement // by the name of the prepared statement
	portals map[string]*statement

	pending  []step // sent to the server, answers not read
	skipping bool   // an error was answered: what follows is ignored until Sync
	names    int    // of the shim's own prepared statements

	tx transaction

	implicit       bool             // statements outside a block wrote: the next Sync commits
	syncFault      *Injected        // befalls the next Sync
	rollbackAtSync bool             // the transaction ends at Sync, because its commit failed
	held           *commandComplete // the last answer of a simple query, until its commit is known
	answers        int              // in the client's buffer
}

type commandComplete struct{ tag string }

// errCut ends a session that a fault has cut.
var errCut = errors.New("cut by an injected fault")

// serve runs one connection to its end.
func (s *Shim) serve(client net.Conn) {
	be := pgproto3.NewBackend(client, client)
	startup, cancel := greet(client, be)
	switch {
	case cancel != nil:
		s.cancel(cancel)
		return
	case startup == nil:
		return
	}
	server, err := s.dial()
	if err != nil {
		return
	}
	defer s.drop(server)
	ses := &session{
		shim: s, client: client, server: server, be: be, fe: pgproto3.NewFrontend(server, server),
		in: newInbox(), stmts: make(map[string]*statement), portals: make(map[string]*statement),
	}
	if ses.start(startup) != nil {
		return
	}
	s.wg.Go(func() { ses.in.read(be) })
	if err := ses.run(); err != nil && !errors.Is(err, errCut) {
		be.Flush() // the server may have said why it ends
	}
	hangUp(ses.fe, server)
	// The reader must end before its connection is forgotten. The caller closes it, too.
	client.Close()
	<-ses.in.gone
}

// greet answers what precedes the start of a session. One of its results is not nil, unless the client
// has left.
func greet(client net.Conn, be *pgproto3.Backend) (*pgproto3.StartupMessage, *pgproto3.CancelRequest) {
	for {
		msg, err := be.ReceiveStartupMessage()
		if err != nil {
			return nil, nil
		}
		switch m := msg.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := client.Write([]byte{'N'}); err != nil {
				return nil, nil
			}
		case *pgproto3.CancelRequest:
			return nil, m
		case *pgproto3.StartupMessage:
			return m, nil
		default:
			return nil, nil
		}
	}
}

// cancel passes a request to cancel on, and waits until the server has taken it, as its clients do.
func (s *Shim) cancel(m *pgproto3.CancelRequest) {
	raw, err := m.Encode(nil)
	if err != nil {
		return
	}
	server, err := s.dial()
	if err != nil {
		return
	}
	defer s.drop(server)
	if _, err := server.Write(raw); err == nil {
		server.SetReadDeadline(soon())
		io.Copy(io.Discard, server)
	}
}

// start passes the start-up on, authentication included, until the server is ready.
func (s *session) start(m *pgproto3.StartupMessage) error {
	if s.shim.face != nil {
		// As a parameter of the session's start it survives RESET and DISCARD.
		if _, ok := m.Parameters["default_transaction_isolation"]; !ok {
			m.Parameters["default_transaction_isolation"] = "serializable"
		}
	}
	s.fe.Send(m)
	if err := s.fe.Flush(); err != nil {
		return err
	}
	for {
		msg, err := s.fe.Receive()
		if err != nil {
			s.be.Flush()
			return err
		}
		auth, asks := uint32(0), true
		switch m := msg.(type) {
		case *pgproto3.AuthenticationCleartextPassword:
			auth = pgproto3.AuthTypeCleartextPassword
		case *pgproto3.AuthenticationMD5Password:
			auth = pgproto3.AuthTypeMD5Password
		case *pgproto3.AuthenticationSASL:
			auth = pgproto3.AuthTypeSASL
		case *pgproto3.AuthenticationSASLContinue:
			auth = pgproto3.AuthTypeSASLContinue
		case *pgproto3.ParameterStatus:
			asks = false
			if s.shim.face != nil && m.Name == "server_version" {
				m.Value = "13.0.0"
			}
		case *pgproto3.ReadyForQuery:
			if s.shim.face != nil {
				s.be.Send(&pgproto3.ParameterStatus{Name: "crdb_version", Value: s.shim.face.version})
			}
			s.be.Send(m)
			return s.be.Flush()
		default:
			asks = false
		}
		s.be.Send(msg)
		if !asks {
			continue
		}
		if err := s.be.Flush(); err != nil {
			return err
		}
		if err := s.be.SetAuthType(auth); err != nil {
			return err
		}
		reply, err := s.be.Receive()
		if err != nil {
			return err
		}
		s.fe.Send(reply)
		if err := s.fe.Flush(); err != nil {
			return err
		}
	}
}

// run serves the client's messages until it leaves, which is no error.
func (s *session) run() error {
	for {
		msg, ok := s.in.next()
		if !ok {
			return nil
		}
		if err := s.handle(msg); err != nil {
			return err
		}
	}
}

// hangUp ends the server's session. When it returns, the server has rolled back what was open, because
// it closes its side only then.
func hangUp(fe *pgproto3.Frontend, server net.Conn) {
	server.SetDeadline(soon())
	fe.Send(&pgproto3.Terminate{})
	if fe.Flush() == nil {
		io.Copy(io.Discard, server)
	}
	server.Close()
}
