package bolt

import (
	"bytes"
	"context"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	defaultExpireLimit = 1000
	// expireBatch is how many pending rows one commit removes: their keys are held
	// meanwhile.
	expireBatch = 128
)

// Expire implements the move. Results whose replay window is over, and then records
// that are over, are dropped by whole groups; pending rows and records in memory are
// removed one by one. Bodies in the answer counts the results in dropped groups, also
// of records that go in the same call.
func (s *exclusive) Expire(ctx context.Context, r backend.ExpireRequest) (done backend.ExpireResult, err error) {
	if err := s.begin(ctx); err != nil {
		return done, err
	}
	limit := r.Limit
	if limit <= 0 {
		limit = defaultExpireLimit
	}
	var due []group
	if err := s.view(func(r *rows) error {
		due = s.due(r, s.now(), true)
		return nil
	}); err != nil {
		return done, err
	}
	for seen := uint64(0); len(due) > 0 && err == nil; {
		if done.More = seen >= max(expireRows, uint64(limit)); done.More {
			break
		}
		var now []group
		var n uint64
		now, due, n = piece(due)
		seen += n
		var bodies int
		bodies, err = s.drop(ctx, now)
		done.Bodies += bodies
	}
	done.Removed = s.forgetDropped()
	if err != nil || done.More {
		return done, err
	}
	s.expireMemory(&done, limit)
	if !done.More {
		err = s.expirePending(ctx, &done, limit)
	}
	return done, err
}

// due returns the groups that are due at now, in order: results as the disk has
// them, records as they are numbered, which includes numbers that were given for a
// transaction that was rolled back.
func (s *exclusive) due(r *rows, now time.Time, exact bool) []group {
	due, all := r.due(bodyPrefix, now, exact)
	s.gens.bodies.Store(int64(all))
	for _, g := range s.gens.due(now) {
		d := group{prefix: recordPrefix, g: g}
		if b := r.bucket(g, recordPrefix); b != nil {
			d.rows = b.Sequence()
		}
		due = append(due, d)
	}
	inOrder(due)
	return due
}

// drop removes groups from the disk, in one commit, and returns how many results
// were in them.
func (s *exclusive) drop(ctx context.Context, groups []group) (bodies int, err error) {
	var dropped []group
	o := &op{
		write: func(r *rows) (err error) {
			dropped, err = r.drop(groups, s.now())
			return err
		},
		done: func(committed bool) {
			if committed {
				s.gens.killAll(dropped)
			}
		},
	}
	if err := s.writer.submit(o); err != nil {
		return 0, err
	}
	if _, err := s.writer.await(ctx, o); err != nil {
		return 0, err
	}
	for _, d := range dropped {
		if d.prefix == bodyPrefix {
			bodies += int(d.rows)
		}
	}
	return bodies, nil
}

// forgetDropped removes the places in dropped generations from the index and
// returns how many those were. Shard by shard, so that nobody waits long.
func (s *exclusive) forgetDropped() (removed int) {
	// One at a time: a slot that another sweep has just released may already stand
	// for a new generation.
	s.sweep.Lock()
	defer s.sweep.Unlock()
	dead := s.gens.dead()
	if len(dead) == 0 {
		return 0
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		removed += sh.index.forget(dead)
		for _, e := range sh.entries {
			if e.known && dead[e.at.slot()] {
				e.at = 0
			}
		}
		sh.mu.Unlock()
	}
	s.gens.release(dead)
	return removed
}

// expireMemory removes what memory alone has.
func (s *exclusive) expireMemory(done *backend.ExpireResult, limit int) {
	now := s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			if !e.known || e.busy || e.joined != nil || e.at == inPending || !backend.ApplyExpire(e.rec, now).Changed {
				continue
			}
			if done.Removed >= limit {
				done.More = true
				break
			}
			e.rec, e.known, e.at = backend.Record{}, false, 0
			sh.tidy(e)
			done.Removed++
		}
		sh.mu.Unlock()
		if done.More {
			return
		}
	}
}

// expirePending removes pending rows that are due.
func (s *exclusive) expirePending(ctx context.Context, done *backend.ExpireResult, limit int) error {
	var from []byte
	for more := true; more; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var due []backend.ID
		if err := s.view(func(r *rows) (err error) {
			due, from, more, err = r.duePending(from, s.now)
			return err
		}); err != nil {
			return err
		}
		for len(due) > 0 {
			if done.Removed >= limit {
				done.More = true
				return nil
			}
			n := min(len(due), expireBatch, limit-done.Removed)
			removed, err := s.removePending(ctx, due[:n])
			if err != nil {
				return err
			}
			done.Removed += removed
			due = due[n:]
		}
	}
	return nil
}

// removePending removes those of the rows that are still due once their keys are
// held, in one commit. Keys that somebody works on are left for the next round.
func (s *exclusive) removePending(ctx context.Context, ids []backend.ID) (removed int, err error) {
	var changes []*change
	for _, id := range ids {
		hash := hashOf(id)
		k, ok := s.tryHold(id, hash)
		if !ok {
			continue
		}
		// Under its lock the record is what it will be at the commit: a row that was
		// renewed in memory, or replaced, is seen here (R24).
		cur, err := k.load()
		now := s.now()
		if err != nil || cur.at != inPending || !backend.ApplyExpire(cur.rec, now).Changed {
			k.release()
			continue
		}
		changes = append(changes, k.change(backend.Record{}, cur.at, now))
	}
	if len(changes) == 0 {
		return 0, nil
	}
	o := &op{
		write: func(r *rows) error {
			for _, c := range changes {
				if err := c.write(r); err != nil {
					return err
				}
			}
			return nil
		},
		done: func(committed bool) {
			for _, c := range changes {
				c.done(committed)
			}
		},
	}
	if err := s.writer.submit(o); err != nil {
		o.done(false)
		return 0, err
	}
	withdrawn, err := s.writer.await(ctx, o)
	if withdrawn {
		o.done(false)
	}
	if err != nil {
		return 0, err
	}
	return len(changes), nil
}

// tryHold takes the busy lock of a key if nobody has it.
func (s *exclusive) tryHold(id backend.ID, hash uint64) (held, bool) {
	sh := s.shardOf(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entries[id]; e != nil && (e.busy || e.joined != nil) {
		return held{}, false
	}
	e := sh.entry(id, hash)
	e.busy = true
	return held{s, sh, e}, true
}

// duePending returns the IDs of due records from one chunk of the pending rows,
// and where to go on. The rows are collected before anything is deleted: deleting
// at a cursor moves it, and it would skip the next row.
func (r *rows) duePending(from []byte, now clock) (due []backend.ID, next []byte, more bool, err error) {
	b, err := r.pending()
	if err != nil {
		return nil, nil, false, err
	}
	at, c, n := now(), b.Cursor(), 0
	for k, v := c.Seek(from); k != nil; k, v = c.Next() {
		if n++; n > chunkRows {
			return due, bytes.Clone(k), true, nil
		}
		rec, err := backend.ParseRecord(v)
		if err != nil {
			continue // not ours to remove; whoever asks for it is told
		}
		if backend.ApplyExpire(rec, at).Changed {
			due = append(due, rec.ID)
		}
	}
	return due, nil, false, nil
}
