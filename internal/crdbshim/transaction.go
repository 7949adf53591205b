package crdbshim

import "github.com/jackc/pgx/v5/pgproto3"

// transaction is the client's transaction block. Most of the time it is the server's, too.
type transaction struct {
	open   bool
	failed bool // the server's is aborted

	restart  bool     // SAVEPOINT cockroach_restart was set
	released bool     // and released: the server has committed, and only the client's block is open
	lost     bool     // the client's block is aborted, and the server's is over
	conflict bool     // it met 40001, which no ordinary savepoint heals
	begin    string   // how it began
	settings []string // what was set before the savepoint, which a restart does not undo
	ran      int      // other statements
	texts    []string // the statements
}

// status is what the client is told at the end of a query or a pipeline.
func (tx *transaction) status() byte {
	switch {
	case tx.released:
		return 'T'
	case tx.lost || tx.failed:
		return 'E'
	case tx.open:
		return 'T'
	}
	return 'I'
}

// completed takes note of a statement that the server has executed.
func (s *session) completed(st *statement, tag string) {
	switch {
	case st.kind == begin:
		s.tx = transaction{open: true, begin: st.server, texts: s.tx.texts}
		s.implicit = false
	case st.kind == commit || st.kind == rollback:
		s.tx = transaction{texts: s.tx.texts}
	case st.restart:
	case !s.tx.open:
		s.implicit = s.implicit || st.writes
	case st.kind == setting:
		if !s.tx.restart {
			s.tx.settings = append(s.tx.settings, st.server)
		}
	default:
		s.tx.ran++
	}
}

// special reports whether the restart protocol may have a say in st.
func (s *session) special(st *statement) bool {
	return st.restart || s.tx.released || s.tx.lost || st.kind == rollbackTo && s.tx.conflict || st.kind == begin && (s.tx.open || len(s.pending) > 0)
}

// away reports whether the shim answers st alone, without the server executing it.
func (s *session) away(st *statement) bool {
	return st.restart && st.kind != release || s.tx.released || s.tx.lost
}

// restartProtocol does what CockroachDB does with st where PostgreSQL would do something else. It
// reports false if that is not so after all. Everything before st has been answered.
func (s *session) restartProtocol(st *statement, run func(step)) (bool, error) {
	tx := &s.tx
	ends := st.kind == commit || st.kind == rollback
	switch {
	case tx.released && ends:
		// The commit was made by RELEASE, even where this says ROLLBACK.
		s.tx = transaction{}
		s.answer("COMMIT")
	case tx.released:
		return true, s.raise(errCommitted())
	case (tx.lost || tx.failed) && st.restart && st.kind != release:
		if !tx.restart {
			return true, s.raise(errAborted())
		}
		return true, s.startOver(st)
	case tx.lost && ends:
		s.tx = transaction{}
		s.answer("ROLLBACK")
	case tx.lost || tx.failed && st.restart:
		return true, s.raise(errAborted())
	case st.kind == begin && tx.open:
		return true, s.raise(errInTransaction())
	case st.kind == rollbackTo && !st.restart && tx.conflict:
		return true, s.raise(errOnlyRestart())
	case !st.restart:
		return false, nil
	case !tx.open:
		return true, s.raise(errNoTransaction())
	case st.kind == savepoint && tx.restart:
		return true, s.raise(errNested())
	case st.kind == savepoint && tx.ran > 0:
		return true, s.raise(errNotFirst())
	case st.kind == savepoint:
		tx.restart = true
		s.answer("SAVEPOINT")
	case !tx.restart:
		return true, s.raise(errNoSavepoint())
	case st.kind == rollbackTo:
		return true, s.startOver(st)
	case st.kind == release:
		return true, s.release(st, run)
	}
	return true, nil
}

// startOver replaces the server's transaction by another one, whose snapshot is a new one.
func (s *session) startOver(st *statement) error {
	if !s.tx.lost {
		s.own("ROLLBACK", nil)
	}
	s.own(s.tx.begin, nil)
	for _, sql := range s.tx.settings {
		s.own(sql, nil)
	}
	if err := s.drain(); err != nil || s.skipping {
		return err
	}
	s.tx.failed, s.tx.lost, s.tx.conflict, s.tx.ran, s.tx.texts = false, false, false, 0, nil
	if st.kind == savepoint {
		s.answer("SAVEPOINT")
	} else {
		s.answer("ROLLBACK")
	}
	return nil
}

// release commits the server's transaction. The client's stays open until it says COMMIT.
func (s *session) release(st *statement, run func(step)) error {
	if f := s.takeFault(st); f != nil {
		return s.meet(f, st, run)
	}
	run(step{release: true})
	return s.drain()
}

// sync ends a pipeline, and with it an implicit transaction.
func (s *session) sync() error {
	if s.syncFault == nil && !s.rollbackAtSync && !s.shim.faults.armed() {
		s.fe.Send(&pgproto3.Sync{})
		var status byte
		err := s.exchange(func() (err error) {
			if err = s.collectPending(); err == nil {
				status, _, err = s.untilReady()
			}
			return err
		})
		if err != nil {
			return err
		}
		return s.ready(status)
	}
	if err := s.drain(); err != nil {
		return err
	}
	f := s.syncFault
	s.syncFault = nil
	commits := !s.skipping && !s.tx.open
	if !commits && f != nil {
		s.shim.faults.putBack(f)
		f = nil
	}
	if commits && f == nil && s.implicit {
		f = s.shim.faults.take(true, s.tx.texts...)
	}
	if f != nil {
		return s.meetAtSync(f)
	}
	return s.finish(nil)
}

// finish ends the pipeline. Then e is answered, unless the server has said that it failed.
func (s *session) finish(e *pgError) error {
	status, failed, err := s.syncServer()
	if err != nil {
		return err
	}
	if e != nil && !failed {
		s.held = nil
		s.send(e.response())
	}
	return s.ready(status)
}

// syncServer ends the server's pipeline, which commits an implicit transaction.
func (s *session) syncServer() (status byte, failed bool, err error) {
	s.fe.Send(&pgproto3.Sync{})
	if err := s.fe.Flush(); err != nil {
		return 0, false, err
	}
	status, failed, err = s.untilReady()
	if err != nil || !s.rollbackAtSync || status == 'I' {
		return status, failed, err
	}
	// A commit that has failed leaves no transaction behind, aborted or not.
	s.fe.Send(&pgproto3.Query{String: "ROLLBACK"})
	if err := s.fe.Flush(); err != nil {
		return 0, false, err
	}
	for {
		msg, err := s.fe.Receive()
		if err != nil {
			return 0, false, err
		}
		if m, ok := msg.(*pgproto3.ReadyForQuery); ok {
			return m.TxStatus, failed, nil
		}
	}
}

// untilReady reads what the server says at the end of a pipeline, which may be that it cannot commit.
func (s *session) untilReady() (status byte, failed bool, err error) {
	for {
		msg, err := s.fe.Receive()
		if err != nil {
			return 0, false, err
		}
		switch m := msg.(type) {
		case *pgproto3.ReadyForQuery:
			return m.TxStatus, failed, nil
		case *pgproto3.ErrorResponse:
			s.held = nil
			failed = true
		}
		s.send(msg)
	}
}

// ready tells the client that the query or the pipeline is over.
func (s *session) ready(status byte) error {
	s.skipping, s.implicit, s.rollbackAtSync = false, false, false
	if !s.tx.released && !s.tx.lost {
		s.tx.open, s.tx.failed = status != 'I', status == 'E'
		if !s.tx.open {
			s.tx = transaction{}
		}
	}
	s.send(&pgproto3.ReadyForQuery{TxStatus: s.tx.status()})
	s.shim.tripped()
	s.flush()
	return nil
}
