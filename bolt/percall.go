package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"iter"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// perCall is the store of short-lived commands that share one file. Every move
// opens the file, makes its step in one transaction and closes it again; nothing
// is kept in memory, and the file is never open while the caller's operation
// runs.
type perCall struct {
	path string
	now  clock
	o    Options
}

// openPerCall checks the file, if there is one, and leaves it closed.
func openPerCall(path string, o *Options) (*DB, error) {
	p := &perCall{path: path, now: o.clock(), o: *o}
	d := &DB{engine: p, path: path}
	info, err := os.Stat(path)
	switch {
	case err == nil:
		if err := regular(info); err != nil {
			return nil, fileError(path, err)
		}
		lock := locking{path: path, wait: o.LockWait, patience: o.OpenTimeout}
		if err := p.readWith(&lock, func(*rows) error { return nil }); err != nil {
			return nil, fileError(path, err)
		}
	case !errors.Is(err, fs.ErrNotExist) || o.ReadOnly || o.MustExist:
		return nil, fileError(path, err)
	}
	d.found = inspect(path, true)
	return d, nil
}

// read runs fn over the file under a shared lock. A file that has not been created
// yet is an empty store: fn does not run.
func (p *perCall) read(ctx context.Context, fn func(*rows) error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	lock := locking{path: p.path, wait: p.o.LockWait, done: ctx.Done()}
	err := p.readWith(&lock, fn)
	switch {
	case errors.Is(err, errGone):
		return ctx.Err()
	case errors.Is(err, fs.ErrNotExist) && !p.o.ReadOnly && !p.o.MustExist:
		return nil
	}
	return err
}

func (p *perCall) readWith(lock *locking, fn func(*rows) error) error {
	db, _, err := openBolt(p.path, &bbolt.Options{ReadOnly: true, NoStatistics: true}, lock)
	if err != nil {
		return fileError(p.path, err)
	}
	return closing(db, guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			r, err := newRows(tx)
			if err != nil {
				return fileError(p.path, err)
			}
			if err := r.checkFormat(); err != nil {
				return fileError(p.path, err)
			}
			return fn(r)
		})
	}))
}

// closing closes db and returns the first error.
func closing(db *bbolt.DB, err error) error {
	if cerr := guarded(db.Close); err == nil {
		err = cerr
	}
	return err
}

// write runs fn over the file in one write transaction and commits what it wrote.
func (p *perCall) write(ctx context.Context, create bool, fn func(*rows) error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if p.o.ReadOnly {
		return ErrReadOnly
	}
	if create && !p.o.MustExist {
		if err := ensureFile(p.path); err != nil {
			return fileError(p.path, err)
		}
	}
	lock := locking{path: p.path, exclusive: true, wait: p.o.LockWait, done: ctx.Done()}
	db, file, err := openBolt(p.path, &bbolt.Options{
		FreelistType: bbolt.FreelistMapType,
		MaxSize:      p.o.MaxSize,
		NoStatistics: true,
	}, &lock)
	if errors.Is(err, errGone) {
		return ctx.Err()
	}
	if err != nil {
		return fileError(p.path, err)
	}
	panicked, err := p.commit(db, fn)
	if panicked {
		// bbolt's own Close would wait for a lock that nobody will release.
		return errors.Join(err, abandon(file))
	}
	return closing(db, err)
}

func (p *perCall) commit(db *bbolt.DB, fn func(*rows) error) (panicked bool, err error) {
	var (
		committing bool
		txid       int
		failure    error
	)
	panicked, err = watched(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			txid = tx.ID()
			failure = guarded(func() error {
				r, err := newRows(tx)
				if err != nil {
					return fileError(p.path, err)
				}
				if err := r.checkFormat(); err != nil {
					return fileError(p.path, err)
				}
				if err := r.catchUp(); err != nil {
					return err
				}
				if err := fn(r); err != nil {
					return err
				}
				if !r.wrote {
					return errNothing
				}
				return nil
			})
			committing = failure == nil
			return failure
		})
	})
	switch {
	case err == nil || errors.Is(err, errNothing):
		return false, nil
	case panicked:
		return true, unknownCommit(err)
	case !committing:
		return false, err
	}
	if definite := definiteFailure(db, err, txid); definite != nil {
		return false, definite
	}
	return false, unknownCommit(err)
}

// catchUp brings every index bucket up to date. An exclusive opener that was
// killed leaves that to the next.
func (r *rows) catchUp() error {
	for _, g := range r.generations() {
		if r.unindexed(g) == 0 {
			continue
		}
		indexed := uint64(0)
		if x := r.bucket(g, indexPrefix); x != nil {
			indexed = x.Sequence()
		}
		var entries []entryAt
		if err := r.tail(g, indexed, func(hash, seq uint64) error {
			entries = append(entries, entryAt{hash, place(seq)})
			return nil
		}); err != nil {
			return err
		}
		if err := r.extendIndex(g, entries); err != nil {
			return err
		}
	}
	return nil
}

// unindexed is about how many records the generation's index bucket lacks.
func (r *rows) unindexed(g generation) uint64 {
	n := uint64(0)
	if b := r.bucket(g, recordPrefix); b != nil {
		n = b.Sequence()
	}
	if x := r.bucket(g, indexPrefix); x != nil {
		n -= min(n, x.Sequence())
	}
	return n
}

// find looks the record of id up on disk: among the pending, then in every
// generation's index, then among records that are not indexed yet.
func (r *rows) find(id backend.ID, hash uint64, gens *generations, now time.Time) (current, error) {
	rec, err := r.readPending(id)
	if err != nil {
		return current{}, err
	}
	if rec.State != 0 {
		return current{rec, inPending}, nil
	}
	for _, g := range r.live(now) {
		slot, err := gens.slot(g)
		if err != nil {
			return current{}, err
		}
		var c current
		try := func(seq uint64) error {
			rec, err := r.readSettled(id, hash, g, seq)
			if err == nil && rec.State != 0 {
				c = current{rec, placeAt(slot, seq)}
			}
			return err
		}
		indexed := uint64(0)
		if x := r.bucket(g, indexPrefix); x != nil {
			indexed = x.Sequence()
			cursor, prefix := x.Cursor(), indexKey(hash, 0)
			for k, _ := cursor.Seek(prefix); len(k) == indexKeySize && binary.BigEndian.Uint64(k) == hash && c.at == 0; k, _ = cursor.Next() {
				if err := try(binary.BigEndian.Uint64(k[hashSize:])); err != nil {
					return current{}, err
				}
			}
		}
		if c.at == 0 {
			if err := r.tail(g, indexed, func(h, seq uint64) error {
				if h != hash || c.at != 0 {
					return nil
				}
				return try(seq)
			}); err != nil {
				return current{}, err
			}
		}
		if c.at != 0 {
			return c, nil
		}
	}
	return current{}, nil
}

// maxScan is how many records that are not indexed a reader looks through, rather
// than have them indexed first.
const maxScan = 4096

// lookup reads the record of id under a shared lock. at is when.
func (p *perCall) lookup(ctx context.Context, id backend.ID) (rec backend.Record, at time.Time, err error) {
	var scan uint64
	look := func(r *rows) error {
		if !p.o.ReadOnly && scan == 0 {
			for _, g := range r.generations() {
				scan += r.unindexed(g)
			}
			if scan > maxScan {
				return nil
			}
		}
		at = p.now()
		c, err := r.find(id, hashOf(id), new(generations), at)
		rec = c.rec
		return err
	}
	if err := p.read(ctx, look); err != nil || scan <= maxScan {
		return rec, at, err
	}
	if err := p.write(ctx, false, func(*rows) error { return nil }); err != nil {
		return rec, at, err
	}
	return rec, at, p.read(ctx, look)
}

// step makes one move on one key in one transaction.
func (p *perCall) step(ctx context.Context, id backend.ID, create bool, decide func(r *rows, cur backend.Record, now time.Time) (backend.Step, error)) error {
	return p.write(ctx, create, func(r *rows) error {
		hash, gens, now := hashOf(id), new(generations), p.now()
		if err := r.dropCrowd(now); err != nil {
			return err
		}
		cur, err := r.find(id, hash, gens, now)
		if err != nil {
			return err
		}
		step, err := decide(r, cur.rec, now)
		if err != nil || !step.Changed {
			return err
		}
		c := newChange(id, hash, gens, step.Next, cur.at, now)
		if err := c.write(r); err != nil || !settled(step.Next.State) {
			return err
		}
		// The index was complete when the transaction began, and is again.
		return r.extendIndex(c.gen, []entryAt{{hash, place(c.at.seq())}})
	})
}

// Reserve implements the move. One that only finds a result shares the file with
// other readers.
func (p *perCall) Reserve(ctx context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	cur, now, err := p.lookup(ctx, r.ID)
	switch {
	case err != nil:
		return res, err
	case settled(cur.State) && !cur.Expired(now):
		if step, res, err := r.Apply(cur, now, 0); !step.Changed {
			return res, err
		}
	}
	err = p.step(ctx, r.ID, true, func(rw *rows, cur backend.Record, now time.Time) (step backend.Step, err error) {
		mark, err := rw.metaNumber(metaFence)
		if err != nil {
			return step, err
		}
		step, res, err = r.Apply(cur, now, mark+1)
		if err == nil && step.Changed && step.Next.Fence > mark {
			err = rw.setMetaNumber(metaFence, step.Next.Fence)
		}
		return step, err
	})
	if err != nil {
		return backend.Reservation{}, err
	}
	res.Record = res.Record.Clone()
	return res, nil
}

// Complete implements the move.
func (p *perCall) Complete(ctx context.Context, r backend.CompleteRequest) (rec backend.Record, err error) {
	err = p.step(ctx, r.ID, false, func(_ *rows, cur backend.Record, now time.Time) (step backend.Step, err error) {
		step, rec, err = r.Apply(cur, now)
		return step, err
	})
	return rec, lostWithFile(err)
}

// Release implements the move.
func (p *perCall) Release(ctx context.Context, ref backend.Ref) error {
	err := p.step(ctx, ref.ID, false, func(_ *rows, cur backend.Record, now time.Time) (backend.Step, error) {
		return ref.ApplyRelease(cur, now)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // what is not there is not held
	}
	return err
}

// Renew implements the move.
func (p *perCall) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	return lostWithFile(p.step(ctx, ref.ID, false, func(_ *rows, cur backend.Record, now time.Time) (backend.Step, error) {
		return ref.ApplyRenew(cur, now, ttl)
	}))
}

// lostWithFile: an attempt whose whole file is gone owns nothing any more. A new
// file must not be created for its completion (R12).
func lostWithFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return backend.ErrLeaseLost
	}
	return err
}

// Resolve implements the move.
func (p *perCall) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	err = p.step(ctx, r.ID, false, func(_ *rows, cur backend.Record, now time.Time) (step backend.Step, err error) {
		step, rec, err = r.Apply(cur, now)
		return step, err
	})
	return rec, notFound(err)
}

// Forget implements the move.
func (p *perCall) Forget(ctx context.Context, r backend.ForgetRequest) error {
	return notFound(p.step(ctx, r.ID, false, func(_ *rows, cur backend.Record, now time.Time) (backend.Step, error) {
		return r.Apply(cur, now)
	}))
}

// notFound: where there is no file, there is no record.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(backend.ErrNotFound, err)
	}
	return err
}

// Get implements the move.
func (p *perCall) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	rec, now, err := p.lookup(ctx, id)
	if err != nil {
		return backend.Record{}, err
	}
	if rec = rec.At(now); rec.State == 0 {
		return backend.Record{}, backend.ErrNotFound
	}
	return rec, nil
}

// List implements the move. The file is open for one chunk at a time.
func (p *perCall) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		view := func(fn func(*rows) error) error { return p.read(ctx, fn) }
		listDisk(ctx, view, p.now, nil, f, yield)
	}
}

// Expire implements the move. What one commit drops, and the pending rows, are a
// transaction of their own, so that other commands get the file in between.
func (p *perCall) Expire(ctx context.Context, r backend.ExpireRequest) (done backend.ExpireResult, err error) {
	limit := r.Limit
	if limit <= 0 {
		limit = defaultExpireLimit
	}
	var due []group
	var from []byte
	if err := p.read(ctx, func(r *rows) error {
		now := p.now()
		due, _ = r.due(recordPrefix, now, true)
		bodies, _ := r.due(bodyPrefix, now, true)
		due = append(due, bodies...)
		return nil
	}); err != nil {
		return done, err
	}
	inOrder(due)
	for seen := uint64(0); len(due) > 0; {
		if done.More = seen >= max(expireRows, uint64(limit)); done.More {
			return done, nil
		}
		var now, dropped []group
		var n uint64
		now, due, n = piece(due)
		seen += n
		if err := p.write(ctx, false, func(r *rows) (err error) {
			dropped, err = r.drop(now, p.now())
			return err
		}); err != nil {
			return done, err
		}
		for _, d := range dropped {
			if d.prefix == bodyPrefix {
				done.Bodies += int(d.rows)
			} else {
				done.Removed += int(d.rows)
			}
		}
	}
	for more := true; more; {
		if done.Removed >= limit {
			done.More = true
			return done, nil
		}
		var ids []backend.ID
		more = false // where there is no file yet, nothing is read
		if err := p.read(ctx, func(r *rows) (err error) {
			ids, from, more, err = r.duePending(from, p.now)
			return err
		}); err != nil {
			return done, err
		}
		if len(ids) == 0 {
			continue
		}
		removed := 0
		if err := p.write(ctx, false, func(r *rows) error {
			for _, id := range ids {
				// Again, now that nobody else can change it (R24).
				rec, err := r.readPending(id)
				if err != nil || rec.State == 0 || !backend.ApplyExpire(rec, p.now()).Changed {
					continue
				}
				if err := r.deletePending(id); err != nil {
					return err
				}
				removed++
			}
			return nil
		}); err != nil {
			return done, err
		}
		done.Removed += removed
	}
	return done, nil
}
