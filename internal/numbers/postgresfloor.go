package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The hand-written floor: what a careful engineer writes over pgx without a library.
//
// It keeps what an incident is cleared up with: the key in words, who owns the attempt
// and its fence, when it began and ended, how long it counts. It does without the rest of
// idem's record (holder's process, attempt number, policies), checks nothing that the
// bars do not promise (no fingerprint is compared, no lease is taken over, no wait for
// another's transaction is bounded), and has one row for each key, in a table with the
// same two indexes. All statements are prepared, one for each step. Every call, idem's
// too, has a context with a deadline, as in any service.
const (
	pgFloorTables = `
CREATE SEQUENCE floor_fence;
CREATE TABLE floor (
	id uuid PRIMARY KEY, owner uuid NOT NULL, fence int8 NOT NULL, created_at timestamptz NOT NULL, expires_at timestamptz NOT NULL,
	state int2 NOT NULL, operation text NOT NULL, key text NOT NULL, host text NOT NULL, fingerprint bytea,
	lease_until timestamptz, completed_at timestamptz, result bytea
) WITH (fillfactor = 70);
CREATE INDEX ON floor (expires_at);
CREATE TABLE orders (id bigserial PRIMARY KEY, customer text NOT NULL, amount int8 NOT NULL, payload text NOT NULL)`

	floorReserveRow = `INSERT INTO floor (id, operation, key, host, state, fingerprint, owner, fence, lease_until, created_at, expires_at)
VALUES ($1, $2, $3, $4, 1, $5, $6, nextval('floor_fence'), now() + interval '30 seconds', now(), now() + interval '1 day')
ON CONFLICT (id) DO NOTHING RETURNING fence, created_at`
	floorCompleteRow = `UPDATE floor SET state = 2, result = $3, lease_until = NULL, completed_at = now()
WHERE id = $1 AND owner = $2 AND state = 1`
	floorInsertDone = `INSERT INTO floor (id, operation, key, host, state, owner, fence, created_at, completed_at, expires_at, result)
VALUES ($1, 'payments/create', $2, '', 2, $1, nextval('floor_fence'), now(), now(), now() + interval '1 day', $3)`
	floorSelect = `SELECT result FROM floor WHERE id = $1`

	effectInsert = `INSERT INTO orders (customer, amount, payload) VALUES ($1, $2, $3)`
)

// lint:const an argument of the effect
var effectPayload = strings.Repeat("x", 100)

type floorID = uuid.UUID

func newFloorID() floorID { return uuid.New() }

// lint:const an argument of the reserve
var floorPrint = make([]byte, 32)

// lint:const an argument of the reserve
var floorHost, _ = os.Hostname()

// perCall is the context of one call: with a deadline, as in any service.
func perCall() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// floorStore stores a new key.
func floorStore(ctx context.Context, q querier, id, owner floorID) error {
	var fence int64
	var created time.Time
	return q.QueryRow(ctx, floorReserveRow, id, "payments/create", id.String(), floorHost, floorPrint, owner).Scan(&fence, &created)
}

// twoStatements is one operation in lease mode by hand: an insertion and an update,
// each with its own commit.
func (b *pgBench) twoStatements() error {
	ctx, cancel := perCall()
	defer cancel()
	id, owner := newFloorID(), newFloorID()
	if err := floorStore(ctx, b.pool, id, owner); err != nil {
		return err
	}
	body, err := json.Marshal(someResult())
	if err != nil {
		return err
	}
	tag, err := b.pool.Exec(ctx, floorCompleteRow, id, owner, body)
	if err == nil && tag.RowsAffected() != 1 {
		return fmt.Errorf("the completion found no row")
	}
	return err
}

// fiveTrips is one operation whose effect and record commit together, by hand.
func (b *pgBench) fiveTrips() error {
	ctx, cancel := perCall()
	defer cancel()
	id, owner := newFloorID(), newFloorID()
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if err := floorStore(ctx, tx, id, owner); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, effectInsert, "customer", 129900, effectPayload); err != nil {
			return err
		}
		body, err := json.Marshal(someResult())
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, floorCompleteRow, id, owner, body)
		if err == nil && tag.RowsAffected() != 1 {
			return fmt.Errorf("the completion found no row")
		}
		return err
	})
}

// effectAlone is the effect in a transaction without idempotency.
func (b *pgBench) effectAlone() error {
	ctx, cancel := perCall()
	defer cancel()
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, effectInsert, "customer", 129900, effectPayload)
		return err
	})
}
