package idem_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// fakeDB is a transactional backend in memory, for tests of the transactional
// mode: records and effects in two maps that change together, with the accidents
// that a server can have. Its records are open to tests, who may damage them.
type fakeDB struct {
	mu      sync.Mutex
	records map[backend.ID]backend.Record
	effects map[string]int
	open    map[backend.ID]chan struct{} // keys held by an open transaction

	runs      int   // how often work runs before the commit that counts; 0 means 1
	commit    error // of the next commits, if any
	committed bool  // whether a commit with an error was applied all the same
	commits   int   // how many are hit; below 0: all
}

// fakeTx is a transaction of fakeDB: what it wrote so far.
type fakeTx struct {
	db      *fakeDB
	effects map[string]int
	records map[backend.ID]backend.Record
}

// Insert is an effect.
func (tx *fakeTx) Insert(name string) { tx.effects[name]++ }

var _ backend.Transactional[*fakeTx] = (*fakeDB)(nil)

func newFakeDB() *fakeDB {
	return &fakeDB{records: map[backend.ID]backend.Record{}, effects: map[string]int{}, open: map[backend.ID]chan struct{}{}}
}

func (db *fakeDB) begin() *fakeTx {
	return &fakeTx{db: db, effects: map[string]int{}, records: map[backend.ID]backend.Record{}}
}

// Commit applies the transaction, or fails as the test has ordered.
func (tx *fakeTx) Commit() error {
	db := tx.db
	db.mu.Lock()
	defer db.mu.Unlock()
	var err error
	if db.commit != nil && db.commits != 0 {
		db.commits--
		if err = db.commit; !db.committed {
			return err
		}
	}
	for name, n := range tx.effects {
		db.effects[name] += n
	}
	maps.Copy(db.records, tx.records)
	return err
}

// failCommit makes the next n commits fail with err, applied or not.
func (db *fakeDB) failCommit(n int, applied bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.commit, db.commits, db.committed = err, n, applied
}

func (db *fakeDB) wantEffect(t *testing.T, name string, n int) {
	t.Helper()
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.effects[name] != n {
		t.Errorf("effect %q is there %d times, want %d", name, db.effects[name], n)
	}
}

func (db *fakeDB) record(key string) backend.Record {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.records[testID(key)].Clone()
}

// damage changes the stored record of key.
func (db *fakeDB) damage(key string, change func(*backend.Record)) {
	db.mu.Lock()
	defer db.mu.Unlock()
	rec := db.records[testID(key)]
	change(&rec)
	db.records[testID(key)] = rec
}

// step is one atomic move.
func (db *fakeDB) step(ctx context.Context, id backend.ID, decide func(cur backend.Record, now time.Time) (backend.Step, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	s, err := decide(db.records[id], time.Now())
	if err == nil && s.Changed {
		if s.Next.State == 0 {
			delete(db.records, id)
		} else {
			db.records[id] = s.Next
		}
	}
	return err
}

func (db *fakeDB) Reserve(ctx context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	if err := r.Validate(); err != nil {
		return res, err
	}
	err = db.step(ctx, r.ID, func(cur backend.Record, now time.Time) (s backend.Step, err error) {
		s, res, err = r.Apply(cur, now, 0)
		res.Record = res.Record.Clone()
		return s, err
	})
	return res, err
}

func (db *fakeDB) Complete(ctx context.Context, r backend.CompleteRequest) (rec backend.Record, err error) {
	if err := r.Validate(); err != nil {
		return rec, err
	}
	err = db.step(ctx, r.ID, func(cur backend.Record, now time.Time) (s backend.Step, err error) {
		s, rec, err = r.Apply(cur, now)
		rec = rec.Clone()
		return s, err
	})
	return rec, err
}

func (db *fakeDB) Release(ctx context.Context, ref backend.Ref) error {
	return db.step(ctx, ref.ID, ref.ApplyRelease)
}

func (db *fakeDB) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	return db.step(ctx, ref.ID, func(cur backend.Record, now time.Time) (backend.Step, error) { return ref.ApplyRenew(cur, now, ttl) })
}

func (db *fakeDB) Get(ctx context.Context, id backend.ID) (rec backend.Record, err error) {
	err = db.step(ctx, id, func(cur backend.Record, now time.Time) (backend.Step, error) {
		if rec = cur.At(now).Clone(); rec.State == 0 {
			return backend.Step{}, backend.ErrNotFound
		}
		return backend.Step{}, nil
	})
	return rec, err
}

func (db *fakeDB) List(context.Context, backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) { yield(backend.Record{}, errors.New("not listed")) }
}

func (db *fakeDB) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	err = db.step(ctx, r.ID, func(cur backend.Record, now time.Time) (s backend.Step, err error) {
		s, rec, err = r.Apply(cur, now)
		return s, err
	})
	return rec, err
}

func (db *fakeDB) Forget(ctx context.Context, r backend.ForgetRequest) error {
	return db.step(ctx, r.ID, r.Apply)
}

func (db *fakeDB) Expire(context.Context, backend.ExpireRequest) (backend.ExpireResult, error) {
	return backend.ExpireResult{}, nil
}

func (db *fakeDB) Guarantees() backend.Guarantees { return backend.Guarantees{Atomic: true} }

// lock takes the row of a key for an open transaction; false: wait is over.
func (db *fakeDB) lock(ctx context.Context, id backend.ID, wait time.Duration) (bool, error) {
	timer := time.NewTimer(max(wait, 3*time.Millisecond))
	defer timer.Stop()
	for {
		db.mu.Lock()
		held, ok := db.open[id]
		if !ok {
			db.open[id] = make(chan struct{})
			db.mu.Unlock()
			return true, nil
		}
		db.mu.Unlock()
		select {
		case <-held:
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (db *fakeDB) unlock(id backend.ID) {
	db.mu.Lock()
	defer db.mu.Unlock()
	close(db.open[id])
	delete(db.open, id)
}

// work runs work in tx as often as a server with serialization conflicts would,
// and writes the completion.
func (db *fakeDB) work(ctx context.Context, tx *fakeTx, cur backend.Record, work backend.Work[*fakeTx]) (backend.Record, error) {
	for n := max(db.runs, 1); ; n-- {
		effects := maps.Clone(tx.effects)
		done, err := work(ctx, tx, backend.Reservation{Outcome: backend.Acquired, Record: cur.Clone(), Now: time.Now()})
		if err != nil || done.Undo || n > 1 {
			tx.effects = effects
		}
		if err != nil {
			return backend.Record{}, err
		}
		if n > 1 {
			continue
		}
		req := backend.CompleteRequest{Ref: cur.Ref, State: done.State, Body: done.Body, ReplayFor: done.ReplayFor, KnownFor: done.KnownFor}
		s, rec, err := req.Apply(cur, time.Now())
		if err != nil {
			return rec, err
		}
		tx.records[cur.ID] = s.Next
		return rec.Clone(), nil
	}
}

func (db *fakeDB) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[*fakeTx]) (backend.Reservation, error) {
	ok, err := db.lock(ctx, r.ID, r.Wait)
	if err != nil || !ok {
		return backend.Reservation{Outcome: backend.Busy}, err
	}
	defer db.unlock(r.ID)
	tx := db.begin()
	res, err := db.Join(ctx, tx, r, work)
	if err != nil || res.Outcome != backend.Acquired {
		return res, err
	}
	return res, tx.Commit()
}

func (db *fakeDB) Join(ctx context.Context, tx *fakeTx, r backend.ReserveRequest, work backend.Work[*fakeTx]) (backend.Reservation, error) {
	if err := ctx.Err(); err != nil {
		return backend.Reservation{}, err
	}
	db.mu.Lock()
	cur, ok := tx.records[r.ID]
	if !ok {
		cur = db.records[r.ID]
	}
	s, res, err := r.Apply(cur, time.Now(), 0)
	if err == nil && s.Changed && res.Outcome != backend.Acquired {
		db.records[r.ID] = s.Next // held
	}
	db.mu.Unlock()
	if err != nil || res.Outcome != backend.Acquired {
		return res, err
	}
	effects := maps.Clone(tx.effects)
	rec, err := db.work(ctx, tx, res.Record, work)
	if err != nil {
		tx.effects = effects
		return backend.Reservation{}, err
	}
	res.Record = rec
	return res, nil
}

func (db *fakeDB) Finish(ctx context.Context, ref backend.Ref, work backend.Work[*fakeTx]) (backend.Record, error) {
	cur, err := db.Get(ctx, ref.ID)
	switch {
	case errors.Is(err, backend.ErrNotFound) || err == nil && cur.Owner != ref.Owner:
		return backend.Record{}, backend.ErrLeaseLost
	case err != nil:
		return backend.Record{}, err
	case cur.State == backend.Completed || cur.State == backend.Failed:
		return cur, nil // a repeated copy
	}
	tx := db.begin()
	rec, err := db.work(ctx, tx, cur, work)
	if err != nil {
		return rec, err
	}
	// The row is looked at once more, as the lock of a real one would make it.
	if now, err := db.Get(ctx, ref.ID); err != nil || now.Owner != ref.Owner {
		return backend.Record{}, errors.Join(backend.ErrLeaseLost, err)
	}
	return rec, tx.Commit()
}
