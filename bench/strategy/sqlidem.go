package strategy

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cockroach"
	"github.com/goidem/idem/postgres"
)

// idemTable is where idem keeps its records.
const idemTable = "idem_records"

// sqlStrategy is a strategy on a SQL server: do handles the requests.
func sqlStrategy(info Info, server Server, table string, tables []string, own bool, do func(context.Context, Env, *sqlPlace) (func(context.Context, Op) (Outcome, error), error)) Strategy {
	info.Needs = []Server{server}
	return strategy{info, func(ctx context.Context, env Env) (Runner, error) {
		p, err := openSQL(ctx, env, server, table, tables...)
		if err != nil {
			return nil, err
		}
		handle, err := do(ctx, env, p)
		if err != nil {
			return nil, closing(err, p.close)
		}
		effects := env.Effects
		if own {
			effects = p
		}
		return &runner{do: handle, effects: effects, usage: p.usage, flushes: p.flushes, wire: p.wire, close: p.close}, nil
	}}
}

func (p *sqlPlace) postgres(ctx context.Context) (*postgres.Store, error) {
	return postgres.New(ctx, p.pool, &postgres.Options{Schema: p.schema, Migrate: true})
}

func (p *sqlPlace) cockroach(ctx context.Context) (*cockroach.Store, error) {
	return cockroach.New(ctx, p.pool, &cockroach.Options{Schema: p.schema, Migrate: true})
}

func effectIn(ctx context.Context, tx pgx.Tx, op Op) error {
	_, err := tx.Exec(ctx, insertEffect, op.Key, op.Caller)
	return err
}

// The lease mode.

func pgLease() Strategy {
	return sqlStrategy(Info{
		Name: "pg-lease", Title: "idem on PostgreSQL", Family: Lease,
		Survives: "a power cut, with the server's default settings",
		Cost:     "new: 2 round trips and 2 commits, shared with concurrent callers; duplicate: 1 round trip",
		Floor:    "pg-two",
	}, Postgres, idemTable, nil, false, func(ctx context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		s, err := p.postgres(ctx)
		if err != nil {
			return nil, err
		}
		return doLease(env, s)
	})
}

func crdbLease() Strategy {
	return sqlStrategy(Info{
		Name: "crdb-lease", Title: "idem on CockroachDB", Family: Lease,
		Survives: "the loss of a node",
		Cost:     "new: 2 round trips and 2 commits, shared with concurrent callers; duplicate: 1 round trip",
	}, Cockroach, idemTable, nil, false, func(ctx context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		s, err := p.cockroach(ctx)
		if err != nil {
			return nil, err
		}
		return doLease(env, s)
	})
}

// The transactional mode.

func pgTx() Strategy {
	return sqlStrategy(Info{
		Name: "pg-tx", Title: "idem on PostgreSQL, in one transaction with the effect", Family: Transactional,
		Survives: "a power cut, together with the effect",
		Cost:     "new: 1 commit, with round trips for the record, for the effect and for the commit; duplicate: 2 round trips",
		Floor:    "pg-five",
	}, Postgres, idemTable, nil, true, func(ctx context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		s, err := p.postgres(ctx)
		if err != nil {
			return nil, err
		}
		return doTx[pgx.Tx](env, s, effectIn)
	})
}

// pgTxQueued only queues the effect: at the point AfterEffect nothing has travelled.
func pgTxQueued() Strategy {
	return sqlStrategy(Info{
		Name: "pg-tx-queued", Title: "idem on PostgreSQL, in one transaction with queued statements", Family: Transactional,
		Survives: "a power cut, together with the effect",
		Cost:     "new: 1 round trip and 1 commit; duplicate: 1 or 2 round trips",
		Floor:    "pg-five", AtOnce: true,
	}, Postgres, idemTable, nil, true, func(ctx context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		s, err := p.postgres(ctx)
		if err != nil {
			return nil, err
		}
		return doTx(env, backend.Transactional[*pgx.Batch](s.Queued()), func(_ context.Context, b *pgx.Batch, op Op) error {
			b.Queue(insertEffect, op.Key, op.Caller)
			return nil
		})
	})
}

func crdbTx() Strategy {
	return sqlStrategy(Info{
		Name: "crdb-tx", Title: "idem on CockroachDB, in one transaction with the effect", Family: Transactional,
		Survives: "the loss of a node, together with the effect",
		Cost:     "new: 1 commit, with round trips for the record, for the effect and for the commit; duplicate: 2 round trips",
	}, Cockroach, idemTable, nil, true, func(ctx context.Context, env Env, p *sqlPlace) (func(context.Context, Op) (Outcome, error), error) {
		s, err := p.cockroach(ctx)
		if err != nil {
			return nil, err
		}
		return doTx[pgx.Tx](env, s, effectIn)
	})
}
