package memory

import (
	"context"

	"github.com/goidem/idem/backend"
)

var _ backend.Backlogger = (*Backend)(nil)

// Backlog implements backend.Backlogger.
func (b *Backend) Backlog(ctx context.Context) (l backend.Backlog, err error) {
	if err := ctx.Err(); err != nil {
		return l, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, rec := range b.records {
		if !backend.ApplyExpire(rec, now).Changed {
			continue
		}
		due := rec.KnownUntil
		if len(rec.Body) > 0 && !rec.ReplayUntil.IsZero() && rec.ReplayUntil.Before(due) {
			due = rec.ReplayUntil
		}
		l.Due++
		l.Oldest = max(l.Oldest, now.Sub(due))
	}
	return l, nil
}
