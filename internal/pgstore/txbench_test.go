package pgstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// BenchmarkTransact compares one Execute against the same effect without any
// idempotency, and shows what the savepoint costs.
func BenchmarkTransact(b *testing.B) {
	g := newRig(b, testdb.Postgres(b).Database(b), setup{size: 8})
	c := g.config()
	c.Now = "" // the clock of production, not the one that tests shift
	g.s = New(PgxDB{Pool: g.pool}, c)
	ctx := b.Context()
	insert := "INSERT INTO " + g.effects() + " (name) VALUES ('x')"
	work := func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
		_, err := tx.Exec(ctx, insert)
		return completed("answer"), err
	}
	n := 0
	next := func() string { n++; return fmt.Sprint("b-", n) }
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := pgx.BeginFunc(ctx, g.pool, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, insert); return err }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("savepoint", func(b *testing.B) {
		for b.Loop() {
			err := pgx.BeginFunc(ctx, g.pool, func(tx pgx.Tx) error {
				batch := new(pgx.Batch)
				batch.Queue("SAVEPOINT s")
				batch.Queue(insert)
				return tx.SendBatch(ctx, batch).Close()
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("transact", func(b *testing.B) {
		for b.Loop() {
			if _, err := g.s.Transact(ctx, request(next()), work); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("queued", func(b *testing.B) {
		q := g.queued()
		for b.Loop() {
			_, err := q.Transact(ctx, request(next()), func(_ context.Context, batch *pgx.Batch, _ backend.Reservation) (backend.Completion, error) {
				batch.Queue(insert)
				return completed("answer"), nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		key := next()
		for b.Loop() {
			if _, err := g.s.Transact(ctx, request(key), work); err != nil {
				b.Fatal(err)
			}
		}
	})
}
