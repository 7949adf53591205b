package crashtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cockroach"
	"github.com/goidem/idem/postgres"
)

// pgKind is a way to call idem on a SQL server.
type pgKind string

const (
	pgTx      pgKind = "tx"         // ExecuteTx with pgx.Tx
	pgQueued  pgKind = "queued"     // ExecuteTx with statements that are only queued
	pgSQL     pgKind = "sql"        // ExecuteTx with *sql.Tx
	pgLease   pgKind = "lease"      // Execute, the effect in a file outside
	crdbTx    pgKind = "crdb"       // ExecuteTx of package cockroach, through the shim
	crdbLease pgKind = "crdb-lease" // Execute of package cockroach, through the shim
	onRedis   pgKind = "redis"      // Execute on Redis
)

// external reports whether effects are in a ledger outside the database.
func (k pgKind) external() bool { return k == pgLease || k == crdbLease || k == onRedis }

func (k pgKind) cockroach() bool { return k == crdbTx || k == crdbLease }

// insertEffect has no conflict to meet: the table has no unique constraint, which
// would hide a second effect.
const (
	createEffects = "CREATE TABLE effects (key text NOT NULL, run text NOT NULL, pad text NOT NULL)"
	insertEffect  = "INSERT INTO effects (key, run, pad) VALUES ($1, $2, $3)"
)

// faultLease is the lease where attempts are abandoned: long enough for a busy machine to
// renew it, and short enough to wait for its end.
const faultLease = 1500 * time.Millisecond

// faultWait is how long a call waits for another on its key: longer than a lease.
const faultWait = 10 * time.Second

// lint:const numbers the runs of the operation in this process
var runNumber atomic.Int64

// newRun names one run of an operation, in all processes.
func newRun() string { return fmt.Sprintf("%d.%d", os.Getpid(), runNumber.Add(1)) }

// answer is what one call returned, and which runs of the operation it began.
type answer struct {
	value    string
	replayed bool
	attempt  int
	runs     []string
	err      error
}

// definite reports whether the answer says that this call had no effect.
func (a answer) definite() bool { return a.err != nil && !errors.Is(a.err, idem.ErrOutcomeUnknown) }

// caller makes calls of one kind on one store.
type caller struct {
	kind  pgKind
	store *idem.Store
	pool  *pgxpool.Pool // nil with database/sql
	close func()

	do func(ctx context.Context, key string, wait time.Duration, run *runner) (idem.Result[string], error)

	at      func(point, string) // nil, or called at each point of an operation with its key
	pad     string              // written with each effect
	effects *ledger             // of the external kinds
}

// runner is the operation in one call.
type runner struct {
	c    *caller
	key  string
	runs []string
}

// begin names a run and passes the first point.
func (r *runner) begin() string {
	run := newRun()
	r.runs = append(r.runs, run)
	r.pass(afterReserve)
	return run
}

func (r *runner) pass(p point) {
	if r.c.at != nil {
		r.c.at(p, r.key)
	}
}

// call makes one call.
func (c *caller) call(ctx context.Context, key string, wait time.Duration) answer {
	r := &runner{c: c, key: key}
	res, err := c.do(ctx, key, wait, r)
	a := answer{value: res.Value, replayed: res.Replayed, attempt: res.Attempt, runs: r.runs, err: err}
	if err == nil {
		r.pass(afterComplete)
	}
	return a
}

// transactional returns the call of a kind whose effect is in the same database.
func transactional[Tx any](s *idem.TxStore[Tx], insert func(ctx context.Context, tx Tx, key, run, pad string) error) func(context.Context, string, time.Duration, *runner) (idem.Result[string], error) {
	return func(ctx context.Context, key string, wait time.Duration, r *runner) (idem.Result[string], error) {
		return idem.ExecuteTx(ctx, s, scope, idem.Key(key), idem.NoFingerprint(), func(ctx context.Context, tx Tx) (string, error) {
			run := r.begin()
			if err := insert(ctx, tx, key, run, r.c.pad); err != nil {
				return "", err
			}
			r.pass(afterEffect)
			return run, nil
		}, idem.Wait(wait))
	}
}

func (c *caller) external(ctx context.Context, key string, wait time.Duration, r *runner) (idem.Result[string], error) {
	return idem.Execute(ctx, c.store, scope, idem.Key(key), idem.NoFingerprint(), func(context.Context) (string, error) {
		run := r.begin()
		if err := c.effects.add(key + " " + run); err != nil {
			return "", err
		}
		r.pass(afterEffect)
		return run, nil
	}, idem.Wait(wait))
}

// newCaller opens a store of a kind. effects is the ledger of the external kinds.
func newCaller(ctx context.Context, kind pgKind, url string, conns int, lease time.Duration, effects *ledger) (c *caller, err error) {
	c = &caller{kind: kind, effects: effects}
	o := &idem.Options{LeaseTTL: lease}
	switch kind {
	case pgSQL:
		return c, c.openSQL(ctx, url, conns, o)
	case onRedis:
		return c, c.openRedis(ctx, url, o)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	if c.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	c.close = c.pool.Close
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	var b backend.Transactional[pgx.Tx]
	var queued backend.Transactional[*pgx.Batch]
	if kind.cockroach() {
		b, err = cockroach.New(ctx, c.pool, &cockroach.Options{Migrate: true})
	} else {
		var s *postgres.Store
		if s, err = postgres.New(ctx, c.pool, &postgres.Options{Migrate: true}); err == nil {
			b, queued = s, s.Queued()
		}
	}
	if err != nil {
		return nil, err
	}
	switch kind {
	case pgQueued:
		tx, err := idem.NewTx(queued, o)
		if err != nil {
			return nil, err
		}
		c.store = tx.Store
		c.do = transactional(tx, func(_ context.Context, batch *pgx.Batch, key, run, pad string) error {
			batch.Queue(insertEffect, key, run, pad)
			return nil
		})
	default:
		tx, err := idem.NewTx(b, o)
		if err != nil {
			return nil, err
		}
		c.store, c.do = tx.Store, c.external
		if !kind.external() {
			c.do = transactional(tx, func(ctx context.Context, tx pgx.Tx, key, run, pad string) error {
				_, err := tx.Exec(ctx, insertEffect, key, run, pad)
				return err
			})
		}
	}
	return c, nil
}
