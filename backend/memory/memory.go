// Package memory is the reference backend: a map under a mutex. It keeps nothing
// beyond the life of the process, which makes it right for examples, for tests of
// code that uses idem, and for programs whose effects die with them too.
//
// It is also the shortest complete [backend.Backend] and the place to start
// reading before writing another one.
package memory

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// Backend stores records in memory. Use [New]; methods are safe for concurrent
// use.
type Backend struct {
	now func() time.Time

	mu      sync.Mutex
	records map[backend.ID]backend.Record
	fence   uint64 // highest fence given so far, over all keys
}

var _ backend.Backend = (*Backend)(nil)

// Options change how a Backend works. The zero value and nil are the defaults.
type Options struct {
	// Now is the store's clock; nil means time.Now.
	Now func() time.Time
}

// New returns an empty store.
func New(o *Options) *Backend {
	b := &Backend{now: systemClock, records: make(map[backend.ID]backend.Record)}
	if o != nil && o.Now != nil {
		b.now = o.Now
	}
	return b
}

// step applies a decision to the record of id: read, decide and write under one
// lock, which is all that R1 asks for.
func (b *Backend) step(ctx context.Context, id backend.ID, decide func(cur backend.Record, now time.Time) (backend.Step, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := decide(b.records[id], b.now())
	if err != nil || !s.Changed {
		return err
	}
	if s.Next.State == 0 {
		delete(b.records, id)
		return nil
	}
	b.fence = max(b.fence, s.Next.Fence)
	b.records[id] = s.Next
	return nil
}

// Reserve implements backend.Backend.
func (b *Backend) Reserve(ctx context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	if err := r.Validate(); err != nil {
		return res, err
	}
	err = b.step(ctx, r.ID, func(cur backend.Record, now time.Time) (s backend.Step, err error) {
		s, res, err = r.Apply(cur, now, b.fence+1)
		res.Record = res.Record.Clone()
		return s, err
	})
	return res, err
}

// Complete implements backend.Backend.
func (b *Backend) Complete(ctx context.Context, r backend.CompleteRequest) (rec backend.Record, err error) {
	if err := r.Validate(); err != nil {
		return rec, err
	}
	err = b.step(ctx, r.ID, func(cur backend.Record, now time.Time) (s backend.Step, err error) {
		s, rec, err = r.Apply(cur, now)
		rec = rec.Clone()
		return s, err
	})
	return rec, err
}

// Release implements backend.Backend.
func (b *Backend) Release(ctx context.Context, ref backend.Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	return b.step(ctx, ref.ID, ref.ApplyRelease)
}

// Renew implements backend.Backend.
func (b *Backend) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	if err := ref.ValidateRenew(ttl); err != nil {
		return err
	}
	return b.step(ctx, ref.ID, func(cur backend.Record, now time.Time) (backend.Step, error) {
		return ref.ApplyRenew(cur, now, ttl)
	})
}

// Resolve implements backend.Backend.
func (b *Backend) Resolve(ctx context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	if err := r.Validate(); err != nil {
		return rec, err
	}
	err = b.step(ctx, r.ID, func(cur backend.Record, now time.Time) (s backend.Step, err error) {
		s, rec, err = r.Apply(cur, now)
		rec = rec.Clone()
		return s, err
	})
	return rec, err
}

// Forget implements backend.Backend.
func (b *Backend) Forget(ctx context.Context, r backend.ForgetRequest) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return b.step(ctx, r.ID, r.Apply)
}

// Get implements backend.Backend.
func (b *Backend) Get(ctx context.Context, id backend.ID) (rec backend.Record, err error) {
	if err := id.Validate(); err != nil {
		return rec, err
	}
	err = b.step(ctx, id, func(cur backend.Record, now time.Time) (backend.Step, error) {
		if rec = cur.At(now).Clone(); rec.State == 0 {
			return backend.Step{}, backend.ErrNotFound
		}
		return backend.Step{}, nil
	})
	return rec, err
}

// List implements backend.Backend.
func (b *Backend) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		b.mu.Lock()
		now := b.now()
		var found []backend.Record
		for _, rec := range b.records {
			if rec = rec.At(now); rec.State != 0 && f.Match(&rec, now) {
				found = append(found, rec.Clone())
			}
		}
		b.mu.Unlock()
		for _, rec := range found {
			if err := ctx.Err(); err != nil {
				yield(backend.Record{}, err)
				return
			}
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// Expire implements backend.Backend.
func (b *Backend) Expire(ctx context.Context, r backend.ExpireRequest) (done backend.ExpireResult, err error) {
	if err := ctx.Err(); err != nil {
		return done, err
	}
	limit := r.Limit
	if limit <= 0 {
		limit = 1000
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for id, rec := range b.records {
		s := backend.ApplyExpire(rec, now)
		if !s.Changed {
			continue
		}
		if done.Removed+done.Bodies == limit {
			done.More = true
			break
		}
		if s.Next.State == 0 {
			delete(b.records, id)
			done.Removed++
		} else {
			b.records[id] = s.Next
			done.Bodies++
		}
	}
	return done, nil
}

// Guarantees implements backend.Backend: nothing outlives the process.
func (b *Backend) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		ProcessCrash: backend.Lost,
		MachineCrash: backend.Lost,
		Failover:     backend.Survives,
		Findings: []backend.Finding{{
			Setting: "storage", Value: "memory", Want: "a durable backend such as bolt",
			Text: "every record is gone when the process ends",
		}},
	}
}
