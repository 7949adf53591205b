package bolt

import (
	"fmt"
	"sync"

	"go.etcd.io/bbolt"
)

// stores are the databases of this process that have a store on them. The lock of
// the file keeps other processes and other handles out, but not a second New on
// the same handle, and two stores on one database would each take itself for the
// only owner of its keys.
//
// lint:const the one registry of the process, like the lock of a file, behind its own mutex
var stores registry

type registry struct {
	mu   sync.Mutex
	open map[*bbolt.DB]bool
}

// add registers a database until remove. It fails if that has a store already.
func (r *registry) add(db *bbolt.DB) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[db] {
		return fmt.Errorf("%w: this database has a store on it already; use that, or close it first", ErrLocked)
	}
	if r.open == nil {
		r.open = make(map[*bbolt.DB]bool)
	}
	r.open[db] = true
	return nil
}

func (r *registry) remove(db *bbolt.DB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, db)
}

// replace is what compaction does to a registered database.
func (r *registry) replace(old, db *bbolt.DB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, old)
	r.open[db] = true
}
