package crdbshim

import "time"

// armed reports whether any fault is left.
func (fs *faults) armed() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.list {
		if f.left > 0 {
			return true
		}
	}
	return false
}

// putBack returns a fault that was taken and could not happen.
func (fs *faults) putBack(f *Injected) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.left++
}

// takeFault takes the fault that befalls st, now that everything before it is done.
func (s *session) takeFault(st *statement) *Injected {
	if st.commits() && s.tx.open && !s.tx.failed {
		if f := s.shim.faults.take(true, append(s.tx.texts, st.text)...); f != nil {
			return f
		}
	}
	return s.shim.faults.take(false, st.text)
}

// meet runs st under the fault f.
func (s *session) meet(f *Injected, st *statement, run func(step)) error {
	commits := st.commits() && s.tx.open && !s.tx.failed
	normal := step{release: st.kind == release && st.restart}
	happened := func() { s.shim.faults.happened(f) }
	if !commits && !s.tx.open && (f.Kind == CutAfterCommit || f.Kind == Ambiguous) {
		s.syncFault = f // the commit comes with the end of the pipeline
		s.track(st)
		run(normal)
		return nil
	}
	switch f.Kind {
	case Serialization:
		happened()
		return s.failCommit(st, commits, errSerialization())
	case Ambiguous:
		if !f.Applied || !commits {
			happened()
			return s.failCommit(st, commits, errAmbiguous())
		}
		normal.silent = true
		run(normal)
		if err := s.drain(); err != nil || s.skipping {
			return err // it really failed
		}
		happened()
		if normal.release {
			s.tx.released, s.tx.lost = false, true
		}
		s.send(errAmbiguous().response())
		s.skipping = true
		return nil
	case CutBeforeCommit:
		happened()
		s.cutClient(f)
		return errCut
	case CutAfterCommit:
		if s.cutClient(f); f.Delay == 0 {
			defer happened() // when it is committed, but before the client can know
		} else {
			happened()
		}
		normal.silent = true
		run(normal)
		if err := s.drain(); err != nil {
			return err
		}
		return errCut
	}
	if f.Applied {
		s.track(st)
		run(normal)
		if err := s.drain(); err != nil {
			return err
		}
		happened()
		return s.stall(f)
	}
	happened()
	if err := s.stall(f); err != nil {
		return err
	}
	s.track(st)
	run(normal)
	if normal.release {
		return s.drain()
	}
	return nil
}

// meetAway meets f at a statement that the server does not execute.
func (s *session) meetAway(f *Injected, st *statement, run func(step)) error {
	s.shim.faults.happened(f)
	switch f.Kind {
	case Serialization:
		return s.raise(errSerialization())
	case Ambiguous:
		return s.raise(errAmbiguous())
	case CutBeforeCommit:
		s.cutClient(f)
		return errCut
	case CutAfterCommit:
		s.cutClient(f)
		if _, err := s.restartProtocol(st, run); err != nil {
			return err
		}
		return errCut
	}
	if !f.Applied {
		if err := s.stall(f); err != nil {
			return err
		}
	}
	if _, err := s.restartProtocol(st, run); err != nil || !f.Applied {
		return err
	}
	return s.stall(f)
}

// failCommit answers e. A COMMIT that fails leaves no transaction, unlike a RELEASE.
func (s *session) failCommit(st *statement, commits bool, e *pgError) error {
	s.rollbackAtSync = commits && st.kind == commit
	return s.raise(e)
}

// meetAtSync ends an implicit transaction under the fault f.
func (s *session) meetAtSync(f *Injected) error {
	happened := func() { s.shim.faults.happened(f) }
	switch f.Kind {
	case Serialization, Ambiguous:
		if f.Kind == Ambiguous && f.Applied {
			happened()
			return s.finish(errAmbiguous())
		}
		happened()
		s.held = nil // the statement has failed, and is not done
		e := errAmbiguous()
		if f.Kind == Serialization {
			e = errSerialization()
		}
		if err := s.raise(e); err != nil {
			return err
		}
		return s.finish(nil)
	case CutBeforeCommit:
		happened()
		s.cutClient(f)
		return errCut
	case CutAfterCommit:
		happened()
		s.cutClient(f)
		if _, _, err := s.syncServer(); err != nil {
			return err
		}
		return errCut
	}
	happened()
	if f.Applied {
		status, _, err := s.syncServer()
		if err != nil {
			return err
		}
		if err := s.stall(f); err != nil {
			return err
		}
		return s.ready(status)
	}
	if err := s.stall(f); err != nil {
		return err
	}
	return s.finish(nil)
}

// cutClient cuts the client off now, if the server's side is to go on without it for a time, which it
// waits for. Otherwise the client is cut off when the session ends.
func (s *session) cutClient(f *Injected) {
	if f.Deliver {
		s.send(nil)
		s.flush()
	}
	if f.Delay > 0 {
		s.client.Close()
		s.wait(f.Delay)
	}
}

// stall waits as f says. It returns an error if the session is over.
func (s *session) stall(f *Injected) error {
	if f.Delay == 0 {
		select {
		case <-s.in.gone:
		case <-s.shim.done:
		}
		return errCut
	}
	s.wait(f.Delay)
	return nil
}

// wait waits for d, or until the shim is closed.
func (s *session) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.shim.done:
	}
}
