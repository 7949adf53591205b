package experiment

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

// hurt returns a server of the run's own of the kind that the strategy needs, and
// the servers of a world on it.
func (l *lab) hurt(ctx context.Context, info strategy.Info, purpose string, args ...string) (Server, map[strategy.Server]string, error) {
	kind := info.Needs[0]
	server, err := l.server(purpose+" "+string(kind), func() (Server, error) {
		switch {
		case kind == strategy.Postgres && l.Servers.Postgres != nil:
			return l.Servers.Postgres(ctx)
		case kind == strategy.Redis && l.Servers.Redis != nil:
			return l.Servers.Redis(ctx, args...)
		}
		return nil, errors.New("the run has none to start, and servers that were given by URL are not hurt")
	})
	if err != nil {
		return nil, nil, err
	}
	return server, l.on(kind, server.URL()), nil
}

// serverKilled kills a server whose disk has what it acknowledged.
func serverKilled(ctx context.Context, l *lab, s strategy.Strategy, rounds int, rnd *rand.Rand, t *tally) error {
	server, urls, err := l.hurt(ctx, s.Info(), "killed", "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err != nil {
		return err
	}
	return killServer(ctx, l, s, rounds, rnd, t, server, urls, false)
}

// volatileKilled kills one that has nothing on its disk.
func volatileKilled(ctx context.Context, l *lab, s strategy.Strategy, rounds int, rnd *rand.Rand, t *tally) error {
	server, urls, err := l.hurt(ctx, s.Info(), "volatile", "--appendonly", "no", "--save", "")
	if err != nil {
		return err
	}
	return killServer(ctx, l, s, rounds, rnd, t, server, urls, true)
}

// killServer kills the server at a point of some operation that the strategy reaches.
// With again, every key is asked for once more afterwards.
func killServer(ctx context.Context, l *lab, s strategy.Strategy, rounds int, rnd *rand.Rand, t *tally, server Server, urls map[strategy.Server]string, again bool) error {
	points := slices.DeleteFunc([]strategy.Point{strategy.AfterReserve, strategy.AfterEffect, strategy.AfterComplete},
		func(at strategy.Point) bool { return !s.Info().Reaches(at) })
	first := rnd.IntN(len(points))
	for n := range rounds {
		err := func() error {
			const keys = 6
			w, err := l.world(s, keys)
			if err != nil {
				return err
			}
			defer w.close(ctx)
			w.env.URLs = urls
			w.env.LeaseTTL = 2 * time.Second // a server takes a while to come back
			r, err := w.open(ctx)
			if err != nil {
				return err
			}
			defer func() { r.Close() }()
			at, left := points[(first+n)%len(points)], 1+rnd.Int64N(keys)
			var passed atomic.Int64
			var struck time.Time
			var failed error
			dead := make(chan struct{})
			ops := w.ops("caller")
			for i := range ops {
				ops[i].Pause = func(_ context.Context, here strategy.Point) error {
					if here == at && passed.Add(1) == left {
						struck = time.Now()
						failed = server.Kill()
						close(dead)
					}
					return nil
				}
			}
			var wg sync.WaitGroup
			done := make(chan struct{})
			wg.Go(func() {
				select {
				case <-dead:
					failed = errors.Join(failed, server.Restart())
				case <-done:
				}
			})
			w.acked(settleAll(ctx, r, ops, 3))
			close(done)
			wg.Wait()
			if failed != nil {
				return failed
			}
			fired, took := !struck.IsZero(), time.Duration(0)
			if fired {
				took = time.Since(struck)
			}
			if again {
				next, err := w.reopen(ctx, r)
				if err != nil {
					return err
				}
				r = next
				w.acked(settleAll(ctx, r, w.ops("again"), 3))
			}
			return t.count(ctx, w, r, fired, took, nil)
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

// cutAtCommit puts a proxy before the server that cuts a connection at a commit, by
// turns before the server sees it and before the client hears of it.
func cutAtCommit(ctx context.Context, l *lab, s strategy.Strategy, rounds int, rnd *rand.Rand, t *tally) error {
	info := s.Info()
	kind := strategy.Postgres
	if slices.Contains(info.Needs, strategy.Cockroach) {
		kind = strategy.Cockroach
	}
	p, err := newProxy(l.URLs[kind])
	if err != nil {
		return err
	}
	defer p.close()
	for n := range rounds {
		err := func() error {
			const keys = 8
			w, err := l.world(s, keys)
			if err != nil {
				return err
			}
			direct := w.env.URLs
			defer func() { w.env.URLs = direct; w.close(ctx) }()
			w.env.URLs = l.on(kind, p.url)
			w.env.LeaseTTL = 2 * time.Second
			r, err := w.open(ctx)
			if err != nil {
				return err
			}
			defer r.Close()
			// The first keys are there for the pool's connections and their statements.
			w.acked(settleAll(ctx, r, w.ops("caller")[:2], 2))
			p.arm(n%2 == 0, rnd.IntN(3))
			armed := time.Now()
			w.acked(settleAll(ctx, r, w.ops("caller")[2:], 3))
			took := time.Since(armed)
			return t.count(ctx, w, r, p.disarm(), took, nil)
		}()
		if err != nil {
			return err
		}
	}
	return nil
}
