package pgstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// BenchmarkTransactRatios compares transactional mode with what is written by hand
// over pgx: the effect alone, and effect and record in five round trips. One
// iteration is one round of all of them, in turn, and the ratios are medians over the
// rounds: the machine's moods meet each of them alike. Run it with -benchtime=9x.
func BenchmarkTransactRatios(b *testing.B) {
	g := newRig(b, testdb.Postgres(b).Database(b), setup{size: 8})
	c := g.config()
	c.Now = "" // the clock of production, not the one that tests shift
	g.s = New(PgxDB{Pool: g.pool}, c)
	g.exec(`CREATE TABLE floor (
		id uuid PRIMARY KEY, state int2 NOT NULL, fingerprint bytea, token uuid NOT NULL,
		lease_until timestamptz, created_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, result bytea
	) WITH (fillfactor = 70); CREATE INDEX ON floor (expires_at)`)
	q := g.queued()
	insert := "INSERT INTO " + g.effects() + " (name) VALUES ($1)"
	ctx := context.WithoutCancel(g.ctx)
	var n atomic.Int64
	bare := func() error {
		return pgx.BeginFunc(ctx, g.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, "x")
			return err
		})
	}
	print := make([]byte, 32)
	byHand := func() error {
		r := request("")
		id, owner := r.Owner, r.Owner
		return pgx.BeginFunc(ctx, g.pool, func(tx pgx.Tx) error {
			var created time.Time
			if err := tx.QueryRow(ctx, `INSERT INTO floor (id, state, fingerprint, token, lease_until, created_at, expires_at)
				VALUES ($1, 1, $2, $3, now() + interval '30 seconds', now(), now() + interval '1 day') ON CONFLICT (id) DO NOTHING RETURNING created_at`,
				id, print, owner).Scan(&created); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, insert, "x"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE floor SET state = 2, result = $3, lease_until = NULL WHERE id = $1 AND token = $2 AND state = 1`, id, owner, []byte("answer"))
			return err
		})
	}
	key := func() backend.ReserveRequest { return request(fmt.Sprint("ratio-", n.Add(1))) }
	transact := func() error {
		_, err := g.s.Transact(ctx, key(), func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
			_, err := tx.Exec(ctx, insert, "x")
			return completed("answer"), err
		})
		return err
	}
	queued := func() error {
		_, err := q.Transact(ctx, key(), func(_ context.Context, batch *pgx.Batch, _ backend.Reservation) (backend.Completion, error) {
			batch.Queue(insert, "x")
			return completed("answer"), nil
		})
		return err
	}
	ops := []func() error{bare, byHand, transact, queued}
	const slice = 200 * time.Millisecond
	// rate runs op for a while in so many goroutines.
	rate := func(callers int, op func() error) float64 {
		var wg sync.WaitGroup
		var done atomic.Int64
		began := time.Now()
		for range callers {
			wg.Go(func() {
				for time.Since(began) < slice {
					if err := op(); err != nil {
						b.Error(err)
						return
					}
					done.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(done.Load()) / time.Since(began).Seconds()
	}
	for _, callers := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			for _, op := range ops { // statements are prepared, and planned for good
				rate(callers, op)
			}
			var rates [4][]float64
			var of [4][]float64
			for round := 0; b.Loop(); round++ {
				var now [4]float64
				for i := range ops {
					v := (i + round) % len(ops)
					now[v] = rate(callers, ops[v])
					rates[v] = append(rates[v], now[v])
				}
				for i, x := range []float64{now[2] / now[1], now[2] / now[0], now[3] / now[1], now[3] / now[0]} {
					of[i] = append(of[i], x)
				}
			}
			for i, name := range []string{"tx/hand", "tx/bare", "queued/hand", "queued/bare"} {
				b.ReportMetric(median(of[i]), name)
			}
			for i, name := range []string{"bare-us", "hand-us", "tx-us", "queued-us"} {
				b.ReportMetric(1e6*float64(callers)/median(rates[i]), name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
