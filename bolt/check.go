package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// maxFindings bounds the report of a check.
const maxFindings = 20

// Check looks through the whole file: bbolt's pages, every record, and whether
// records, generations and index agree. It returns nil or an error that matches
// ErrDamaged and lists what was found, without any key. Writes wait meanwhile; it
// reads the whole file.
func (d *DB) Check(ctx context.Context) error { return d.engine.Check(ctx) }

// Check implements the look at an open file. It runs in the writer's turn, because
// bbolt's own check must not have a writer beside it.
func (s *exclusive) Check(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	o := &op{first: true, write: func(r *rows) error {
		if ctx.Err() != nil {
			return nil // nobody waits for it any more
		}
		// First with our own eyes: bbolt's check reads damaged pages on a goroutine of
		// its own, where a fault ends the process.
		s.vetted = false
		if err := s.vetOnce(r.tx.DB()); err != nil {
			return err
		}
		return check(ctx, r, s)
	}}
	if err := s.writer.submit(o); err != nil {
		return err
	}
	_, err := s.writer.await(ctx, o)
	if errors.Is(err, backend.ErrOutcomeUnknown) && ctx.Err() != nil {
		return ctx.Err() // a look has no outcome to be unknown
	}
	return err
}

// Check implements the look at a file that is opened for it. The pages are looked
// at before bbolt is: its own check does not survive all damage.
func (p *perCall) Check(ctx context.Context) error {
	lock := locking{path: p.path, wait: p.o.LockWait, done: ctx.Done(), thorough: true}
	err := p.readWith(&lock, func(r *rows) error { return check(ctx, r, nil) })
	if errors.Is(err, errGone) {
		return ctx.Err()
	}
	return err
}

// checker collects what a check finds.
type checker struct {
	ctx   context.Context
	r     *rows
	s     *exclusive // nil: there is no index in memory
	found []error
	// bodies counts the records that have their result in a group.
	bodies map[generation]int
}

func check(ctx context.Context, r *rows, s *exclusive) error {
	c := &checker{ctx: ctx, r: r, s: s, bodies: make(map[generation]int)}
	for err := range r.tx.Check(bbolt.WithKVStringer(silent{})) {
		c.report("bbolt: %v", err)
	}
	if len(c.found) == 0 { // else the buckets cannot be walked safely
		c.pending()
		for _, g := range r.generations() {
			c.generation(g)
		}
		c.results()
		c.count()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(c.found) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrDamaged, errors.Join(c.found...))
}

// silent keeps keys and values out of bbolt's findings.
type silent struct{}

func (silent) KeyToString([]byte) string   { return "..." }
func (silent) ValueToString([]byte) string { return "..." }

func (c *checker) report(format string, args ...any) {
	if len(c.found) < maxFindings {
		c.found = append(c.found, fmt.Errorf(format, args...))
	}
}

func (c *checker) pending() {
	b, err := c.r.pending()
	if err != nil {
		c.report("%w", err)
		return
	}
	n := 0
	_ = b.ForEach(func(k, v []byte) error {
		n++
		rec, err := backend.ParseRecord(v)
		switch {
		case err != nil:
			c.report("pending record %d: %w", n, err)
		case string(rec.ID.AppendTo(nil)) != string(k):
			c.report("pending record %d stands under another key", n)
		case settled(rec.State):
			c.report("pending record %d is %v", n, rec.State)
		case c.s != nil && !c.indexed(hashOf(rec.ID), inPending):
			c.report("pending record %d is not in the index", n)
		}
		return c.ctx.Err()
	})
}

func (c *checker) generation(g generation) {
	b := c.r.bucket(g, recordPrefix)
	name := nameOf(g)
	slot := uint16(0)
	if c.s != nil {
		slot, _ = c.s.gens.slot(g)
	}
	indexed, rows := uint64(0), 0
	x := c.r.bucket(g, indexPrefix)
	if x != nil {
		indexed = x.Sequence()
	}
	_ = b.ForEach(func(k, v []byte) error {
		if len(k) != seqSize || len(v) < inlineRow {
			c.report("%s: a row of %d bytes under a key of %d", name, len(v), len(k))
			return c.ctx.Err()
		}
		seq := binary.BigEndian.Uint64(k)
		rec, hash, body, err := decodeRow(v)
		if err == nil {
			err = c.result(&rec, body)
		}
		switch {
		case err != nil:
			c.report("%s, record %d: %w", name, seq, err)
		case hashOf(rec.ID) != hash:
			c.report("%s, record %d carries the hash of another key", name, seq)
		case !settled(rec.State):
			c.report("%s, record %d is %v", name, seq, rec.State)
		case seq > b.Sequence():
			c.report("%s, record %d is beyond the last sequence %d", name, seq, b.Sequence())
		case nanos(rec.KnownUntil) > g.end():
			c.report("%s, record %d outlives its generation", name, seq)
		case c.s != nil && !c.indexed(hash, placeAt(slot, seq)):
			c.report("%s, record %d is not in the index in memory", name, seq)
		}
		if seq <= indexed {
			rows++
			if !hasKey(x, indexKey(hash, seq)) {
				c.report("%s, record %d is not in the index", name, seq)
			}
		}
		return c.ctx.Err()
	})
	if x == nil {
		return
	}
	entries := 0
	_ = x.ForEach(func(k, _ []byte) error {
		entries++
		return c.ctx.Err()
	})
	if entries != rows && c.ctx.Err() == nil {
		c.report("%s: %d records and %d index entries", name, rows, entries)
	}
}

func nameOf(g generation) string {
	return fmt.Sprintf("generation %d/%d/%d", g.class, g.index, g.part)
}

// result looks for the result of a record that has it apart.
func (c *checker) result(rec *backend.Record, at bodyAt) error {
	if err := c.r.attach(rec, at); err != nil || !at.apart || rec.BodyExpired {
		return err
	}
	g := bodyGeneration(rec)
	g.part = at.part
	c.bodies[g]++
	return nil
}

// results compares the groups of results with the records that have one in them:
// what belongs to none is never read, and is damage all the same.
func (c *checker) results() {
	for _, g := range c.r.groups(bodyPrefix) {
		if n := c.r.bucket(g, bodyPrefix).Stats().KeyN; n != c.bodies[g] && c.ctx.Err() == nil {
			c.report("%s: %d results, and %d records that have one there", nameOf(g), n, c.bodies[g])
		}
	}
}

// count compares the index in memory with what is on disk: with every record
// found in it, equal numbers mean that nothing else is in it.
func (c *checker) count() {
	if c.s == nil || len(c.found) > 0 || c.ctx.Err() != nil {
		return
	}
	disk, memory := 0, 0
	if b, err := c.r.pending(); err == nil {
		disk += b.Stats().KeyN
	}
	for _, g := range c.r.generations() {
		disk += c.r.bucket(g, recordPrefix).Stats().KeyN
	}
	for i := range c.s.shards {
		sh := &c.s.shards[i]
		sh.mu.RLock()
		memory += sh.index.n
		sh.mu.RUnlock()
	}
	if disk != memory {
		c.report("%d records on disk and %d in the index in memory", disk, memory)
	}
}

func (c *checker) indexed(hash uint64, at place) bool {
	var few [4]place
	for _, p := range c.s.shardOf(hash).find(hash, few[:0]) {
		if p == at {
			return true
		}
	}
	return false
}

// hasKey reports whether b has the key; an index entry has no value to tell.
func hasKey(b *bbolt.Bucket, key []byte) bool {
	k, _ := b.Cursor().Seek(key)
	return string(k) == string(key)
}
