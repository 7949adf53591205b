package crdbshim

import (
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgproto3"
)

// longPipeline is how many messages are sent to the server before their answers are read.
const longPipeline = 10000

// manyAnswers is how many answers are kept back from the client while its pipeline goes on.
const manyAnswers = 1000

// step is one message that the server was sent, and what becomes of its answer.
type step struct {
	want    byte       // P, B, D, E or C: which answer ends it
	st      *statement // what an Execute runs; nil for the shim's own
	silent  bool       // the client sees nothing of it but its error
	simple  bool       // of a simple query: only what such a query answers is shown
	release bool       // RELEASE SAVEPOINT cockroach_restart, which runs as COMMIT
	instead *pgError   // stands for the error that comes
}

// push sends msg with the next drain.
func (s *session) push(msg pgproto3.FrontendMessage, st step) {
	s.fe.Send(msg)
	s.pending = append(s.pending, st)
}

// drain waits for all answers that are due. After it skipping tells whether an error came.
func (s *session) drain() error {
	if len(s.pending) == 0 {
		return nil
	}
	s.fe.Send(&pgproto3.Flush{})
	return s.exchange(s.collectPending)
}

// exchange writes what was pushed while it reads the answers, since the server may stop reading until
// its answers are read.
func (s *session) exchange(read func() error) error {
	flushed := make(chan error, 1)
	s.shim.wg.Go(func() { flushed <- s.fe.Flush() })
	err := read()
	if err != nil {
		s.server.Close() // or the writer could wait for ever
	}
	return errors.Join(err, <-flushed)
}

func (s *session) collectPending() error {
	steps := s.pending
	s.pending = nil
	for _, st := range steps {
		ok, err := s.collect(st)
		if err != nil {
			return err
		}
		if !ok {
			s.skipping = true
			break
		}
	}
	return nil
}

// collect reads the answers to one step. It reports false after an error, when the server ignores all
// further steps until Sync.
func (s *session) collect(st step) (bool, error) {
	for {
		msg, err := s.fe.Receive()
		if err != nil {
			return false, err
		}
		show, done := !st.silent, false
		switch m := msg.(type) {
		case *pgproto3.ErrorResponse:
			if st.release {
				// A failed commit has ended the server's transaction, and the client may still restart its own.
				s.tx.lost = true
			}
			if st.instead != nil {
				s.send(st.instead.response())
			} else {
				s.send(m)
			}
			return false, nil
		case *pgproto3.ReadyForQuery:
			return false, errors.New("the server ended a pipeline that was not at its end")
		case *pgproto3.ParseComplete:
			show, done = show && !st.simple, st.want == 'P'
		case *pgproto3.BindComplete:
			show, done = show && !st.simple, st.want == 'B'
		case *pgproto3.CloseComplete:
			show, done = show && !st.simple, st.want == 'C'
		case *pgproto3.NoData:
			show, done = show && !st.simple, st.want == 'D'
		case *pgproto3.RowDescription:
			done = st.want == 'D'
		case *pgproto3.EmptyQueryResponse, *pgproto3.PortalSuspended:
			done = st.want == 'E'
		case *pgproto3.CommandComplete:
			return s.complete(st, string(m.CommandTag)), nil
		case *pgproto3.ParameterStatus, *pgproto3.NotificationResponse:
			show = true
		}
		if show {
			s.send(msg)
		}
		if done {
			return true, nil
		}
	}
}

// complete takes note of a finished statement and shows its tag. It reports false if that is an error.
func (s *session) complete(st step, tag string) bool {
	if st.st != nil {
		s.completed(st.st, tag)
	}
	if st.release {
		if tag != "COMMIT" { // the server had a reason to roll back that the shim did not know
			s.tx.lost = true
			s.send(errAborted().response())
			return false
		}
		s.tx.released = true
		tag = "RELEASE"
	}
	switch {
	case st.silent:
	case st.simple:
		s.send(nil)
		s.held = &commandComplete{tag}
	default:
		s.answer(tag)
	}
	return true
}

// answer sends the tag of a statement that is done.
func (s *session) answer(tag string) {
	s.send(&pgproto3.CommandComplete{CommandTag: []byte(tag)})
}

// send puts an answer into the client's buffer, behind the one that was held back. A nil msg only
// releases that one.
func (s *session) send(msg pgproto3.BackendMessage) {
	if s.held != nil {
		s.be.Send(&pgproto3.CommandComplete{CommandTag: []byte(s.held.tag)})
		s.held = nil
	}
	if msg == nil {
		return
	}
	if e, ok := msg.(*pgproto3.ErrorResponse); ok && e.Code == "40001" {
		s.tx.conflict = s.tx.open
	}
	s.be.Send(msg)
	if s.answers++; s.answers >= manyAnswers {
		s.flush()
	}
}

// flush sends the client its answers. That the client has left shows where it is read from.
func (s *session) flush() {
	s.answers = 0
	s.be.Flush()
}

// own makes the server run sql on the shim's behalf, with the next drain. The statement has a name, so
// that it does not replace the client's unnamed one.
func (s *session) own(sql string, e *pgError) {
	s.names++
	name := "crdbshim_" + strconv.Itoa(s.names)
	own := step{silent: true, instead: e}
	for _, part := range []struct {
		want byte
		msg  pgproto3.FrontendMessage
	}{
		{'P', &pgproto3.Parse{Name: name, Query: sql}},
		{'B', &pgproto3.Bind{DestinationPortal: name, PreparedStatement: name}},
		{'E', &pgproto3.Execute{Portal: name}},
		{'C', &pgproto3.Close{ObjectType: 'S', Name: name}},
	} {
		own.want = part.want
		s.push(part.msg, own)
	}
}

// raise answers e in the client's pipeline. It makes the server fail at the same place, so that both
// agree on what the error ends: the block that is open, the implicit transaction, the pipeline.
func (s *session) raise(e *pgError) error {
	if err := s.drain(); err != nil || s.skipping {
		return err
	}
	s.own("DO $crdbshim$ BEGIN RAISE EXCEPTION 'crdbshim'; END $crdbshim$", e)
	if err := s.drain(); err != nil {
		return err
	}
	if !s.skipping {
		return errors.New("the server did not fail where it should")
	}
	return nil
}
