package bolt

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// DB is a store in one bbolt file. Use [Open] or [New]; methods are safe for
// concurrent use.
type DB struct {
	engine
	name  string     // of the file, as it was given
	path  string     // of the file, wherever the process is now
	excl  *exclusive // nil in per-call mode
	found backend.Guarantees

	owned bool // Open opened the file, so Close closes it
	close sync.Once
	end   error
}

var (
	_ backend.Backend                  = (*DB)(nil)
	_ backend.Transactional[*bbolt.Tx] = (*DB)(nil)
)

// engine makes the moves of one mode. Its methods get valid requests only.
type engine interface {
	Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error)
	Complete(ctx context.Context, r backend.CompleteRequest) (backend.Record, error)
	Release(ctx context.Context, ref backend.Ref) error
	Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error
	Get(ctx context.Context, id backend.ID) (backend.Record, error)
	List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error]
	Resolve(ctx context.Context, r backend.ResolveRequest) (backend.Record, error)
	Forget(ctx context.Context, r backend.ForgetRequest) error
	Expire(ctx context.Context, r backend.ExpireRequest) (backend.ExpireResult, error)
	Backlog(ctx context.Context) (backend.Backlog, error)
	Check(ctx context.Context) error
}

// Options change how a store is opened and kept. The zero value and nil are the
// defaults.
type Options struct {
	// Now is the store's clock; nil means the machine's. Only its wall time is
	// used.
	Now func() time.Time

	// OpenTimeout bounds how long Open waits for another process to give the file
	// up; zero means one second. The error is a [*LockError].
	OpenTimeout time.Duration

	// PerCall opens the file for each move and closes it again, so that
	// short-lived commands can share it. Every reservation is then durable, and
	// transactions are refused with ErrPerCall. Without it the store keeps the
	// file to itself, which is much faster: a service, or one long batch job.
	PerCall bool

	// LockWait bounds how long one move in per-call mode waits for the file, if
	// its context does not end earlier; zero means ten seconds.
	LockWait time.Duration

	// ReadOnly refuses every move that writes with ErrReadOnly, shares the file
	// with other readers, and never creates it. It implies PerCall.
	ReadOnly bool

	// MustExist refuses to begin a new store: Open fails with a [*FileError] that
	// matches fs.ErrNotExist if there is no file, New with one that matches
	// ErrNotStore if the database has no bucket "idem", and in per-call mode a move
	// fails if the file is gone by then. It is for stores whose loss must not look
	// like a fresh start: where the disk is not mounted, the path is misspelt or the
	// file was removed, an empty store would run everything once more.
	MustExist bool

	// MaxSize bounds the size of the file in bytes; a move that would exceed it
	// fails with ErrFull. Zero means no bound. New ignores it.
	MaxSize int
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Now == nil {
		c.Now = systemClock
	}
	if c.OpenTimeout <= 0 {
		c.OpenTimeout = time.Second
	}
	if c.LockWait <= 0 {
		c.LockWait = 10 * time.Second
	}
	c.PerCall = c.PerCall || c.ReadOnly
	return c
}

// clock returns the store's clock as records keep it: wall time in UTC to the
// nanosecond, so that a record in memory equals the same record from disk.
func (o *Options) clock() clock {
	now := o.Now
	return func() time.Time { return time.Unix(0, now().UnixNano()).UTC() }
}

// Open opens the store in the file at path and keeps it open until Close, or, in
// per-call mode, checks it and closes it again.
//
// A file that does not exist is created, complete and synced, before it gets its
// name; in per-call mode the first reserve does so. A file that exists is never
// replaced and, if it is not a healthy store, never touched: the error is a
// [*FileError] that matches ErrNotStore, ErrDamaged or backend.ErrUnknownVersion,
// or a [*LockError].
//
// A relative path and symbolic links are resolved once, here: the store stays the
// same file when the process changes its folder or a link is turned elsewhere. A
// link to nothing is refused.
func Open(path string, o *Options) (*DB, error) {
	c := o.withDefaults()
	meant, err := resolve(path)
	if err != nil {
		return nil, inWordsOf(path, meant, fileError(meant, err))
	}
	var d *DB
	if c.PerCall {
		d, err = openPerCall(meant, &c)
	} else {
		d, err = openExclusive(meant, &c, nil)
	}
	if err != nil {
		return nil, inWordsOf(path, meant, err)
	}
	d.name = path
	return d, nil
}

// inWordsOf names the file in an error of Open as the caller has named it.
func inWordsOf(path, meant string, err error) error {
	var named *FileError
	if errors.As(err, &named) && named.Path == meant {
		named.Path = path
	}
	var locked *LockError
	if errors.As(err, &locked) && locked.Path == meant {
		locked.Path = path
	}
	return err
}

// New keeps the store in a bbolt database that the caller has opened, beside the
// caller's own buckets, so that effects and records commit together. It creates
// the bucket "idem" if it is not there.
//
// The database must stay open until the store's Close has returned, must not be
// read-only, and must sync: NoSync is refused. It can have one store at a time: a
// second one is refused with a [*FileError] that matches ErrLocked, until Close. Of
// the options only Now and MustExist are used.
func New(db *bbolt.DB, o *Options) (*DB, error) {
	c := o.withDefaults()
	if c.PerCall {
		return nil, fmt.Errorf("%w: PerCall and ReadOnly need a path; use Open", backend.ErrInvalidRequest)
	}
	return newShared(db, &c)
}

// Close finishes what is queued, writes attempts that are still in flight to the
// file, so that their leases hold for whoever opens it next, and brings the file
// into a form that opens fast. It closes the file if Open opened it. Moves after
// Close fail with ErrClosed. Closing again returns the same result.
func (d *DB) Close() error {
	d.close.Do(func() {
		if d.excl != nil {
			d.end = d.excl.shutdown(d.owned)
		}
	})
	return d.end
}

// Bolt returns the bbolt database behind the store, for effects of the caller's
// own: buckets beside "idem", read transactions, write transactions for Join. It
// is nil in per-call mode. Compact replaces it; do not keep it across that.
func (d *DB) Bolt() *bbolt.DB {
	if d.excl == nil {
		return nil
	}
	return d.excl.bolt()
}

// Path returns the path of the file as it was given to Open, or as bbolt has it. A
// relative one is meant from where the process was then.
func (d *DB) Path() string { return d.name }

// Guarantees implements backend.Backend.
func (d *DB) Guarantees() backend.Guarantees {
	g := d.found
	g.Findings = append([]backend.Finding(nil), g.Findings...)
	return g
}

// Reserve implements backend.Backend.
func (d *DB) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	if err := r.Validate(); err != nil {
		return backend.Reservation{}, err
	}
	return d.engine.Reserve(ctx, r)
}

// Complete implements backend.Backend.
func (d *DB) Complete(ctx context.Context, r backend.CompleteRequest) (backend.Record, error) {
	if err := r.Validate(); err != nil {
		return backend.Record{}, err
	}
	rec, err := d.engine.Complete(ctx, r)
	if err != nil {
		return backend.Record{}, err
	}
	return rec.Clone(), nil
}

// Release implements backend.Backend.
func (d *DB) Release(ctx context.Context, ref backend.Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	return d.engine.Release(ctx, ref)
}

// Renew implements backend.Backend.
func (d *DB) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	if err := ref.ValidateRenew(ttl); err != nil {
		return err
	}
	return d.engine.Renew(ctx, ref, ttl)
}

// Get implements backend.Backend.
func (d *DB) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	if err := id.Validate(); err != nil {
		return backend.Record{}, err
	}
	return d.engine.Get(ctx, id)
}

// Resolve implements backend.Backend.
func (d *DB) Resolve(ctx context.Context, r backend.ResolveRequest) (backend.Record, error) {
	if err := r.Validate(); err != nil {
		return backend.Record{}, err
	}
	rec, err := d.engine.Resolve(ctx, r)
	if err != nil {
		return backend.Record{}, err
	}
	return rec.Clone(), nil
}

// Forget implements backend.Backend.
func (d *DB) Forget(ctx context.Context, r backend.ForgetRequest) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return d.engine.Forget(ctx, r)
}

// Transact implements backend.Transactional. work runs on the caller's goroutine
// inside a transaction that it may share with other callers' work; it must not
// start another write transaction, or call back into the store for anything that
// writes. While it runs, no other write of the store commits.
func (d *DB) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[*bbolt.Tx]) (backend.Reservation, error) {
	if err := r.Validate(); err != nil {
		return backend.Reservation{}, err
	}
	if d.excl == nil {
		return backend.Reservation{}, ErrPerCall
	}
	return d.excl.Transact(ctx, r, work)
}

// Join implements backend.Transactional. bbolt has no savepoint: once work has
// been started and does not end in a completion, the key is marked uncertain
// inside tx, in case the caller commits all the same (R21). The same goes for a
// completion that asks for Undo.
func (d *DB) Join(ctx context.Context, tx *bbolt.Tx, r backend.ReserveRequest, work backend.Work[*bbolt.Tx]) (backend.Reservation, error) {
	if err := r.Validate(); err != nil {
		return backend.Reservation{}, err
	}
	if d.excl == nil {
		return backend.Reservation{}, ErrPerCall
	}
	return d.excl.Join(ctx, tx, r, work)
}

// Finish implements backend.Transactional; what is said about work at Transact
// holds here too.
func (d *DB) Finish(ctx context.Context, ref backend.Ref, work backend.Work[*bbolt.Tx]) (backend.Record, error) {
	if err := ref.Validate(); err != nil {
		return backend.Record{}, err
	}
	if d.excl == nil {
		return backend.Record{}, ErrPerCall
	}
	return d.excl.Finish(ctx, ref, work)
}
