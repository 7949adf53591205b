package crashtest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/internal/testdb"
)

const killKeys = 20

// workerKilled kills a worker process at each of the three points. A survivor calls
// at once, while the server may not know yet that the worker is dead.
func workerKilled(t *testing.T, r *faultRow, kind pgKind, rounds int, rnd *rand.Rand) {
	g := newGround(t, testdb.Postgres(t).Database(t), kind)
	g.open(t, g.url, "migrate").close() // so that no worker is killed while it migrates
	points := []point{afterReserve, afterEffect, afterComplete}
	for n := range rounds {
		at := points[n%len(points)]
		round := fmt.Sprintf("%03d-%s", n, at)
		keys := roundKeys(round, killKeys)
		cmd, out := spawn(t, pgOrders{Task: "work", Lease: faultLease, Kind: kind, URL: g.url, Effects: g.ledgerPath(round), Acks: g.ackPath(round),
			Keys: keys, Conns: 4, Point: at, After: 1 + rnd.Int64N(killKeys)})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); !killedBy(cmd) {
			t.Errorf("%s: the worker was not killed: %v: %s", round, err, out)
		} else {
			r.add(func(r *faultRow) { r.fired++ })
		}
		struck := time.Now()
		h := newHistory()
		g.note(t, h, round)
		c := g.open(t, g.url, round)
		stuck := h.settleAll(t, c, keys, 4)
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		fresh := g.open(t, g.url, round)
		g.verdict(t, r, round, keys, h, fresh, stuck)
		fresh.close()
		c.close()
	}
}

// serverKilled kills the whole server, at each of the three points of some call and
// at random moments, and starts it again. All other calls are wherever they are.
func serverKilled(t *testing.T, r *faultRow, kind pgKind, rounds int, rnd *rand.Rand) {
	pg := testdb.StartPostgres(t, testdb.PGOptions{Settings: map[string]string{"shared_buffers": "32MB"}})
	g := newGround(t, pg.Database(t), kind)
	points := []point{afterReserve, afterEffect, afterComplete, anywhere}
	first := rnd.IntN(len(points)) // a short run plays some of them, another run others
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
			pg.Kill(t)
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
			time.Sleep(time.Duration(rnd.Int64N(40)) * time.Millisecond)
			strike()
		}
		<-dead
		r.add(func(r *faultRow) { r.fired++ })
		pg.Restart(t)
		wg.Wait()
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		c.at = nil
		g.admin.Reset()
		fresh := g.open(t, g.url, round)
		g.verdict(t, r, round, keys, h, fresh, stuck)
		fresh.close()
		c.close()
	}
}
