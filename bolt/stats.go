package bolt

import (
	"context"
	"errors"
	"os"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// Stats says what is in the file. It describes the disk: what an exclusive handle
// keeps in memory only is not in it.
type Stats struct {
	Size int64 // of the file, in bytes
	// Used is what is needed of it; the rest is pages that were freed, which bbolt
	// uses again and Compact gives back.
	Used int64

	Records int // that have not expired
	Expired int // that read as absent and are still on disk
	// Due is how many of the expired ones Expire would remove now: settled records
	// go with their whole generation.
	Due int
	// Stale is how many results of records that have not expired are past their
	// replay window and still on disk. They go with their generation too.
	Stale int
	// StaleDue is how many of those Expire would drop now.
	StaleDue int
}

// Stats reads the whole file and returns what is in it. It holds a read
// transaction for that time, so that writes beside it cannot use freed pages.
func (d *DB) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	info, err := os.Stat(d.path)
	if err != nil {
		return s, fileError(d.path, err)
	}
	s.Size = info.Size()
	count := func(now clock) func(*rows) error {
		return func(r *rows) error { return s.count(ctx, r, now) }
	}
	switch e := d.engine.(type) {
	case *perCall:
		err = e.read(ctx, count(e.now))
	case *exclusive:
		if err = e.usable(); err == nil {
			err = e.view(count(e.now))
		}
	}
	if err != nil {
		return Stats{}, err
	}
	return s, nil
}

func (s *Stats) count(ctx context.Context, r *rows, now clock) error {
	at := now()
	record := func(rec *backend.Record, body bodyAt, due bool) error {
		if rec.Expired(at) {
			s.Expired++
			if due {
				s.Due++
			}
			return ctx.Err()
		}
		s.Records++
		if rec.At(at).BodyExpired && (len(rec.Body) > 0 || r.hasBody(rec, body)) {
			s.Stale++
			if len(rec.Body) == 0 && bodyGeneration(rec).due(at) {
				s.StaleDue++
			}
		}
		return ctx.Err()
	}
	pending, err := r.pending()
	if err != nil {
		return err
	}
	err = pending.ForEach(func(_, v []byte) error {
		rec, err := backend.ParseRecord(v)
		if err != nil {
			return err
		}
		return record(&rec, bodyAt{}, true)
	})
	for _, g := range r.generations() {
		due := g.due(at)
		err = errors.Join(err, r.bucket(g, recordPrefix).ForEach(func(_, v []byte) error {
			rec, _, body, err := decodeRow(v)
			if err != nil {
				return err
			}
			return record(&rec, body, due)
		}))
	}
	if err != nil {
		return err
	}
	// Two headers, the root, and a page for the list of free pages.
	pages := 4
	if err := r.tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
		st := b.Stats()
		pages += st.BranchPageN + st.BranchOverflowN + st.LeafPageN + st.LeafOverflowN
		return ctx.Err()
	}); err != nil {
		return err
	}
	s.Used = min(int64(pages)*int64(r.tx.DB().Info().PageSize), s.Size)
	return nil
}
