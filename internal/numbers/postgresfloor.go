package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The hand-written floor: what a careful engineer writes over pgx without a library.
const (
	pgFloorTables = `
CREATE TABLE floor (
	id uuid PRIMARY KEY, state int2 NOT NULL, fingerprint bytea, token uuid NOT NULL,
	lease_until timestamptz, created_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, result bytea
) WITH (fillfactor = 70);
CREATE INDEX ON floor (expires_at);
CREATE TABLE orders (id bigserial PRIMARY KEY, customer text NOT NULL, amount int8 NOT NULL, payload text NOT NULL)`

	floorReserveRow = `INSERT INTO floor (id, state, fingerprint, token, lease_until, created_at, expires_at)
VALUES ($1, 1, $2, $3, now() + interval '30 seconds', now(), now() + interval '1 day') ON CONFLICT (id) DO NOTHING RETURNING created_at`
	floorCompleteRow = `UPDATE floor SET state = 2, result = $3, lease_until = NULL WHERE id = $1 AND token = $2 AND state = 1`
	floorInsertDone  = `INSERT INTO floor (id, state, token, created_at, expires_at, result) VALUES ($1, 2, $1, now(), now() + interval '1 day', $2)`
	floorSelect      = `SELECT result FROM floor WHERE id = $1`

	effectInsert = `INSERT INTO orders (customer, amount, payload) VALUES ($1, $2, $3)`
)

// lint:const an argument of the effect
var effectPayload = strings.Repeat("x", 100)

type floorID = uuid.UUID

func newFloorID() floorID { return uuid.New() }

// lint:const an argument of the reserve
var floorPrint = make([]byte, 32)

// twoStatements is one operation in lease mode by hand: an insertion and an update,
// each with its own commit.
func (b *pgBench) twoStatements() error {
	ctx, id, token := context.Background(), newFloorID(), newFloorID()
	var created time.Time
	if err := b.pool.QueryRow(ctx, floorReserveRow, id, floorPrint, token).Scan(&created); err != nil {
		return err
	}
	body, err := json.Marshal(someResult())
	if err != nil {
		return err
	}
	tag, err := b.pool.Exec(ctx, floorCompleteRow, id, token, body)
	if err == nil && tag.RowsAffected() != 1 {
		return fmt.Errorf("the completion found no row")
	}
	return err
}

// fiveTrips is one operation whose effect and record commit together, by hand.
func (b *pgBench) fiveTrips() error {
	ctx, id, token := context.Background(), newFloorID(), newFloorID()
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		var created time.Time
		if err := tx.QueryRow(ctx, floorReserveRow, id, floorPrint, token).Scan(&created); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, effectInsert, "customer", 129900, effectPayload); err != nil {
			return err
		}
		body, err := json.Marshal(someResult())
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, floorCompleteRow, id, token, body)
		return err
	})
}

// effectAlone is the effect in a transaction without idempotency.
func (b *pgBench) effectAlone() error {
	ctx := context.Background()
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, effectInsert, "customer", 129900, effectPayload)
		return err
	})
}
