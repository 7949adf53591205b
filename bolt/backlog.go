package bolt

import (
	"context"
	"time"

	"github.com/goidem/idem/backend"
)

var _ backend.Backlogger = (*DB)(nil)

// backlogRows bounds how many unsettled records a look at the backlog reads.
const backlogRows = 4096

// Backlog implements backend.Backlogger. It does not read what is due: of settled
// records and results, those of a group count from when the whole group can go, as
// many as were ever put into it. Of more than 4,096 unsettled records on disk the
// first are looked at, and the answer is capped.
func (d *DB) Backlog(ctx context.Context) (backend.Backlog, error) { return d.engine.Backlog(ctx) }

// Backlog implements the look.
func (s *exclusive) Backlog(ctx context.Context) (l backend.Backlog, err error) {
	if err := s.begin(ctx); err != nil {
		return l, err
	}
	if err := s.view(func(r *rows) error { return count(r, s.now(), &l) }); err != nil {
		return backend.Backlog{}, err
	}
	now := s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.RLock()
		for _, e := range sh.entries {
			if e.known && e.at != inPending && backend.ApplyExpire(e.rec, now).Changed {
				note(&l, 1, now.Sub(e.rec.KnownUntil))
			}
		}
		sh.mu.RUnlock()
	}
	return l, nil
}

// Backlog implements the look.
func (p *perCall) Backlog(ctx context.Context) (l backend.Backlog, err error) {
	err = p.read(ctx, func(r *rows) error { return count(r, p.now(), &l) })
	return l, err
}

func note(l *backend.Backlog, due int64, since time.Duration) {
	l.Due += due
	l.Oldest = max(l.Oldest, since)
}

// count adds what is due on disk.
func count(r *rows, now time.Time, l *backend.Backlog) error {
	for _, prefix := range []byte{bodyPrefix, recordPrefix} {
		due, _ := r.due(prefix, now, false)
		for _, d := range due {
			note(l, int64(d.rows), time.Duration(nanos(now)-d.g.end()))
		}
	}
	b, err := r.pending()
	if err != nil {
		return err
	}
	c, n := b.Cursor(), 0
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if n++; n > backlogRows {
			l.Capped = true
			return nil
		}
		if rec, err := backend.ParseRecord(v); err == nil && backend.ApplyExpire(rec, now).Changed {
			note(l, 1, now.Sub(rec.KnownUntil))
		}
	}
	return nil
}
