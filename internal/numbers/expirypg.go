package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/expiry"
)

// plainSweep is a careful engineer's batch: the oldest, by primary key.
const (
	sweepBatch = 1000 // what a Sweeper removes at once, unless it is told
)

const plainSweep = `DELETE FROM plain WHERE id = ANY(ARRAY(SELECT id FROM plain WHERE sweep_after <= now() ORDER BY sweep_after LIMIT $1::int8))`

// loadExpired stores n completed records whose windows are over in both tables, the
// same rows, and as many as a tenth that are not.
func (b *pgBench) loadExpired(n int) error {
	ctx := context.Background()
	for _, text := range []string{
		`DROP TABLE IF EXISTS plain`, `TRUNCATE idem_records`,
		fmt.Sprintf(`INSERT INTO idem_records (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned,
       fingerprint, holder_host, holder_pid, holder_started, reserved_at, lease_until, completed_at, replay_until, known_until, evidence, body, sweep_after)
SELECT gen_random_uuid(), '', 'payments/create', 'stored-' || i, 1, 2, 2, gen_random_uuid(), i, 1, false, 1,
       NULL, '', 0, NULL, at - interval '1 day', NULL, at - interval '1 day', at, at, '', convert_to(repeat('x', 200), 'UTF8'), at
  FROM (SELECT i, now() + CASE WHEN i %% 11 = 0 THEN interval '1 day' ELSE i * interval '1 ms' - interval '1 hour' END AS at FROM generate_series(1, %d) AS i) AS s`, n*11/10),
		`CREATE TABLE plain (LIKE idem_records INCLUDING ALL)`,
		`ALTER TABLE plain SET (fillfactor = 33)`,
		`INSERT INTO plain SELECT * FROM idem_records`,
		`VACUUM ANALYZE idem_records`, `VACUUM ANALYZE plain`, `CHECKPOINT`,
	} {
		if _, err := b.pool.Exec(ctx, text); err != nil {
			return fmt.Errorf("%.40s: %w", text, err)
		}
	}
	return nil
}

func (b *pgBench) plain(n, limit int) (time.Duration, error) {
	begun, removed := time.Now(), 0
	for removed < n {
		tag, err := b.pool.Exec(context.Background(), plainSweep, limit)
		if err != nil {
			return 0, err
		}
		if tag.RowsAffected() == 0 {
			break
		}
		removed += int(tag.RowsAffected())
	}
	if removed != n {
		return 0, fmt.Errorf("the plain DELETE removed %d of %d", removed, n)
	}
	return time.Since(begun), nil
}

// alone is a sweeper where nobody else is to be spared.
func alone() expiry.SweeperOptions {
	return expiry.SweeperOptions{Latency: func() time.Duration { return 0 }}
}

// pgSweep: a million expired records, by the Sweeper and by a plain DELETE in batches
// of the same size.
func pgSweep(r *report) error {
	return withPG(4, func(b *pgBench) error {
		n := r.size(1_000_000)
		rounds := min(r.rounds, 3)
		var rates, ratios []float64
		for round := range rounds {
			if err := b.loadExpired(n); err != nil {
				return err
			}
			var ours, theirs time.Duration
			for i := range 2 {
				var err error
				if (round+i)%2 == 0 {
					var removed int
					if removed, ours, err = sweepAll(b.pg, alone()); err == nil && removed != n {
						err = fmt.Errorf("the sweeper removed %d of %d", removed, n)
					}
				} else {
					theirs, err = b.plain(n, sweepBatch)
				}
				if err != nil {
					return err
				}
			}
			rates, ratios = append(rates, float64(n)/ours.Seconds()), append(ratios, theirs.Seconds()/ours.Seconds())
		}
		r.info("postgres: records swept", "-", median(rates), "/s")
		r.atLeast("postgres: sweep / plain DELETE in batches by primary key", "-", median(ratios), 0.8, "x")
		return nil
	})
}

// recent is the 99th percentile of the last 500 calls, about a second's.
type recent struct {
	mu  sync.Mutex
	all []time.Duration
}

func (r *recent) add(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, d)
}

func (r *recent) p99() time.Duration {
	r.mu.Lock()
	last := slices.Sorted(slices.Values(r.all[max(len(r.all)-500, 0):]))
	r.mu.Unlock()
	if len(last) == 0 {
		return 0
	}
	return last[len(last)*99/100]
}

// foreground executes new keys at a steady pace until stop is closed, and returns the
// 99th percentile of how long each took.
func (b *pgBench) foreground(stop <-chan struct{}, latest *recent) (p99 time.Duration, calls int, err error) {
	op := executeResult(b.store)
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			tick := time.NewTicker(8 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				begun := time.Now()
				failed := op()
				took := time.Since(begun)
				latest.add(took)
				mu.Lock()
				if all = append(all, took); failed != nil {
					err = failed
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(all) == 0 {
		return 0, 0, fmt.Errorf("nothing ran in the foreground")
	}
	slices.Sort(all)
	return all[len(all)*99/100], len(all), err
}

// pgSweepForeground: Execute of new keys, 500 a second, while a million records are
// swept, for half a minute at most, and without. The sweeper is told the callers' p99,
// as a service would.
func pgSweepForeground(r *report) error {
	return withPG(8, func(b *pgBench) error {
		n := r.size(1_000_000)
		var before, during, ratios, swept []float64
		for range min(r.rounds, 3) {
			if err := b.loadExpired(n); err != nil {
				return err
			}
			if err := fill(2000, executeResult(b.store)); err != nil {
				return err
			}
			latest, stop := new(recent), make(chan struct{})
			time.AfterFunc(8*r.cell, func() { close(stop) })
			without, _, err := b.foreground(stop, latest)
			if err != nil {
				return err
			}
			stop = make(chan struct{})
			var removed int
			var failed error
			go func() {
				defer close(stop)
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				removed, _, failed = sweepUntil(ctx, b.pg, expiry.SweeperOptions{Latency: latest.p99})
			}()
			with, _, err := b.foreground(stop, latest)
			if err != nil || failed != nil || removed == 0 {
				return fmt.Errorf("removed %d of %d: %v, %v", removed, n, failed, err)
			}
			swept = append(swept, float64(removed)/float64(n))
			before, during = append(before, without.Seconds()*1e3), append(during, with.Seconds()*1e3)
			ratios = append(ratios, with.Seconds()/without.Seconds())
		}
		r.info("postgres: p99 of Execute without a sweep", "4", median(before), " ms")
		r.info("postgres: p99 of Execute during a sweep", "4", median(during), " ms")
		r.info("postgres: share of the records that was swept meanwhile", "4", median(swept), "")
		r.atMost("postgres: p99 of Execute during a sweep / without", "4", median(ratios), 2, "x")
		return nil
	})
}

// pgSweepRounds: ten rounds of records written, expired and swept, with the server's
// own vacuum, which looks as often in a round as it would in one of production.
func pgSweepRounds(r *report) error {
	return withPG(8, func(b *pgBench) error {
		ctx := context.Background()
		for _, text := range []string{"ALTER SYSTEM SET autovacuum_naptime = '1s'", "SELECT pg_reload_conf()"} {
			if _, err := b.pool.Exec(ctx, text); err != nil {
				return err
			}
		}
		policy, err := expiry.New(expiry.Rule{Operation: "*", Replay: time.Second, Dedup: time.Second, Failed: time.Second, Abandoned: time.Second})
		if err != nil {
			return err
		}
		store, err := idem.New(b.pg, &idem.Options{Retention: policy, LeaseTTL: 2 * time.Second})
		if err != nil {
			return err
		}
		var sizes []float64
		for range 10 {
			if err := fill(r.size(100_000), executeResult(store)); err != nil {
				return err
			}
			if err := poll(func() (bool, error) {
				if _, _, err := sweepAll(b.pg, alone()); err != nil {
					return false, err
				}
				var left int64
				err := b.pool.QueryRow(ctx, `SELECT count(*) FROM idem_records WHERE operation <> $1`, expiry.SweeperOperation).Scan(&left)
				return left == 0, err
			}); err != nil {
				return err
			}
			size, err := b.size()
			if err != nil {
				return err
			}
			sizes = append(sizes, size)
		}
		for i, s := range sizes {
			r.info(fmt.Sprintf("postgres: table and indexes after round %d", i+1), "-", s/1e6, " MB")
		}
		r.atMost("postgres: size after ten rounds / after three", "-", slices.Max(sizes[3:])/sizes[2], 1.2, "x")
		return nil
	})
}

func (b *pgBench) size() (size float64, err error) {
	err = b.pool.QueryRow(context.Background(), `SELECT pg_total_relation_size('idem_records')::float8`).Scan(&size)
	return size, err
}
