package bolt

import (
	"context"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

const (
	shardBits = 6
	shards    = 1 << shardBits

	// maxOpen bounds the released records that are kept in memory, over all
	// shards. Beyond it the oldest go first: a late copy of one of their moves
	// then meets an empty place instead of its own token.
	maxOpen = 1 << 16

	// failFast is how long a caller waits for another's commit or transaction on
	// the same key when its own Wait says not to wait: long enough for a commit.
	failFast = 10 * time.Millisecond
)

// shard is one part of the store's memory: the index of what is on disk and the
// entries of the keys that are being worked on. One lock covers both, so that a
// record never is in neither while it moves from memory to disk.
type shard struct {
	mu      sync.RWMutex
	index   table
	entries map[backend.ID]*entry
	open    openQueue
	// closed: Close has written, or is about to write, what memory alone has. What
	// would be put here afterwards would be answered and then forgotten.
	closed bool
}

// entry is what memory knows about one key beyond the index. It exists while the
// key has a record in memory, is busy, or may be bound by a caller's open
// transaction. All fields are guarded by the shard's lock.
type entry struct {
	id   backend.ID
	hash uint64

	// rec is the record as it is now, if known says so; otherwise the disk has
	// it. For an in-flight record that is also on disk only the lease may differ.
	rec   backend.Record
	known bool
	// at is where the disk has a row for this key, valid while known is set.
	at place

	// busy is held through a whole move, its commit included, so that nothing
	// slips between a decision and its commit. waiters get it in turn.
	busy    bool
	waiters []chan struct{}
	// settling: the holder of busy acts for the owner of the attempt, so that a
	// renewal may pass it: both orders are right.
	settling bool
	// parked: the holder of busy is a queued write of the record that memory has
	// already. What memory says holds, whatever becomes of the write.
	parked bool

	// joined: a caller's own transaction holds a new record of this key.
	joined *joined

	// next is where a transaction that may just be committing has put the record. A
	// commit can be seen before the index says so; a reader looks there too.
	next place
}

// shardOf returns the shard of a hash.
func (s *exclusive) shardOf(hash uint64) *shard { return &s.shards[hash>>(64-shardBits)] }

// held is a key whose busy lock the caller holds.
type held struct {
	s  *exclusive
	sh *shard
	e  *entry
}

// hold takes the busy lock of a key. It waits until ctx ends, or for at most
// wait if limited is set; ok is false when that time is over.
func (s *exclusive) hold(ctx context.Context, id backend.ID, hash uint64, limited bool, wait time.Duration) (k held, ok bool, err error) {
	sh := s.shardOf(hash)
	var deadline <-chan time.Time
	for {
		sh.mu.Lock()
		e := sh.entry(id, hash)
		var turn chan struct{}
		if e.busy {
			turn = make(chan struct{})
			e.waiters = append(e.waiters, turn)
		} else {
			e.busy = true
		}
		sh.mu.Unlock()

		if turn != nil {
			if limited && deadline == nil {
				timer := time.NewTimer(max(wait, failFast))
				defer timer.Stop()
				deadline = timer.C
			}
			select {
			case <-turn:
			case <-deadline:
				if !sh.leave(e, turn) {
					return held{}, false, nil
				}
			case <-ctx.Done():
				if !sh.leave(e, turn) {
					return held{}, false, ctx.Err()
				}
			}
		}
		k = held{s, sh, e}
		mark := k.mark()
		if mark == nil {
			return k, true, nil
		}
		// A caller's own transaction holds the key. bbolt has one writer: once ours
		// gets a turn, that transaction has ended, one way or the other. The key is
		// given back meanwhile, so that the holder itself is not shut out.
		k.release()
		over, err := s.settleJoined(ctx, mark, limited, wait)
		if err != nil || !over {
			return held{}, false, err
		}
	}
}

// entry returns the entry of id, made if need be. The lock is held.
func (sh *shard) entry(id backend.ID, hash uint64) *entry {
	e := sh.entries[id]
	if e == nil {
		e = &entry{id: id, hash: hash}
		sh.entries[id] = e
	}
	return e
}

// leave gives up waiting for the busy lock. It returns true if the lock had been
// handed over in that very moment: the caller then holds it.
func (sh *shard) leave(e *entry, turn chan struct{}) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i, w := range e.waiters {
		if w == turn {
			e.waiters = append(e.waiters[:i], e.waiters[i+1:]...)
			return false
		}
	}
	return true
}

// parked returns the record of a key whose busy lock a queued write of that very
// record holds.
func (s *exclusive) parked(id backend.ID, hash uint64) (backend.Record, bool) {
	sh := s.shardOf(hash)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if e := sh.entries[id]; e != nil && e.parked && e.known {
		return e.rec, true
	}
	return backend.Record{}, false
}

// park queues a write of what memory has and leaves the busy lock to it.
func (k held) park(next backend.Record, old place) {
	c := k.change(next, old, k.s.now())
	k.sh.mu.Lock()
	k.e.parked = true
	k.sh.mu.Unlock()
	if err := k.s.writer.submit(&op{write: c.write, done: c.done}); err != nil {
		k.release() // the store is being closed, which writes it too
	}
}

func (k held) mark() *joined {
	k.sh.mu.RLock()
	defer k.sh.mu.RUnlock()
	return k.e.joined
}

// release gives the busy lock back.
func (k held) release() {
	k.sh.mu.Lock()
	k.sh.release(k.e)
	k.sh.mu.Unlock()
}

// release hands the busy lock to the next waiter. The shard's lock is held.
func (sh *shard) release(e *entry) {
	e.settling, e.parked, e.next = false, false, 0
	if len(e.waiters) > 0 {
		turn := e.waiters[0]
		e.waiters = e.waiters[1:]
		close(turn)
		return
	}
	e.busy = false
	sh.tidy(e)
}

// tidy removes an entry that says nothing any more. The lock is held.
func (sh *shard) tidy(e *entry) {
	if !e.busy && !e.known && e.joined == nil {
		delete(sh.entries, e.id)
	}
}

// settles says that the holder acts for the owner of the attempt.
func (k held) settles() {
	k.sh.mu.Lock()
	k.e.settling = true
	k.sh.mu.Unlock()
}

// remember makes rec the record of the key in memory, over what the disk has at
// the given place. It fails once the store is being closed.
func (k held) remember(rec backend.Record, at place) error {
	k.sh.mu.Lock()
	defer k.sh.mu.Unlock()
	if k.sh.closed {
		return k.s.usable()
	}
	k.e.rec, k.e.known, k.e.at = rec, true, at
	if rec.State == backend.Open && at != inPending {
		k.sh.keepOpen(k.e)
	}
	return nil
}

// forget removes the record of the key from memory. It fails once the store is
// being closed.
func (k held) forget() error {
	k.sh.mu.Lock()
	defer k.sh.mu.Unlock()
	if k.sh.closed {
		return k.s.usable()
	}
	k.e.rec, k.e.known, k.e.at = backend.Record{}, false, 0
	return nil
}

// openQueue is a ring of the released records in memory, oldest first.
type openQueue struct {
	ring []openRef
	head int
	n    int
}

type openRef struct {
	e     *entry
	fence uint64
	due   int64 // Unix nanoseconds
}

// keepOpen queues an open record for its removal and removes the oldest while
// they are due or too many: constant work per release, so that a million
// different keys that fail leave no more behind than the last maxOpen. The lock
// is held.
func (sh *shard) keepOpen(e *entry) {
	q := &sh.open
	now := e.rec.KnownUntil.Add(-backend.OpenFor).UnixNano()
	for q.n > 0 && (q.n >= maxOpen/shards || q.ring[q.head].due <= now) {
		old := q.ring[q.head]
		q.ring[q.head] = openRef{}
		q.head = (q.head + 1) % len(q.ring)
		q.n--
		if o := old.e; o != e && o.known && o.rec.State == backend.Open && o.rec.Fence == old.fence && !o.busy && o.at != inPending {
			o.rec, o.known, o.at = backend.Record{}, false, 0
			sh.tidy(o)
		}
	}
	if q.n == len(q.ring) {
		grown := make([]openRef, max(2*len(q.ring), 8))
		for i := range q.n {
			grown[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = openRef{e: e, fence: e.rec.Fence, due: e.rec.KnownUntil.UnixNano()}
	q.n++
}
