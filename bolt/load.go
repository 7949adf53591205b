package bolt

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// load fills the index in memory from the file.
func (s *exclusive) load() error {
	f := filler{s: s}
	if err := s.shedDue(); err != nil {
		return err
	}
	if err := s.view(func(r *rows) error {
		gens := r.generations()
		s.gens.bodies.Store(int64(len(r.groups(bodyPrefix))))
		// The sequences say how many records there are at most. A damaged one may say
		// anything; the file cannot hold more rows than it has room for.
		const leastRow = elementSize + seqSize + hashSize + 40
		most, total := uint64(r.tx.Size())/leastRow, uint64(0)
		for _, g := range gens {
			total = min(total+min(r.bucket(g, recordPrefix).Sequence(), most), most)
		}
		for i := range f.parts {
			f.parts[i] = make([]entryAt, 0, total/shards+total/shards/8+8)
		}
		for _, g := range gens {
			slot, err := s.gens.slot(g)
			if err != nil {
				return err
			}
			if err := f.generation(r, g, slot); err != nil {
				return err
			}
		}
		return f.pending(r)
	}); err != nil {
		return err
	}
	f.fill()
	return nil
}

// shedDue checks the format, and drops due generations from a file that has more
// of them than can be numbered.
func (s *exclusive) shedDue() error {
	crowded := false
	if err := s.view(func(r *rows) error {
		crowded = len(r.generations()) > crowd || len(r.groups(bodyPrefix)) > crowd
		return r.checkFormat()
	}); err != nil || !crowded {
		return err
	}
	return s.update(false, func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		return r.dropCrowd(s.now())
	})
}

// filler collects what belongs into the index, shard by shard: filling one shard
// after the other stays within the processor's cache, where going from shard to
// shard for every record would miss it every time.
type filler struct {
	s     *exclusive
	parts [shards][]entryAt
}

func (f *filler) add(hash uint64, at place) {
	part := &f.parts[hash>>(64-shardBits)]
	*part = append(*part, entryAt{hash, at})
}

// fill moves what was collected into the shards' tables, on two goroutines.
func (f *filler) fill() {
	var wg sync.WaitGroup
	for worker := range 2 {
		wg.Go(func() {
			for i := worker; i < shards; i += 2 {
				t := &f.s.shards[i].index
				t.reserve(len(f.parts[i]))
				for _, e := range f.parts[i] {
					t.add(e.hash, e.at)
				}
				f.parts[i] = nil
			}
		})
	}
	wg.Wait()
}

// generation takes what the generation's index bucket has, and the rest from the
// records themselves.
func (f *filler) generation(r *rows, g generation, slot uint16) error {
	indexed := uint64(0)
	if x := r.bucket(g, indexPrefix); x != nil {
		indexed = x.Sequence()
		c := x.Cursor()
		for k, _ := c.First(); k != nil; k, _ = c.Next() {
			if len(k) != indexKeySize {
				return fmt.Errorf("%w: an index entry of %d bytes", ErrDamaged, len(k))
			}
			seq := binary.BigEndian.Uint64(k[hashSize:])
			if seq == 0 || seq > maxSeq {
				return fmt.Errorf("%w: an index entry for record %d", ErrDamaged, seq)
			}
			f.add(binary.BigEndian.Uint64(k), placeAt(slot, seq))
		}
	}
	return r.tail(g, indexed, func(hash, seq uint64) error {
		f.add(hash, placeAt(slot, seq))
		return nil
	})
}

func (f *filler) pending(r *rows) error {
	b, err := r.pending()
	if err != nil {
		return err
	}
	return b.ForEach(func(k, _ []byte) error {
		sum := sha256.Sum256(k)
		f.add(binary.BigEndian.Uint64(sum[:hashSize]), inPending)
		return nil
	})
}

// tail visits the records of a generation behind a sequence.
func (r *rows) tail(g generation, after uint64, visit func(hash, seq uint64) error) error {
	b := r.bucket(g, recordPrefix)
	if b == nil || b.Sequence() <= after {
		return nil
	}
	c := b.Cursor()
	for k, v := c.Seek(seqKey(after + 1)); k != nil; k, v = c.Next() {
		if len(k) != seqSize || len(v) < inlineRow {
			return fmt.Errorf("%w: a record of %d bytes under a key of %d", ErrDamaged, len(v), len(k))
		}
		seq := binary.BigEndian.Uint64(k)
		if seq > maxSeq {
			return fmt.Errorf("%w: a record of number %d", ErrDamaged, seq)
		}
		hash, own := binary.BigEndian.Uint64(v), ownHash(v)
		if err := visit(hash, seq); err != nil {
			return err
		}
		if own == hash {
			continue
		}
		// One of the two is damaged, and nobody knows which. Whoever asks for either
		// key must find the record, and be told.
		if err := visit(own, seq); err != nil {
			return err
		}
	}
	return nil
}

// ownHash returns the hash of the ID inside a settled record, found without parsing
// the rest of it: a file that was not closed has all its records looked at. What
// is too short, or of another version, is left to whoever reads it.
func ownHash(row []byte) uint64 {
	const idAt = 72 // version 1 has its numbers in front of the ID
	prefix, _, rec, err := splitRow(row)
	if err != nil || len(rec) < idAt+2 || rec[0] != 1 {
		return binary.BigEndian.Uint64(row)
	}
	n := int(binary.LittleEndian.Uint16(rec[idAt:]))
	if len(rec) < idAt+2+n {
		return prefix
	}
	sum := sha256.Sum256(rec[idAt+2 : idAt+2+n])
	return binary.BigEndian.Uint64(sum[:hashSize])
}

// start readies a loaded store: fences above all that may ever have been given,
// and the writer. It commits once.
func (s *exclusive) start() error {
	err := s.update(false, func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		mark, err := r.metaNumber(metaFence)
		if err != nil {
			return err
		}
		s.fences.last.Store(mark)
		s.fences.mark.Store(mark + fenceBlock)
		return r.setMetaNumber(metaFence, mark+fenceBlock)
	})
	if err != nil {
		return err
	}
	go s.writer.run()
	return nil
}

// The time that Close spends on bringing the index buckets up to date. Whoever
// opens the file next does the rest.
const indexBudget = time.Second

// shutdown stops the store. See DB.Close.
func (s *exclusive) shutdown(owned bool) error {
	s.closed.Store(true)
	s.writer.stop()
	// A compaction that is under way ends first, and none begins any more: what is
	// written below must not go into a file that is being replaced.
	// After a panic inside bbolt none is under way, and one may wait for ever.
	if !s.wedged.Load() {
		s.compacting <- struct{}{}
	}
	s.closeShards()
	var err error
	if !s.poisoned.Load() {
		err = s.settleDown(owned)
	}
	if owned {
		err = errors.Join(err, s.closeFile())
	}
	stores.remove(s.bolt())
	return err
}

// closeShards ends all moves that change memory alone: a record is either there
// before saveInFlight looks, or its move fails.
func (s *exclusive) closeShards() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.closed = true
		sh.mu.Unlock()
	}
}

// closeFile closes the file. After a panic inside bbolt its own Close would wait
// for a lock for ever; then only the descriptor and the lock of the file go.
func (s *exclusive) closeFile() error {
	if s.wedged.Load() {
		return abandon(s.file)
	}
	return guarded(s.bolt().Close)
}

// settleDown writes what memory alone has and what makes the next open cheap.
func (s *exclusive) settleDown(owned bool) error {
	began := stopwatch()
	err := s.update(false, func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		s.settleEnded(r)
		if err := s.saveInFlight(r); err != nil {
			return err
		}
		// Fences that were reserved and not used are given back.
		if err := r.setMetaNumber(metaFence, s.fences.last.Load()); err != nil {
			return err
		}
		return s.saveIndex(r, began)
	})
	if err != nil || !owned {
		return err
	}
	// With the free list in the file, a short-lived command opens it without
	// walking all of it.
	s.bolt().NoFreelistSync = false
	return s.update(false, func(tx *bbolt.Tx) error {
		r, err := newRows(tx)
		if err != nil {
			return err
		}
		return r.setMetaNumber(metaFence, s.fences.last.Load())
	})
}

// saveInFlight writes the attempts that are in memory only: closing the store
// does not stop their work, so their leases must hold for the next opener, and
// what is uncertain stays so.
func (s *exclusive) saveInFlight(r *rows) error {
	now := s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			live := e.rec.State == backend.InFlight && !e.rec.Expired(now)
			if !e.known || !live && e.rec.State != backend.Uncertain {
				continue
			}
			c := held{s, sh, e}.change(e.rec, e.at, now)
			if err := c.put(r); err != nil {
				sh.mu.Unlock()
				return err
			}
			if e.at != c.at {
				if e.at != 0 {
					sh.index.remove(e.hash, e.at)
				}
				sh.index.add(e.hash, c.at)
				e.at = c.at
			}
		}
		sh.mu.Unlock()
	}
	return nil
}

// saveIndex brings the index buckets up to date from memory, generation by
// generation, until the budget is used up.
func (s *exclusive) saveIndex(r *rows, began time.Time) error {
	type tail struct {
		g       generation
		indexed uint64
		entries []entryAt
	}
	tails := make(map[uint16]*tail)
	for _, g := range s.gens.all() {
		slot, err := s.gens.slot(g)
		if err != nil {
			return err
		}
		t := &tail{g: g}
		if x := r.bucket(g, indexPrefix); x != nil {
			t.indexed = x.Sequence()
		}
		tails[slot] = t
	}
	for i := range s.shards {
		sh := &s.shards[i]
		// A sweep whose drop was committed before the close may be forgetting its places.
		sh.mu.Lock()
		for _, e := range sh.index.slots {
			if t := tails[e.at.slot()]; e.at != 0 && t != nil && e.at.seq() > t.indexed {
				t.entries = append(t.entries, entryAt{e.hash, place(e.at.seq())})
			}
		}
		sh.mu.Unlock()
	}
	for _, t := range tails {
		if stopwatch().Sub(began) > indexBudget {
			return nil
		}
		if err := r.extendIndex(t.g, t.entries); err != nil {
			return err
		}
	}
	return nil
}

// extendIndex adds all that a generation's index bucket lacks. The places are
// bare sequences.
func (r *rows) extendIndex(g generation, entries []entryAt) error {
	b := r.bucket(g, recordPrefix)
	if b == nil {
		return nil
	}
	x, err := r.top.CreateBucketIfNotExists(g.name(indexPrefix))
	if err != nil {
		return err
	}
	x.FillPercent = fill
	r.wrote = true
	// In order of the keys every page of the bucket is touched once.
	slices.SortFunc(entries, func(a, b entryAt) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.at, b.at))
	})
	for _, e := range entries {
		if err := x.Put(indexKey(e.hash, uint64(e.at)), nil); err != nil {
			return err
		}
	}
	return x.SetSequence(b.Sequence())
}
