package bolt

import (
	"context"
	"time"

	"github.com/goidem/idem/backend"
)

// change is one durable step of one key: what the disk, and then the memory, is
// to become.
type change struct {
	id   backend.ID
	hash uint64
	gens *generations
	next backend.Record // zero: the record goes
	old  place          // where the disk has the current one
	gen  generation     // of next, if it is settled; write finds its part
	row  []byte         // stored form of next
	body []byte         // stored form of its result, if that is apart
	at   place          // where write has put it
	// early: this transaction has put an uncertain row into pending before.
	early bool
	k     held // in exclusive mode
}

// newChange prepares a change: the encoding is the caller's work, not the
// writer's.
func newChange(id backend.ID, hash uint64, gens *generations, next backend.Record, old place, now time.Time) *change {
	c := &change{id: id, hash: hash, gens: gens, next: next, old: old}
	switch {
	case settled(next.State):
		c.gen = generationFor(now, next.KnownUntil)
		tag := byte(inline)
		size := rowSize(&next)
		if livesApart(&next, c.gen) {
			tag, size = apart, size-len(next.Body)
			c.body = appendBody(make([]byte, 0, leastBody+len(next.Body)), hash, &next)
		}
		c.row = appendRow(make([]byte, 0, size), hash, &next, tag)
	case next.State != 0:
		c.row = backend.AppendRecord(make([]byte, 0, rowSize(&next)), &next)
	}
	return c
}

// rowSize is about the size of a record's row: enough for all but long holder
// names and evidence.
func rowSize(r *backend.Record) int {
	return 160 + len(r.ID.Tenant) + len(r.ID.Operation) + len(r.ID.Key) + len(r.Fingerprint) + len(r.Body)
}

// change prepares a change of the held key.
func (k held) change(next backend.Record, old place, now time.Time) *change {
	c := newChange(k.e.id, k.e.hash, &k.s.gens, next, old, now)
	c.k = k
	return c
}

// write puts the change into a transaction. It may run again after a roll-back.
func (c *change) write(r *rows) error {
	err := c.put(r)
	if k := c.k; err == nil && k.e != nil {
		k.sh.mu.Lock()
		k.e.next = c.at
		k.sh.mu.Unlock()
	}
	return err
}

func (c *change) put(r *rows) error {
	c.at = 0
	if c.old == inPending && !c.early && (settled(c.next.State) || c.next.State == 0) {
		if err := r.deletePending(c.id); err != nil {
			return err
		}
	}
	if c.old != 0 && c.old != inPending {
		// An expired record whose generation has not been dropped yet: no key has
		// two rows.
		if g, ok := c.gens.at(c.old.slot()); ok {
			if err := r.deleteSettled(c.id, c.hash, g, c.old.seq()); err != nil {
				return err
			}
		}
	}
	switch {
	case c.next.State == 0:
		return nil
	case !settled(c.next.State):
		c.at = inPending
		return r.putPending(c.id, c.row)
	}
	if c.body != nil {
		part, seq, err := r.putBody(bodyGeneration(&c.next), c.body)
		if err != nil {
			return err
		}
		if seq == 1 {
			c.gens.bodies.Add(1)
		}
		// An earlier transaction that held this row was rolled back.
		setBody(c.row, part, seq)
	}
	gen, seq, err := r.appendSettled(c.gen, c.row)
	if err != nil {
		return err
	}
	c.gen = gen
	slot, err := c.gens.slot(c.gen)
	if err != nil {
		return err
	}
	c.at = placeAt(slot, seq)
	if c.early { // last: until the outcome is written, the key stays uncertain
		return r.deletePending(c.id)
	}
	return nil
}

// applied brings the memory to where the disk is after the commit. The shard's
// lock is held.
func (c *change) applied() {
	sh, e := c.k.sh, c.k.e
	// The same place twice is not the same row: a sweep may have dropped the old
	// generation, and its index entries, and the new one may have got its number.
	if c.old != c.at || c.at != inPending {
		if c.old != 0 {
			sh.index.remove(e.hash, c.old)
		}
		if c.at != 0 {
			sh.index.add(e.hash, c.at)
		}
	}
	e.rec, e.known, e.at = backend.Record{}, false, 0
	if c.next.State == backend.InFlight {
		e.rec, e.known, e.at = c.next, true, c.at
	}
}

// done is the end of a change: memory follows the disk, and the key is free.
func (c *change) done(committed bool) {
	c.k.sh.mu.Lock()
	if committed {
		c.applied()
	}
	c.k.sh.release(c.k.e)
	c.k.sh.mu.Unlock()
}

// store makes next the record of the held key, durably, and gives the key back.
func (k held) store(ctx context.Context, next backend.Record, old place) error {
	c := k.change(next, old, k.s.now())
	o := &op{write: c.write, done: c.done}
	if err := k.s.writer.submit(o); err != nil {
		k.release()
		return err
	}
	withdrawn, err := k.s.writer.await(ctx, o)
	if withdrawn {
		k.release()
	}
	return err
}
