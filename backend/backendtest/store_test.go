package backendtest_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// store is a small transactional backend whose every decision can be replaced, so
// that the suite can be shown stores that are wrong in one way each. With no
// decision replaced it is right.
type store struct {
	sem chan struct{} // a mutex that a context can stop waiting for
	now func() time.Time

	records map[string]backend.Record
	spoiled map[string]error         // unreadable records
	busy    map[string]chan struct{} // keys of open transactions; closed at their end
	fence   uint64
	effects map[string]int // committed; the ledger
	lose    *bool          // the next commit's answer is lost; whether it took effect

	key      func(id backend.ID) string
	reserve  func(r *backend.ReserveRequest, cur backend.Record, now time.Time, seed uint64) (backend.Step, backend.Reservation, error)
	complete func(r *backend.CompleteRequest, cur backend.Record, now time.Time) (backend.Step, backend.Record, error)
	release  func(ref backend.Ref, cur backend.Record, now time.Time) (backend.Step, error)
	renew    func(ref backend.Ref, cur backend.Record, now time.Time, ttl time.Duration) (backend.Step, error)
	resolve  func(r *backend.ResolveRequest, cur backend.Record, now time.Time) (backend.Step, backend.Record, error)
	forget   func(r *backend.ForgetRequest, cur backend.Record, now time.Time) (backend.Step, error)
	expire   func(cur backend.Record, now time.Time) backend.Step
	read     func(cur backend.Record, now time.Time) backend.Record
	match    func(f *backend.Filter, r *backend.Record, now time.Time) bool

	sweepNew, miscount, silent, ctxCommit                                            bool
	arena                                                                            []byte // bytes that reads share
	aliasOut, racy, unchecked, deaf, holdList, staleSweep                            bool
	keepEffects, earlyEffects, ignoreUndo, blindFinish, repeatFinish, failLostCommit bool
	ignoreEarly, waitForEver, joinBreaks, joinKeeps, swallow, runDuplicates          bool
}

var _ backend.Transactional[*storeTx] = (*store)(nil)

func newStore(now func() time.Time) *store {
	return &store{
		sem: make(chan struct{}, 1), now: now,
		records: make(map[string]backend.Record), spoiled: make(map[string]error), busy: make(map[string]chan struct{}), effects: make(map[string]int),
		key:      func(id backend.ID) string { return string(id.AppendTo(nil)) },
		reserve:  (*backend.ReserveRequest).Apply,
		complete: (*backend.CompleteRequest).Apply,
		release:  backend.Ref.ApplyRelease,
		renew:    backend.Ref.ApplyRenew,
		resolve:  (*backend.ResolveRequest).Apply,
		forget:   (*backend.ForgetRequest).Apply,
		expire:   backend.ApplyExpire,
		read:     backend.Record.At,
		match:    (*backend.Filter).Match,
	}
}

func (s *store) lock(ctx context.Context) error {
	if s.deaf {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *store) unlock() { <-s.sem }

func (s *store) copy(r backend.Record) backend.Record {
	if s.aliasOut {
		return r
	}
	if s.arena != nil {
		r = r.Clone()
		r.Body = s.arena[:copy(s.arena, r.Body)]
		return r
	}
	return r.Clone()
}

func (s *store) write(key string, step backend.Step) {
	switch {
	case !step.Changed:
	case step.Next.State == 0:
		delete(s.records, key)
	default:
		s.fence = max(s.fence, step.Next.Fence)
		s.records[key] = step.Next
	}
}

// claim locks the store at a moment when no transaction holds the key. With wait
// >= 0 it gives up after that time; the store is unlocked then.
func (s *store) claim(ctx context.Context, key string, wait time.Duration) (free bool, err error) {
	for {
		if err := s.lock(ctx); err != nil {
			return false, err
		}
		held := s.busy[key]
		if held == nil {
			return true, nil
		}
		s.unlock()
		if s.waitForEver {
			wait = -1
		}
		var limit <-chan time.Time
		if wait >= 0 {
			limit = time.After(wait)
		}
		select {
		case <-held:
		case <-limit:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// move makes one atomic step on one record.
func (s *store) move(ctx context.Context, id backend.ID, decide func(cur backend.Record, now time.Time) (backend.Step, error)) error {
	key := s.key(id)
	if _, err := s.claim(ctx, key, -1); err != nil {
		return err
	}
	defer s.unlock()
	if err := s.spoiled[key]; err != nil {
		return err
	}
	step, err := decide(s.records[key], s.now())
	if err == nil {
		s.write(key, step)
	}
	return err
}

func (s *store) check(err error) error {
	if s.unchecked {
		return nil
	}
	return err
}

func (s *store) Reserve(ctx context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	if err := s.check(r.Validate()); err != nil {
		return res, err
	}
	key := s.key(r.ID)
	free, err := s.claim(ctx, key, max(r.Wait, 0))
	if err != nil || !free {
		return backend.Reservation{Outcome: backend.Busy, Now: s.now()}, err
	}
	defer s.unlock()
	if err := s.spoiled[key]; err != nil {
		return res, err
	}
	cur := s.records[key]
	if s.racy { // reads, then writes
		s.unlock()
		time.Sleep(time.Millisecond)
		s.sem <- struct{}{}
	}
	step, res, err := s.reserve(&r, cur, s.now(), s.fence+1)
	if err != nil {
		return backend.Reservation{}, err
	}
	s.write(key, step)
	res.Record = s.copy(res.Record)
	return res, nil
}

func (s *store) Complete(ctx context.Context, r backend.CompleteRequest) (rec backend.Record, err error) {
	if err := s.check(r.Validate()); err != nil {
		return rec, err
	}
	err = s.move(ctx, r.ID, func(cur backend.Record, now time.Time) (step backend.Step, err error) {
		step, rec, err = s.complete(&r, cur, now)
		rec = s.copy(rec)
		return step, err
	})
	return rec, err
}

func (s *store) Release(ctx context.Context, ref backend.Ref) error {
	if err := s.check(ref.Validate()); err != nil {
		return err
	}
	return s.move(ctx, ref.ID, func(cur backend.Record, now time.Time) (backend.Step, error) { return s.release(ref, cur, now) })
}

func (s *store) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	if err := s.check(ref.ValidateRenew(ttl)); err != nil {
		return err
	}
	return s.move(ctx, ref.ID, func(cur backend.Record, now time.Time) (backend.Step, error) { return s.renew(ref, cur, now, ttl) })
}

func (s *store) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	if err := s.check(r.Validate()); err != nil {
		return rec, err
	}
	err = s.move(ctx, r.ID, func(cur backend.Record, now time.Time) (step backend.Step, err error) {
		step, rec, err = s.resolve(&r, cur, now)
		rec = s.copy(rec)
		return step, err
	})
	return rec, err
}

func (s *store) Forget(ctx context.Context, r backend.ForgetRequest) error {
	if err := s.check(r.Validate()); err != nil {
		return err
	}
	return s.move(ctx, r.ID, func(cur backend.Record, now time.Time) (backend.Step, error) { return s.forget(&r, cur, now) })
}

// Get sees what is committed, whatever transaction is open.
func (s *store) Get(ctx context.Context, id backend.ID) (rec backend.Record, err error) {
	if err := s.check(id.Validate()); err != nil {
		return rec, err
	}
	if err := s.lock(ctx); err != nil {
		return rec, err
	}
	defer s.unlock()
	key := s.key(id)
	if err := s.spoiled[key]; err != nil {
		return rec, err
	}
	if rec = s.copy(s.read(s.records[key], s.now())); rec.State == 0 {
		return rec, backend.ErrNotFound
	}
	return rec, nil
}

func (s *store) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		if err := s.lock(ctx); err != nil {
			yield(backend.Record{}, err)
			return
		}
		var found []backend.Record
		for _, rec := range s.records {
			if rec = s.read(rec, s.now()); rec.State != 0 && s.match(&f, &rec, s.now()) {
				found = append(found, s.copy(rec))
			}
		}
		if s.holdList {
			defer s.unlock()
		} else {
			s.unlock()
		}
		for _, rec := range found {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

func (s *store) Expire(ctx context.Context, r backend.ExpireRequest) (done backend.ExpireResult, err error) {
	if err := s.lock(ctx); err != nil {
		return done, err
	}
	defer s.unlock()
	if s.sweepNew && len(s.records) == 0 {
		return done, errNoBucket
	}
	limit := r.Limit
	if limit <= 0 {
		limit = 1000
	}
	var due []string
	for key, rec := range s.records {
		if step := s.expire(rec, s.now()); step.Changed && s.spoiled[key] == nil && s.busy[key] == nil {
			if done.More = len(due) == limit; done.More {
				break
			}
			due = append(due, key)
		}
	}
	if s.staleSweep {
		s.unlock()
		time.Sleep(time.Millisecond)
		s.sem <- struct{}{}
	}
	for _, key := range due {
		step := s.expire(s.records[key], s.now())
		if s.staleSweep {
			step = backend.Step{Changed: true}
		}
		s.write(key, step)
		if step.Next.State == 0 {
			done.Removed++
			if s.miscount {
				done.Removed++
			}
		} else {
			done.Bodies++
		}
	}
	return done, nil
}

func (s *store) Guarantees() backend.Guarantees {
	if s.silent {
		return backend.Guarantees{}
	}
	return backend.Guarantees{ProcessCrash: backend.Lost, MachineCrash: backend.Lost, Atomic: true}
}

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

// testClock moves only when it is told to.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newTestClock() *testClock {
	return &testClock{now: time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)}
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
