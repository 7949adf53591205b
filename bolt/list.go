package bolt

import (
	"bytes"
	"context"
	"iter"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// List reads in chunks of this many rows, or of about this many bytes, and holds
// no transaction while the caller looks at them: a long read transaction keeps
// bbolt from reusing pages.
const (
	chunkRows  = 256
	chunkBytes = 1 << 20
)

// viewer runs a function in a read transaction of its own.
type viewer func(fn func(*rows) error) error

// List implements the move.
func (s *exclusive) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		if err := s.begin(ctx); err != nil {
			yield(backend.Record{}, err)
			return
		}
		// What memory knows shadows the disk, also where it changes meanwhile.
		shadow := make(map[backend.ID]struct{})
		for i := range s.shards {
			sh := &s.shards[i]
			now := s.now()
			var found []backend.Record
			sh.mu.RLock()
			for id, e := range sh.entries {
				if !e.known {
					continue
				}
				shadow[id] = struct{}{}
				if rec := e.rec.At(now); rec.State != 0 && f.Match(&rec, now) {
					found = append(found, rec.Clone())
				}
			}
			sh.mu.RUnlock()
			for _, rec := range found {
				if !yield(rec, nil) {
					return
				}
			}
		}
		listDisk(ctx, s.view, s.now, shadow, f, yield)
	}
}

// listDisk yields the records on disk that are not in shadow.
func listDisk(ctx context.Context, view viewer, now clock, shadow map[backend.ID]struct{}, f backend.Filter, yield func(backend.Record, error) bool) {
	var gens []generation
	if err := view(func(r *rows) error {
		gens = r.generations()
		return nil
	}); err != nil {
		yield(backend.Record{}, err)
		return
	}
	pending := func(r *rows) *bbolt.Bucket { b, _ := r.pending(); return b }
	whole := func(v []byte) (rec backend.Record, body bodyAt, err error) {
		rec, err = backend.ParseRecord(v)
		return rec, body, err
	}
	if !listBucket(ctx, view, now, shadow, f, whole, pending, yield) {
		return
	}
	row := func(v []byte) (rec backend.Record, body bodyAt, err error) {
		rec, _, body, err = decodeRow(v)
		return rec, body, err
	}
	for _, g := range gens {
		bucket := func(r *rows) *bbolt.Bucket { return r.bucket(g, recordPrefix) }
		if !listBucket(ctx, view, now, shadow, f, row, bucket, yield) {
			return
		}
	}
}

// listBucket yields the matching records of one bucket, chunk by chunk. decode
// reads one of its values. It returns false if the listing is over.
func listBucket(ctx context.Context, view viewer, now clock, shadow map[backend.ID]struct{}, f backend.Filter, decode func([]byte) (backend.Record, bodyAt, error), bucket func(*rows) *bbolt.Bucket, yield func(backend.Record, error) bool) bool {
	var from []byte
	for more := true; more; {
		if ctx.Err() != nil {
			return yield(backend.Record{}, ctx.Err()) && false
		}
		var found []backend.Record
		more = false
		err := view(func(r *rows) error {
			b := bucket(r)
			if b == nil {
				return nil
			}
			at, c, size := now(), b.Cursor(), 0
			k, v := c.Seek(from)
			for n := 0; k != nil; k, v = c.Next() {
				if n == chunkRows || size > chunkBytes {
					from, more = bytes.Clone(k), true
					return nil
				}
				n, size = n+1, size+len(v)
				rec, body, err := decode(v)
				if err != nil {
					return err
				}
				if rec = rec.At(at); rec.State != 0 && f.Match(&rec, at) {
					if err := r.attach(&rec, body); err != nil {
						return err
					}
					if body.apart {
						size += len(rec.Body)
					}
					found = append(found, rec)
				}
			}
			return nil
		})
		for _, rec := range found {
			if _, known := shadow[rec.ID]; known {
				continue
			}
			if !yield(rec, nil) {
				return false
			}
		}
		if err != nil {
			yield(backend.Record{}, err)
			return false
		}
	}
	return true
}
