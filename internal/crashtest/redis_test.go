package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/redis"
)

// openRedis makes c a caller on Redis.
func (c *caller) openRedis(ctx context.Context, url string, o *idem.Options) error {
	s, err := redis.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	c.close = func() { s.Close() }
	if c.store, err = idem.New(s, o); err != nil {
		c.close()
		return err
	}
	c.do = c.external
	return nil
}

// TestFaultsRedis plays the rows that Redis has. What its settings allow to be lost is
// counted, and is no error; beside that the promises of lease mode hold.
func TestFaultsRedis(t *testing.T) {
	goredis.SetLogger(quietLog{}) // it would report each connection that a killed server refuses
	playFaults(t, []faultPlan{
		{"redis killed, always", 2, 30, func(t *testing.T, r *faultRow, n int, rnd *rand.Rand) { redisKilled(t, r, "always", n, rnd) }},
		{"redis killed, everysec (counted)", 1, 30, func(t *testing.T, r *faultRow, n int, rnd *rand.Rand) { redisKilled(t, r, "everysec", n, rnd) }},
		{"redis killed, no file (counted)", 1, 10, func(t *testing.T, r *faultRow, n int, rnd *rand.Rand) { redisKilled(t, r, "", n, rnd) }},
		{"replica promoted by hand (counted)", 1, 20, promoted},
		{"FLUSHALL (counted)", 1, 15, flushed},
	})
}

type quietLog struct{}

func (quietLog) Printf(context.Context, string, ...any) {}

// redisKilled kills the server at each of the three points of some call and at random
// moments. fsync is its appendfsync, "" for a server that writes nothing.
func redisKilled(t *testing.T, r *faultRow, fsync string, rounds int, rnd *rand.Rand) {
	args := []string{"--appendonly", "yes", "--appendfsync", fsync}
	if fsync == "" {
		args = []string{"--appendonly", "no"}
	}
	server := testdb.StartRedis(t, args...)
	g := &ground{url: server.URL(), dir: t.TempDir(), kind: onRedis}
	points := []point{afterReserve, afterEffect, afterComplete, anywhere}
	first := rnd.IntN(len(points))
	for n := range rounds {
		at := points[(first+n)%len(points)]
		round := fmt.Sprintf("%03d-%s", n, at)
		keys := roundKeys(round, killKeys)
		c := g.open(t, g.url, round)
		h := newHistory()
		left := 1 + rnd.Int64N(killKeys)
		var mu sync.Mutex
		var struck time.Time
		dead := make(chan struct{})
		strike := func() {
			server.Kill(t)
			struck = time.Now()
			close(dead)
		}
		c.at = func(here point, _ string) {
			if here != at {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				strike()
			}
		}
		var stuck []string
		var wg sync.WaitGroup
		wg.Go(func() { stuck = h.settleAll(t, c, keys, 4) })
		if at == anywhere {
			time.Sleep(time.Duration(rnd.Int64N(20)) * time.Millisecond)
			strike()
		}
		<-dead
		r.add(func(r *faultRow) { r.fired++ })
		server.Restart(t)
		wg.Wait()
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		c.at = nil
		fresh := g.open(t, g.url, round)
		if fsync == "always" {
			g.verdict(t, r, round, keys, h, fresh, stuck)
		} else {
			g.tally(t, r, round, keys, h, fresh, stuck)
		}
		fresh.close()
		c.close()
	}
}

// tally counts a round on a store that may forget: what was acknowledged and is gone
// runs again, and from then on there is one result again.
func (g *ground) tally(t *testing.T, r *faultRow, round string, keys []string, h *history, fresh *caller, stuck []string) {
	t.Helper()
	r.add(func(r *faultRow) { r.rounds++; r.stuck += len(stuck) })
	if len(stuck) > 0 {
		t.Errorf("%d keys are stuck: %v", len(stuck), h.last(stuck[0]))
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, key := range keys {
		now := fresh.call(ctx, key, faultWait)
		again := fresh.call(ctx, key, faultWait)
		if now.err != nil || again.err != nil || !again.replayed || again.value != now.value {
			t.Errorf("%s: %+v, and then %+v", key, now, again)
		}
		forgotten := false
		for _, v := range h.acked(key) {
			forgotten = forgotten || v != now.value
		}
		r.add(func(r *faultRow) {
			r.calls += len(h.answers[key])
			if forgotten {
				r.lost++
			}
			for _, a := range h.answers[key] {
				if a.err != nil && !a.definite() {
					r.unknown++
				}
			}
		})
	}
	effects, err := g.effects(ctx, round)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		r.add(func(r *faultRow) {
			switch n := len(effects[key]); {
			case n == 0:
				t.Errorf("%s: acknowledged without an effect", key)
			case n == 2:
				r.explained++ // the store forgot, or a lease ran out
			case n > 2:
				r.duplicate += n - 2
				t.Errorf("%s: %d effects after one fault", key, n)
			}
		})
	}
}

// promoted kills the master while calls are under way and makes its replica the
// master. What had not been replicated is lost, and counted.
func promoted(t *testing.T, r *faultRow, rounds int, rnd *rand.Rand) {
	for n := range rounds {
		round := fmt.Sprintf("%03d-promoted", n)
		keys := roundKeys(round, killKeys*5)
		master := testdb.StartRedis(t)
		replica := testdb.StartReplica(t, master)
		g := &ground{url: master.URL(), dir: t.TempDir(), kind: onRedis}
		h := newHistory()
		c := g.open(t, g.url, round)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for k := i; k < len(keys) && ctx.Err() == nil; k += 4 {
					h.settle(ctx, c, keys[k])
				}
			})
		}
		time.Sleep(time.Duration(10+rnd.Int64N(60)) * time.Millisecond)
		master.Kill(t)
		struck := time.Now()
		r.add(func(r *faultRow) { r.fired++ })
		cancel()
		wg.Wait()
		c.close()
		replica.Do(t, "REPLICAOF", "NO", "ONE")
		c = g.open(t, replica.URL(), round)
		stuck := h.settleAll(t, c, keys, 4)
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		fresh := g.open(t, replica.URL(), round)
		g.tally(t, r, round, keys, h, fresh, stuck)
		fresh.close()
		c.close()
	}
}

// flushed empties the server while one operation is under way and others have been
// acknowledged. Who is under way is told that the lease is lost: its completion makes
// no record.
func flushed(t *testing.T, r *faultRow, rounds int, _ *rand.Rand) {
	server := testdb.StartRedis(t)
	g := &ground{url: server.URL(), dir: t.TempDir(), kind: onRedis}
	for n := range rounds {
		round := fmt.Sprintf("%03d-flushed", n)
		keys := roundKeys(round, 5)
		c := g.open(t, g.url, round)
		h := newHistory()
		c.at = func(here point, key string) {
			if here == afterEffect && strings.HasSuffix(key, "/0") && len(h.acked(keys[1])) > 0 {
				c.at = nil
				server.Do(t, "FLUSHALL")
				r.add(func(r *faultRow) { r.fired++ })
			}
		}
		stuck := h.settleAll(t, c, keys[1:], 1)
		struck := time.Now()
		a := c.call(t.Context(), keys[0], 0)
		h.add(keys[0], a)
		if !errors.Is(a.err, idem.ErrLeaseLost) {
			t.Errorf("%s: the completion after FLUSHALL gave %+v; want ErrLeaseLost", round, a)
		}
		stuck = append(stuck, h.settleAll(t, c, keys[:1], 1)...)
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		fresh := g.open(t, g.url, round)
		g.tally(t, r, round, keys, h, fresh, stuck)
		fresh.close()
		c.close()
	}
}
