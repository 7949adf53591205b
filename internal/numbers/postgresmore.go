package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem"
)

// pgQueued: the same with an effect that is only queued: one round trip.
func pgQueued(r *report) error {
	return withPG(8, func(b *pgBench) error {
		queued, err := idem.NewTx(b.pg.Queued(), nil)
		if err != nil {
			return err
		}
		hash := idem.FingerprintBytes([]byte("request"))
		return b.transactional(r, "postgres: queued", 1.6, 0.95, func() error {
			ctx, cancel := perCall()
			defer cancel()
			res, err := idem.ExecuteTx(ctx, queued, scope, idem.Key(uuid.NewString()), hash, func(_ context.Context, tx *pgx.Batch) (result, error) {
				tx.Queue(effectInsert, "customer", 129900, effectPayload)
				return someResult(), nil
			})
			if err == nil && res.Replayed {
				return fmt.Errorf("a new key was replayed")
			}
			return err
		})
	})
}

// pgMillion: what a million stored records add to an Execute.
func pgMillion(r *report) error {
	return withPG(8, func(small *pgBench) error {
		return withPG(8, func(large *pgBench) error {
			if err := small.load(r.size(10_000)); err != nil {
				return err
			}
			if err := large.load(r.size(1_000_000)); err != nil {
				return err
			}
			for _, callers := range []int{1, 64} {
				_, ratios, err := r.compare(callers, []variant{
					{name: "10,000", op: executeResult(small.store)},
					{name: "1,000,000", op: executeResult(large.store)},
				})
				if err != nil {
					return err
				}
				r.atMost("postgres: Execute with 1,000,000 records / with 10,000, time", fmt.Sprint(callers), ratios[1], 1.3, "x")
			}
			return nil
		})
	})
}

// recordColumns are the columns of a record, in the order of load.
const recordColumns = `id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned,
       fingerprint, holder_host, holder_pid, holder_started, reserved_at, lease_until, completed_at, replay_until, known_until, evidence, body, sweep_after`

// load stores n completed records with random names.
func (b *pgBench) load(n int) error {
	ctx := context.Background()
	if _, err := b.pool.Exec(ctx, `INSERT INTO idem_records (`+recordColumns+`)
SELECT gen_random_uuid(), '', 'payments/create', 'stored-' || i, 1, 2, 2, gen_random_uuid(), i, 1, false, 1,
       NULL, '', 0, NULL, now(), NULL, now(), now() + interval '1 day', now() + interval '1 day', '', convert_to(repeat('x', 200), 'UTF8'), now() + interval '1 day'
  FROM generate_series(1, $1::int8) AS i`, n); err != nil {
		return err
	}
	if _, err := b.pool.Exec(ctx, "VACUUM ANALYZE idem_records"); err != nil {
		return err
	}
	_, err := b.pool.Exec(ctx, "CHECKPOINT")
	return err
}

// poll waits for something of the server's.
func poll(done func() (bool, error)) error {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok, err := done(); ok || err != nil {
			return err
		}
	}
	return errors.New("the server did not get there")
}
