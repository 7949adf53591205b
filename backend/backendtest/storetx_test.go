package backendtest_test

import (
	"context"
	"errors"
	"time"

	"github.com/goidem/idem/backend"
)

// storeTx is a transaction: effects and records that are not committed yet, and
// the keys that it holds.
type storeTx struct {
	s       *store
	effects []string
	staged  map[string]backend.Record
	held    map[string]chan struct{}
	ended   bool
	aborted bool
}

var (
	errEnded    = errors.New("the transaction was ended early")
	errNoBucket = errors.New("bucket not found")
	errAborted  = errors.New("the transaction is aborted")
)

func (s *store) begin() *storeTx {
	return &storeTx{s: s, staged: make(map[string]backend.Record), held: make(map[string]chan struct{})}
}

// hold takes a key for the life of the transaction. The store is locked.
func (tx *storeTx) hold(key string) {
	tx.held[key] = make(chan struct{})
	tx.s.busy[key] = tx.held[key]
}

// end commits or rolls back. The store is locked.
func (tx *storeTx) end(commit bool) {
	if commit {
		for _, name := range tx.effects {
			tx.s.effects[name]++
		}
		for key, rec := range tx.staged {
			tx.s.write(key, backend.Step{Next: rec, Changed: true})
		}
	}
	for key, ch := range tx.held {
		if tx.s.busy[key] == ch {
			delete(tx.s.busy, key)
		}
		close(ch)
	}
	tx.held = nil
}

// Effect is what a Work does.
func (tx *storeTx) Effect(name string) {
	if tx.s.earlyEffects {
		tx.s.sem <- struct{}{}
		tx.s.effects[name]++
		tx.s.unlock()
		return
	}
	tx.effects = append(tx.effects, name)
}

// Commit is what a Work must not do: the reservation is uncertain until it is
// completed, so that this shows.
func (tx *storeTx) Commit() bool {
	tx.s.sem <- struct{}{}
	defer tx.s.unlock()
	for key, rec := range tx.staged {
		rec.State, rec.KnownUntil = backend.Uncertain, time.Time{}
		if tx.s.ignoreEarly {
			rec = tx.s.records[key]
			if rec.State == 0 {
				delete(tx.staged, key)
				continue
			}
		}
		tx.staged[key] = rec
	}
	tx.end(true)
	tx.ended = true
	return true
}

// attempt runs work over the record that the transaction has just reserved or
// found, and stages its completion.
func (tx *storeTx) attempt(ctx context.Context, key string, res backend.Reservation, work backend.Work[*storeTx]) (rec backend.Record, err error) {
	mark := len(tx.effects)
	shown := res
	shown.Record = shown.Record.Clone()
	c, err := work(ctx, tx, shown)
	if tx.ended {
		if tx.s.ignoreEarly {
			return res.Record, nil
		}
		return rec, errEnded
	}
	if err != nil {
		return rec, err
	}
	req := backend.CompleteRequest{Ref: res.Record.Ref, State: c.State, Body: c.Body, ReplayFor: c.ReplayFor, KnownFor: c.KnownFor}
	if err := req.Validate(); err != nil {
		return rec, err
	}
	if c.Undo && !tx.s.ignoreUndo {
		tx.effects = tx.effects[:mark]
	}
	step, rec, err := tx.s.complete(&req, res.Record, tx.s.now())
	if err != nil {
		return rec, err
	}
	tx.staged[key] = step.Next
	return rec.Clone(), nil
}

// finish ends a transaction that the store began itself.
func (s *store) finish(tx *storeTx, commit bool) {
	if tx.ended {
		return
	}
	s.sem <- struct{}{}
	tx.end(commit || s.keepEffects)
	s.unlock()
}

func (s *store) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[*storeTx]) (res backend.Reservation, err error) {
	if err := s.check(r.Validate()); err != nil {
		return res, err
	}
	key := s.key(r.ID)
	for {
		free, err := s.claim(ctx, key, max(r.Wait, 0))
		if err != nil || !free {
			return backend.Reservation{Outcome: backend.Busy, Now: s.now()}, err
		}
		tx := s.begin()
		res, err = s.begun(&r, key, tx)
		s.unlock()
		if err != nil || res.Outcome != backend.Acquired || res.Record.State != backend.InFlight {
			if s.runDuplicates && err == nil {
				_, _ = work(ctx, tx, res)
			}
			return res, err
		}
		committed := false
		func() {
			defer func() {
				s.finish(tx, committed)
				if s.swallow {
					if recover() != nil {
						err = errWorkPanicked
					}
				}
			}()
			res.Record, err = tx.attempt(ctx, key, res, work)
			committed = err == nil
			if committed && s.lose != nil {
				committed = *s.lose
			}
		}()
		if err != nil {
			return backend.Reservation{}, err
		}
		if s.ctxCommit && ctx.Err() != nil {
			return backend.Reservation{}, ctx.Err()
		}
		if s.lose == nil {
			return res, nil
		}
		s.lose = nil
		if s.failLostCommit {
			return backend.Reservation{}, errLostCommit
		}
		if committed {
			return res, nil
		}
	}
}

var (
	errWorkPanicked = errors.New("work panicked")
	errLostCommit   = errors.New("commit: connection lost")
)

// begun reserves inside tx; the store is locked.
func (s *store) begun(r *backend.ReserveRequest, key string, tx *storeTx) (backend.Reservation, error) {
	if err := s.spoiled[key]; err != nil {
		return backend.Reservation{}, err
	}
	cur, mine := tx.staged[key]
	if !mine {
		cur = s.records[key]
	}
	step, res, err := s.reserve(r, cur, s.now(), s.fence+1)
	if err != nil {
		return backend.Reservation{}, err
	}
	res.Record = s.copy(res.Record)
	switch {
	case res.Outcome == backend.Acquired && step.Changed:
		s.fence = max(s.fence, step.Next.Fence)
		tx.staged[key] = step.Next
		if tx.held[key] == nil {
			tx.hold(key)
		}
	case step.Changed && mine:
		tx.staged[key] = step.Next
	case step.Changed:
		s.write(key, step)
	case res.Outcome == backend.Acquired: // its own reserve in lease mode
		res.Outcome = backend.Existing
	}
	return res, nil
}

func (s *store) Join(ctx context.Context, tx *storeTx, r backend.ReserveRequest, work backend.Work[*storeTx]) (res backend.Reservation, err error) {
	if err := s.check(r.Validate()); err != nil {
		return res, err
	}
	key := s.key(r.ID)
	if tx.held[key] == nil {
		free, err := s.claim(ctx, key, max(r.Wait, 0))
		if err != nil || !free {
			return backend.Reservation{Outcome: backend.Busy, Now: s.now()}, err
		}
	} else if err := s.lock(ctx); err != nil {
		return res, err
	}
	was, had := tx.staged[key]
	res, err = s.begun(&r, key, tx)
	s.unlock()
	if err != nil || res.Outcome != backend.Acquired {
		tx.aborted = tx.aborted || s.joinBreaks
		return res, err
	}
	mark := len(tx.effects)
	rec, err := tx.attempt(ctx, key, res, work)
	if err != nil {
		if !s.joinKeeps {
			tx.effects = tx.effects[:mark]
		}
		if delete(tx.staged, key); had {
			tx.staged[key] = was
		}
		return backend.Reservation{}, err
	}
	res.Record = rec
	return res, nil
}

func (s *store) Finish(ctx context.Context, ref backend.Ref, work backend.Work[*storeTx]) (rec backend.Record, err error) {
	if err := s.check(ref.Validate()); err != nil {
		return rec, err
	}
	key := s.key(ref.ID)
	if _, err := s.claim(ctx, key, -1); err != nil {
		return rec, err
	}
	cur, now := s.records[key], s.now()
	probe := backend.CompleteRequest{Ref: ref, State: backend.Completed, ReplayFor: 1, KnownFor: 1}
	step, rec, err := s.complete(&probe, cur, now)
	if s.blindFinish {
		step, err = backend.Step{Changed: true}, nil
		cur.Ref = ref
		if cur.State != backend.Uncertain {
			cur.State, cur.KnownUntil = backend.InFlight, time.Time{}
		}
	}
	if s.repeatFinish && err == nil && !step.Changed {
		step.Changed, cur.State = true, backend.InFlight
	}
	if err != nil || !step.Changed {
		s.unlock()
		return rec.Clone(), err
	}
	tx := s.begin()
	tx.hold(key)
	s.unlock()
	committed := false
	defer func() { s.finish(tx, committed) }()
	rec, err = tx.attempt(ctx, key, backend.Reservation{Outcome: backend.Acquired, Record: cur, Now: now}, work)
	committed = err == nil
	return rec, err
}

// ownTx runs do in a transaction of the caller.
func (s *store) ownTx(do func(tx *storeTx) error) error {
	tx := s.begin()
	err := do(tx)
	if tx.aborted {
		err = errAborted
	}
	s.sem <- struct{}{}
	defer s.unlock()
	tx.end(err == nil)
	return err
}

// committed reads the ledger.
func (s *store) committed(name string) int {
	s.sem <- struct{}{}
	defer s.unlock()
	return s.effects[name]
}
