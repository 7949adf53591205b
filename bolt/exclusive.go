package bolt

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/goidem/idem/backend"
)

// exclusive is the store of a process that keeps the file open. The file lock
// makes it the only owner of the keys, so what needs no durability lives in
// memory: reservations under Rerun, all renewals, released records.
type exclusive struct {
	now    clock
	db     atomic.Pointer[bbolt.DB]
	file   *os.File // behind db, if Open opened it; changes under bbolt's write lock
	shards [shards]shard
	gens   generations
	fences fences
	writer *writer

	vetted   bool // every page has been looked at; under bbolt's write lock
	poisoned atomic.Bool
	wedged   atomic.Bool // bbolt holds locks that nobody will release
	closed   atomic.Bool

	// compacting is held by a compaction, and by Close from its beginning: a channel,
	// so that a compaction that waits for it can give up.
	compacting chan struct{}
	syncDir    func(*os.File) error

	marks marks
	sweep sync.Mutex // held while dropped generations leave the index
}

func newExclusive(db *bbolt.DB, now clock) *exclusive {
	s := &exclusive{now: now, compacting: make(chan struct{}, 1), syncDir: syncFolder}
	s.db.Store(db)
	for i := range s.shards {
		s.shards[i].entries = make(map[backend.ID]*entry)
	}
	s.writer = newWriter(s)
	return s
}

// bolt returns the bbolt handle. Compaction replaces it.
func (s *exclusive) bolt() *bbolt.DB { return s.db.Load() }

func (s *exclusive) poison() { s.poisoned.Store(true) }

// usable says why the store answers nothing, if so.
func (s *exclusive) usable() error {
	switch {
	case s.poisoned.Load():
		return ErrPoisoned
	case s.closed.Load():
		return ErrClosed
	}
	return nil
}

// view runs fn in a read transaction. fn copies what it keeps.
func (s *exclusive) view(fn func(*rows) error) error {
	return guarded(func() error {
		for {
			db := s.bolt()
			err := db.View(func(tx *bbolt.Tx) error {
				r, err := newRows(tx)
				if err != nil {
					return err
				}
				return fn(r)
			})
			// Compaction closes the old handle once the new one is in place.
			if errors.Is(err, bbolterrors.ErrDatabaseNotOpen) {
				if s.bolt() != db {
					continue
				}
				if s.closed.Load() { // since the caller was let in
					return ErrClosed
				}
			}
			return err
		}
	})
}

// fences gives out the fences of new records: one counter for the whole store,
// which keeps fences growing after a record is gone. The file holds a mark that
// no fence given has exceeded, moved ahead by a block at a time, so that fences
// grow across a crash although reservations are in memory only.
type fences struct {
	last atomic.Uint64
	mark atomic.Uint64
	mu   sync.Mutex // held while somebody waits for the mark to move

	ahead atomic.Bool // the mark is being moved before it is needed
}

const fenceBlock = 1 << 20

// coverFence makes sure that the mark on disk is not below n before n is used. It
// touches the disk once in a million times.
func (s *exclusive) coverFence(ctx context.Context, n uint64) error {
	f := &s.fences
	if s.covered(n) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n <= f.mark.Load() {
		return nil
	}
	return s.writer.do(ctx, s.raiseMark())
}

// covered reports whether the mark on disk covers the fence n. From half a block
// on it has the mark moved ahead: a fence given in a caller's own transaction must
// find it in place, because nothing can commit beside that.
func (s *exclusive) covered(n uint64) bool {
	f := &s.fences
	mark := f.mark.Load()
	if n+fenceBlock/2 > mark && f.ahead.CompareAndSwap(false, true) {
		o := s.raiseMark()
		raised := o.done
		o.done = func(committed bool) {
			raised(committed)
			f.ahead.Store(false)
		}
		if err := s.writer.submit(o); err != nil {
			f.ahead.Store(false)
		}
	}
	return n <= mark
}

// raiseMark returns the write that moves the mark a block ahead of the last fence.
func (s *exclusive) raiseMark() *op {
	var mark uint64
	return &op{
		write: func(r *rows) error {
			mark = s.fences.last.Load() + fenceBlock
			return r.setMetaNumber(metaFence, mark)
		},
		done: func(committed bool) {
			if committed {
				s.fences.mark.Store(mark)
			}
		},
	}
}

// observe keeps the counter at or above a fence that a record has.
func (f *fences) observe(n uint64) {
	for last := f.last.Load(); last < n; last = f.last.Load() {
		f.last.CompareAndSwap(last, n)
	}
}

// begin refuses a move that cannot be made at all.
func (s *exclusive) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.usable()
}

// current is the record of a key as memory or disk has it now.
type current struct {
	rec backend.Record
	at  place // where the disk has a row for it; zero: nowhere
}

// load returns the record of a held key.
func (k held) load() (current, error) {
	k.sh.mu.RLock()
	if k.e.known {
		c := current{k.e.rec, k.e.at}
		k.sh.mu.RUnlock()
		return c, nil
	}
	k.sh.mu.RUnlock()
	return k.s.lookup(k.sh, k.e.id, k.e.hash)
}

// lookup finds the record of id on disk.
func (s *exclusive) lookup(sh *shard, id backend.ID, hash uint64) (current, error) {
	var few, seen [4]place
	places := sh.places(id, hash, few[:0])
	for len(places) > 0 {
		c, err := s.read(id, hash, places)
		if err != nil || c.at != 0 {
			return c, err
		}
		// Nothing there: another key has this hash, a generation was dropped, or the
		// record moved between the look at the index and the look at the disk. Only
		// in the last case has the index changed.
		old := append(seen[:0], places...)
		places = sh.places(id, hash, few[:0])
		if equal(old, places) {
			break
		}
	}
	return current{}, nil
}

// places appends to dst where the record of id may be: what the index says, and
// where a transaction that may be committing has put it.
func (sh *shard) places(id backend.ID, hash uint64, dst []place) []place {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	dst = sh.index.find(hash, dst)
	e := sh.entries[id]
	if e == nil {
		return dst
	}
	if e.next != 0 {
		dst = append(dst, e.next)
	}
	if j := e.joined; j != nil && j.change.at != 0 {
		dst = append(dst, j.change.at)
	}
	return dst
}

func (sh *shard) find(hash uint64, dst []place) []place {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.index.find(hash, dst)
}

func equal(a, b []place) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// read looks for the record of id at the given places.
func (s *exclusive) read(id backend.ID, hash uint64, places []place) (c current, err error) {
	err = s.view(func(r *rows) error {
		for _, at := range places {
			rec, err := s.readAt(r, id, hash, at)
			if err != nil {
				return err
			}
			if rec.State != 0 {
				c = current{rec, at}
				return nil
			}
		}
		return nil
	})
	return c, err
}

func (s *exclusive) readAt(r *rows, id backend.ID, hash uint64, at place) (backend.Record, error) {
	if at == inPending {
		return r.readPending(id)
	}
	g, ok := s.gens.at(at.slot())
	if !ok {
		return backend.Record{}, nil
	}
	return r.readSettled(id, hash, g, at.seq())
}

// Reserve implements the move; the request is valid.
func (s *exclusive) Reserve(ctx context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	if err := s.begin(ctx); err != nil {
		return res, err
	}
	hash := hashOf(r.ID)
	if res, done, err := s.answer(&r, hash); done {
		return res, err
	}
	k, ok, err := s.hold(ctx, r.ID, hash, true, r.Wait)
	if err != nil {
		return res, err
	}
	if !ok {
		return backend.Reservation{Outcome: backend.Busy, Now: s.now()}, nil
	}
	res, next, at, err := s.reserve(k, &r, func(n uint64) error { return s.coverFence(ctx, n) })
	if err != nil || next.State == 0 {
		k.release()
		return res, err
	}
	res.Record = res.Record.Clone()
	if next.State == backend.InFlight && next.OnAbandoned == backend.Rerun && !r.Durable && at != inPending {
		err := k.remember(next, at)
		k.release()
		if err != nil {
			return backend.Reservation{}, err
		}
		return res, nil
	}
	if err := k.store(ctx, next, at); err != nil {
		return backend.Reservation{}, err
	}
	return res, nil
}

// answer gives the answer to a reserve that meets a settled record, from one read
// and without a lock on the key. It is not done if the reserve could change
// anything, or if memory has the say about the key.
func (s *exclusive) answer(r *backend.ReserveRequest, hash uint64) (res backend.Reservation, done bool, err error) {
	sh := s.shardOf(hash)
	var few [4]place
	sh.mu.RLock()
	e, involved := sh.entries[r.ID]
	if involved && e.parked && e.known {
		rec := e.rec
		sh.mu.RUnlock()
		step, res, err := r.Apply(rec, s.now(), 0)
		res.Record = res.Record.Clone()
		return res, !step.Changed, err
	}
	places := sh.index.find(hash, few[:0])
	sh.mu.RUnlock()
	if involved || len(places) == 0 {
		return res, false, nil
	}
	c, err := s.read(r.ID, hash, places)
	if err != nil {
		return res, true, err
	}
	now := s.now()
	if !settled(c.rec.State) || c.rec.Expired(now) {
		return res, false, nil
	}
	step, res, err := r.Apply(c.rec, now, 0)
	if step.Changed {
		return backend.Reservation{}, false, nil
	}
	return res, true, err
}

// reserve decides a reserve over the held key. next is the record to be stored,
// zero if nothing changes; at is where the disk has the current one. cover is
// called with the fence that the attempt gets, before anybody sees it.
func (s *exclusive) reserve(k held, r *backend.ReserveRequest, cover func(fence uint64) error) (res backend.Reservation, next backend.Record, at place, err error) {
	cur, err := k.load()
	if err != nil {
		return res, next, 0, err
	}
	step, res, err := r.Apply(cur.rec, s.now(), s.fences.last.Add(1))
	if err != nil || !step.Changed {
		res.Record = res.Record.Clone()
		return res, backend.Record{}, 0, err
	}
	s.fences.observe(step.Next.Fence)
	return res, step.Next, cur.at, cover(step.Next.Fence)
}

// Complete implements the move; the request is valid.
func (s *exclusive) Complete(ctx context.Context, r backend.CompleteRequest) (rec backend.Record, err error) {
	err = s.move(ctx, r.ID, completing, func(cur backend.Record, now time.Time) (step backend.Step, err error) {
		step, rec, err = r.Apply(cur, now)
		return step, err
	})
	return rec, err
}

// Release implements the move; the request is valid.
func (s *exclusive) Release(ctx context.Context, ref backend.Ref) error {
	return s.move(ctx, ref.ID, releasing, ref.ApplyRelease)
}

// Resolve implements the move; the request is valid.
func (s *exclusive) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	err = s.move(ctx, r.ID, judging, func(cur backend.Record, now time.Time) (step backend.Step, err error) {
		step, rec, err = r.Apply(cur, now)
		return step, err
	})
	return rec, err
}

// Forget implements the move; the request is valid.
func (s *exclusive) Forget(ctx context.Context, r backend.ForgetRequest) error {
	return s.move(ctx, r.ID, judging, r.Apply)
}

// moveKind says for whom a move is made.
type moveKind int

const (
	completing moveKind = iota // by the owner: a renewal may pass it
	releasing                  // by the owner: what was in memory stays there
	judging                    // by a person: outlives a crash, whatever the attempt was
)

// move makes a move that waits for the key as long as ctx allows.
func (s *exclusive) move(ctx context.Context, id backend.ID, kind moveKind, decide func(backend.Record, time.Time) (backend.Step, error)) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	k, _, err := s.hold(ctx, id, hashOf(id), false, 0)
	if err != nil {
		return err
	}
	if kind == completing {
		k.settles()
	}
	cur, err := k.load()
	if err != nil {
		k.release()
		return err
	}
	step, err := decide(cur.rec, s.now())
	switch {
	case err != nil || !step.Changed:
		k.release()
		return err
	case kind == releasing && cur.at != inPending:
		err := k.remember(step.Next, cur.at)
		k.release()
		return err
	case step.Next.State == 0 && cur.at == 0:
		err := k.forget()
		k.release()
		return err
	}
	return k.store(ctx, step.Next, cur.at)
}

// Renew implements the move; the arguments are valid. It changes memory only:
// after a crash of the process no attempt of its own is left whose lease could
// matter.
func (s *exclusive) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	hash := hashOf(ref.ID)
	sh := s.shardOf(hash)
	sh.mu.Lock()
	// While the attempt itself is being settled the renewal may pass. While
	// anybody else works on the key it waits: a takeover that has been decided and
	// is being committed must not be crossed by a renewal that succeeds.
	if e := sh.entries[ref.ID]; e != nil && e.known && e.joined == nil && (!e.busy || e.settling) {
		defer sh.mu.Unlock()
		step, err := ref.ApplyRenew(e.rec, s.now(), ttl)
		if err != nil || !step.Changed {
			return err
		}
		if sh.closed {
			return s.usable()
		}
		e.rec = step.Next
		return nil
	}
	sh.mu.Unlock()

	k, _, err := s.hold(ctx, ref.ID, hash, false, 0)
	if err != nil {
		return err
	}
	defer k.release()
	cur, err := k.load()
	if err != nil {
		return err
	}
	step, err := ref.ApplyRenew(cur.rec, s.now(), ttl)
	if err == nil && step.Changed {
		err = k.remember(step.Next, cur.at)
	}
	return err
}

// Get implements the move; the ID is valid. It waits for nobody, so that work
// inside a transaction may look at its own key.
func (s *exclusive) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	if err := s.begin(ctx); err != nil {
		return backend.Record{}, err
	}
	rec, err := s.peek(id, hashOf(id))
	if err != nil {
		return backend.Record{}, err
	}
	if rec = rec.At(s.now()); rec.State == 0 {
		return backend.Record{}, backend.ErrNotFound
	}
	return rec, nil
}

// peek returns the record of id without a lock on the key; the caller owns it.
func (s *exclusive) peek(id backend.ID, hash uint64) (backend.Record, error) {
	sh := s.shardOf(hash)
	sh.mu.RLock()
	if e := sh.entries[id]; e != nil && e.known {
		rec := e.rec.Clone()
		sh.mu.RUnlock()
		return rec, nil
	}
	sh.mu.RUnlock()
	c, err := s.lookup(sh, id, hash)
	return c.rec, err
}
