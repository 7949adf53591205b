package strategy

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// What people write over PostgreSQL without a library.

// Tables of the hand-written strategies.
const (
	checkTable   = `CREATE TABLE IF NOT EXISTS done (key text NOT NULL, result bytea NOT NULL)`
	checkIndex   = `CREATE INDEX IF NOT EXISTS done_key ON done (key)`
	uniqueTable  = `CREATE TABLE IF NOT EXISTS orders (key text PRIMARY KEY, payload bytea NOT NULL)`
	floorTable   = `CREATE TABLE IF NOT EXISTS floor (key text PRIMARY KEY, state int2 NOT NULL, expires_at timestamptz NOT NULL, result bytea) WITH (fillfactor = 70)`
	floorReserve = `INSERT INTO floor (key, state, expires_at) VALUES ($1, 1, now() + interval '1 day') ON CONFLICT (key) DO NOTHING`
	floorDone    = `UPDATE floor SET state = 2, result = $2 WHERE key = $1`
)

// pgCheck selects the key, runs the operation when it is not there, and inserts it. Two
// callers that select before either inserts both run it.
func pgCheck() Strategy {
	return sqlStrategy(Info{
		Name: "pg-check", Title: "check, then act (select, then insert) on PostgreSQL", Family: Naive,
		Survives: "a power cut",
		Cost:     "new: 2 round trips and 1 commit; duplicate: 1 round trip",
		Floor:    "pg-two",
	}, Postgres, "done", []string{checkTable, checkIndex}, false, func(_ context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		return func(ctx context.Context, op Op) (Outcome, error) {
			var result []byte
			err := p.pool.QueryRow(ctx, `SELECT result FROM done WHERE key = $1 LIMIT 1`, op.Key).Scan(&result)
			if err == nil {
				return Replayed, nil
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				return "", err
			}
			if result, err = env.performOutside(ctx, op); err != nil {
				return "", err
			}
			if _, err := p.pool.Exec(ctx, `INSERT INTO done (key, result) VALUES ($1, $2)`, op.Key, notNil(result)); err != nil {
				return "", err
			}
			return op.executed(ctx)
		}, nil
	})
}

// pgUnique inserts the business row, whose key is unique, in one transaction with the
// effect. A duplicate waits for the transaction that has the key, and learns no
// result; that its payload differs, nobody sees.
func pgUnique() Strategy {
	return sqlStrategy(Info{
		Name: "pg-unique", Title: "unique constraint on the business row in PostgreSQL", Family: Transactional,
		Survives: "a power cut, together with the effect; no result and no fingerprint is kept",
		Cost:     "new: 4 round trips and 1 commit; duplicate: 3 round trips, and a wait while the first is at it",
		Floor:    "pg-five",
	}, Postgres, "orders", []string{uniqueTable}, true, func(_ context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		return func(ctx context.Context, op Op) (Outcome, error) {
			known := false
			err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, `INSERT INTO orders (key, payload) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, op.Key, notNil(op.Payload))
				if err != nil {
					return err
				}
				if known = tag.RowsAffected() == 0; known {
					return nil
				}
				_, err = env.perform(ctx, op, func(ctx context.Context) error { return effectIn(ctx, tx, op) })
				return err
			})
			switch {
			case err != nil:
				return "", err
			case known:
				return Dropped, nil
			}
			return op.executed(ctx)
		}, nil
	})
}

// pgTwo is a lease on PostgreSQL as people write it: an insert and an update, each with
// its own commit.
func pgTwo() Strategy {
	return sqlStrategy(Info{
		Name: "pg-two", Title: "floor: two statements on PostgreSQL", Family: Floor,
		Survives: "a power cut",
		Cost:     "each call: 2 round trips and 2 commits",
	}, Postgres, "floor", []string{floorTable}, false, func(_ context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		return func(ctx context.Context, op Op) (Outcome, error) {
			if _, err := p.pool.Exec(ctx, floorReserve, op.Key); err != nil {
				return "", err
			}
			result, err := env.performOutside(ctx, op)
			if err != nil {
				return "", err
			}
			if _, err := p.pool.Exec(ctx, floorDone, op.Key, result); err != nil {
				return "", err
			}
			return op.executed(ctx)
		}, nil
	})
}

// pgFive is a record and an effect in one commit as pgx has it: begin, reserve, effect,
// complete, commit.
func pgFive() Strategy {
	return sqlStrategy(Info{
		Name: "pg-five", Title: "floor: one transaction of five round trips on PostgreSQL", Family: Floor,
		Survives: "a power cut, together with the effect",
		Cost:     "each call: 5 round trips and 1 commit",
	}, Postgres, "floor", []string{floorTable}, true, func(_ context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		return func(ctx context.Context, op Op) (Outcome, error) {
			err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, floorReserve, op.Key); err != nil {
					return err
				}
				result, err := env.perform(ctx, op, func(ctx context.Context) error { return effectIn(ctx, tx, op) })
				if err != nil {
					return err
				}
				_, err = tx.Exec(ctx, floorDone, op.Key, result)
				return err
			})
			if err != nil {
				return "", err
			}
			return op.executed(ctx)
		}, nil
	})
}

// notNil makes an empty value of none: nil would be NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
