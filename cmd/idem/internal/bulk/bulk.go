// Package bulk changes many records at once: it forgets them, writes them out and
// reads them back.
package bulk

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/goidem/idem/backend"
)

// Backend is a store that has to be closed.
type Backend interface {
	backend.Backend
	io.Closer
}

// workers is how many moves are under way at a time; a store that has its file to
// itself commits them together.
const workers = 64

// batch is how many records are changed before the file is given up for a moment,
// so that others who wait for it get their turn.
const batch = 2000

// Forget forgets records whose fence has not moved. open is called for each spell
// of work. changed counts the records that are not what they were when the
// requests were made.
func Forget(ctx context.Context, open func() (Backend, error), all []backend.ForgetRequest) (removed, changed int, err error) {
	for len(all) > 0 && err == nil {
		n := min(len(all), batch)
		err = spell(open, func(b Backend) error {
			var mu sync.Mutex
			return together(ctx, all[:n], func(r backend.ForgetRequest) error {
				err := b.Forget(ctx, r)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					removed++
				case errors.Is(err, backend.ErrStale), errors.Is(err, backend.ErrNotFound), errors.Is(err, backend.ErrInFlight):
					changed++
				default:
					return err
				}
				return nil
			})
		})
		all = all[n:]
	}
	return removed, changed, err
}

// spell opens the store, works, and closes it.
func spell(open func() (Backend, error), work func(Backend) error) error {
	b, err := open()
	if err != nil {
		return err
	}
	err = work(b)
	return errors.Join(err, b.Close())
}

// together calls do for every item from several goroutines and returns the first
// error, after which no new item is begun.
func together[E any](ctx context.Context, items []E, do func(E) error) error {
	var (
		mu     sync.Mutex
		next   int
		failed error
		group  sync.WaitGroup
	)
	take := func() (item E, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil && ctx.Err() != nil {
			failed = context.Cause(ctx)
		}
		if failed != nil || next == len(items) {
			return item, false
		}
		next++
		return items[next-1], true
	}
	for range min(workers, len(items)) {
		group.Go(func() {
			for {
				item, ok := take()
				if !ok {
					return
				}
				if err := do(item); err != nil {
					mu.Lock()
					if failed == nil {
						failed = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	group.Wait()
	return failed
}
