package crdbshim

import (
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// handle deals with one message of the client.
func (s *session) handle(msg pgproto3.FrontendMessage) error {
	switch m := msg.(type) {
	case *pgproto3.Query:
		return s.query(m)
	case *pgproto3.Sync:
		return s.sync()
	case *pgproto3.Flush:
		err := s.drain()
		s.flush()
		return err
	case *pgproto3.Terminate, *pgproto3.CopyData, *pgproto3.CopyDone, *pgproto3.CopyFail:
		return nil // the last three belong to a COPY that has failed
	}
	if s.skipping {
		return nil
	}
	if len(s.pending) >= longPipeline {
		if err := s.drain(); err != nil || s.skipping {
			return err
		}
	}
	switch m := msg.(type) {
	case *pgproto3.Parse:
		return s.parse(m)
	case *bind:
		if st := s.stmts[m.statement]; st != nil {
			s.portals[m.portal] = st
		} else {
			delete(s.portals, m.portal)
		}
		s.push(m, step{want: 'B'})
	case *pgproto3.Describe:
		s.push(m, step{want: 'D'})
	case *pgproto3.Close:
		if m.ObjectType == 'S' {
			delete(s.stmts, m.Name)
		} else {
			delete(s.portals, m.Name)
		}
		s.push(m, step{want: 'C'})
	case *pgproto3.Execute:
		st := s.portals[m.Portal]
		if st == nil {
			st = new(statement)
		}
		return s.execute(st, func(run step) {
			run.want, run.st = 'E', st
			s.push(m, run)
		})
	default: // a function call, which is answered like a query
		s.fe.Send(msg)
		return s.direct(nil)
	}
	return nil
}

// parse prepares a statement, as the one that the server is to run.
func (s *session) parse(m *pgproto3.Parse) error {
	stmts := analyze(m.Query, s.shim.face)
	st := &statement{text: m.Query, server: m.Query}
	if len(stmts) == 1 {
		st = stmts[0]
	}
	refusal := st.refusal
	if refusal == nil && st.kind == copyIn {
		refusal = unimplemented("COPY FROM STDIN as a prepared statement, by the shim,")
	}
	if refusal != nil {
		s.shim.note(st)
		return s.raise(refusal)
	}
	s.stmts[m.Name] = st
	if st.server != st.text {
		m.Query = st.server
	}
	s.push(m, step{want: 'P'})
	return nil
}

// execute runs one statement: run pushes it.
func (s *session) execute(st *statement, run func(step)) error {
	s.shim.note(st)
	if st.refusal != nil {
		return s.raise(st.refusal)
	}
	if s.shim.face != nil && s.special(st) {
		if err := s.drain(); err != nil || s.skipping {
			return err
		}
		if s.away(st) {
			if f := s.shim.faults.take(false, st.text); f != nil {
				return s.meetAway(f, st, run)
			}
		}
		if done, err := s.restartProtocol(st, run); done {
			return err
		}
	}
	if s.shim.faults.mayMeet(st) {
		// Only when all before it has succeeded is the statement reached, and the state known.
		if err := s.drain(); err != nil || s.skipping {
			return err
		}
		if f := s.takeFault(st); f != nil {
			return s.meet(f, st, run)
		}
	}
	s.track(st)
	run(step{})
	return nil
}

// track remembers what the transaction consists of.
func (s *session) track(st *statement) {
	if st.kind == commit || st.kind == rollback {
		s.tx.texts = nil
		return
	}
	s.tx.texts = bounded(append(s.tx.texts, st.text), manyAnswers)
}

// query deals with a simple query, which may consist of several statements.
func (s *session) query(m *pgproto3.Query) error {
	if err := s.drain(); err != nil || s.skipping {
		return err
	}
	stmts := analyze(m.String, s.shim.face)
	split, changed := false, false
	for i, st := range stmts {
		split = split || i > 0 && st.kind == begin && s.shim.face != nil || st.refusal != nil || s.shim.faults.mayMeet(st) || s.shim.face != nil && s.special(st)
		changed = changed || st.server != st.text
	}
	if split {
		return s.split(stmts)
	}
	if changed {
		texts := make([]string, len(stmts))
		for i, st := range stmts {
			texts[i] = st.server
		}
		m.String = strings.Join(texts, "; ")
	}
	for _, st := range stmts {
		s.shim.note(st)
		s.track(st)
	}
	s.fe.Send(m)
	return s.direct(stmts)
}

// split runs a simple query as a pipeline, which is one implicit transaction like the query, and in
// which single statements can be replaced.
func (s *session) split(stmts []*statement) error {
	for _, st := range stmts {
		if s.skipping {
			break
		}
		if st.kind == copyIn {
			if err := s.raise(unimplemented("COPY FROM STDIN among other statements, by the shim,")); err != nil {
				return err
			}
			break
		}
		err := s.execute(st, func(run step) {
			run.simple = true
			run.want = 'P'
			s.push(&pgproto3.Parse{Query: st.server}, run.part('P'))
			s.push(&pgproto3.Bind{}, run.part('B'))
			s.push(&pgproto3.Describe{ObjectType: 'P'}, run.part('D'))
			run.want, run.st = 'E', st
			s.push(&pgproto3.Execute{}, run)
		})
		if err != nil {
			return err
		}
	}
	return s.sync()
}

// part is the step that prepares run.
func (run step) part(want byte) step { return step{want: want, simple: true} }

// direct reads the answers to a query that the server runs as it is.
func (s *session) direct(stmts []*statement) error {
	if err := s.fe.Flush(); err != nil {
		return err
	}
	for {
		msg, err := s.fe.Receive()
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *pgproto3.ReadyForQuery:
			return s.ready(m.TxStatus)
		case *pgproto3.CommandComplete:
			if len(stmts) > 0 {
				s.completed(stmts[0], string(m.CommandTag))
				stmts = stmts[1:]
			}
			s.send(m)
		case *pgproto3.CopyInResponse:
			s.send(m)
			s.flush()
			if err := s.copyIn(); err != nil {
				return err
			}
		default:
			s.send(msg)
		}
	}
}

// copyIn passes on what the client sends for COPY FROM STDIN.
func (s *session) copyIn() error {
	for {
		msg, ok := s.in.next()
		if !ok {
			return io.ErrUnexpectedEOF
		}
		switch msg.(type) {
		case *pgproto3.CopyData:
			s.fe.Send(msg)
			if err := s.fe.Flush(); err != nil {
				return err
			}
		case *pgproto3.CopyDone, *pgproto3.CopyFail:
			s.fe.Send(msg)
			return s.fe.Flush()
		}
	}
}
