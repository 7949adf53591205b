package expiry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/goidem/idem/backend"
)

// The record that says which sweeper of a store works. Its operation is reserved.
const (
	SweeperOperation = "idem.sweeper"
	SweeperKey       = "lease"
)

func leaseID() backend.ID { return backend.ID{Operation: SweeperOperation, Key: SweeperKey} }

// sweepLease is the lease of one sweeper. It saves work, not records: two sweepers
// at once remove nothing that one would not remove, because Expire judges every
// record again in the step that removes it (R24).
type sweepLease struct {
	b    backend.Backend
	ttl  time.Duration
	now  func() time.Time
	ref  backend.Ref
	sent time.Time // when the request that got the lease was sent
	held bool
}

// elapsed is by the clock that has gone further: the monotonic one stands still
// while a machine is suspended, the other can be set back. Where both run backwards
// nobody knows, and the store is asked.
func (l *sweepLease) elapsed() time.Duration {
	n := l.now()
	d := max(n.Sub(l.sent), n.Round(0).Sub(l.sent.Round(0)))
	if d < 0 {
		return l.ttl
	}
	return d
}

// keep gets or renews the lease and reports whether it is held.
func (l *sweepLease) keep(ctx context.Context) (bool, error) {
	if l.held && l.elapsed() < l.ttl/3 {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, max(l.ttl/2, batchLimit))
	defer cancel()
	if l.held {
		sent := l.now()
		err := l.b.Renew(ctx, l.ref, l.ttl)
		switch {
		case err == nil:
			l.sent = sent
			return true, nil
		case errors.Is(err, backend.ErrLeaseLost):
			l.held = false
			return false, nil
		}
		// Nobody knows whether it was renewed; what was granted before still counts.
		l.held = l.elapsed() < l.ttl-l.ttl/10
		return l.held, err
	}
	return l.get(ctx)
}

func (l *sweepLease) get(ctx context.Context) (bool, error) {
	r := backend.ReserveRequest{Ref: backend.Ref{ID: leaseID()}, TTL: l.ttl, KnownFor: backend.OpenFor, OnAbandoned: backend.Rerun}
	rand.Read(r.Owner[:])
	r.Holder.Host, _ = os.Hostname()
	r.Holder.PID = os.Getpid()
	for range 3 {
		sent := l.now()
		res, err := l.b.Reserve(ctx, r)
		if err != nil {
			return false, err
		}
		rec := &res.Record
		switch {
		case res.Outcome == backend.Acquired:
			l.ref, l.sent, l.held = r.Ref, sent, true
			return true, nil
		case res.Outcome == backend.Gone:
			r.TakeOver = 0
		case res.Outcome == backend.Busy, res.Outcome == backend.Existing && rec.State == backend.InFlight && rec.IsLive(res.Now) && !rec.LeaseUntil.IsZero():
			return false, nil
		case res.Outcome == backend.Existing && (rec.State == backend.Open || rec.IsAbandoned(res.Now) || rec.Expired(res.Now)):
			// The compare-and-set on the fence lets one of many win.
			r.TakeOver = rec.Fence
		default:
			return false, fmt.Errorf("idem: key %q of operation %s holds a record that is no sweeper's lease (outcome %v, state %v), so that nothing is swept; it is safe to forget it", SweeperKey, SweeperOperation, res.Outcome, rec.State)
		}
	}
	return false, nil // others were faster
}

// release lets another sweeper begin at once.
func (l *sweepLease) release(ctx context.Context) {
	if l.held {
		l.held = false
		_ = l.b.Release(ctx, l.ref) // else its time runs out
	}
}
