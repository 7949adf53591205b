package backendtest_test

import (
	"context"
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
