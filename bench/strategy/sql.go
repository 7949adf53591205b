package strategy

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlPlace is a strategy's schema on a PostgreSQL or CockroachDB server.
type sqlPlace struct {
	server Server
	pool   *pgxpool.Pool
	admin  *pgx.ConnConfig // not counted
	schema string
	wire   *meter
	table  string // of the records

	flushed int64 // by the server when the place was opened
}

// sqlSchema is the schema of a place. Its prefix keeps [Erase] from everything that is
// not of the benchmark.
func sqlSchema(place string) string { return "bench_" + place }

// effectsTable holds the effects: no unique constraint, no memory of keys.
const effectsTable = `CREATE TABLE IF NOT EXISTS effects (key text NOT NULL, caller text NOT NULL)`

const insertEffect = `INSERT INTO effects (key, caller) VALUES ($1, $2)`

// openSQL makes the schema with its tables, and a pool on it.
func openSQL(ctx context.Context, env Env, server Server, table string, tables ...string) (*sqlPlace, error) {
	c, err := pgxpool.ParseConfig(env.URLs[server])
	if err != nil {
		return nil, fmt.Errorf("bench: the URL of %s cannot be read; it is like postgres://user:password@host:5432/database", server)
	}
	p := &sqlPlace{server: server, schema: sqlSchema(env.Place), wire: new(meter), table: table}
	c.MaxConns = int32(min(env.Conns, 1000))
	c.ConnConfig.RuntimeParams["search_path"] = p.schema
	c.ConnConfig.RuntimeParams["application_name"] = p.schema
	p.admin = c.ConnConfig.Copy()
	p.admin.RuntimeParams["application_name"] = p.schema + "_admin"
	c.ConnConfig.DialFunc = pgconn.DialFunc(p.wire.around(dialer(c.ConnConfig.DialFunc)))

	ddl := append([]string{"CREATE SCHEMA IF NOT EXISTS " + p.schema, effectsTable}, tables...)
	err = p.ask(ctx, func(conn *pgx.Conn) error {
		for _, statement := range ddl {
			if err := define(ctx, conn, statement); err != nil {
				return fmt.Errorf("bench: prepare the schema of %s: %w", env.Place, err)
			}
		}
		p.flushed, err = flushes(ctx, conn, server)
		return err
	})
	if err != nil {
		return nil, err
	}
	if p.pool, err = pgxpool.NewWithConfig(ctx, c); err != nil {
		return nil, fmt.Errorf("bench: connect to %s: %w", server, err)
	}
	return p, nil
}

// define runs CREATE ... IF NOT EXISTS. Two processes that run it at once may both find
// that there is none, and the slower fails with the name of the other's.
func define(ctx context.Context, conn *pgx.Conn, statement string) (err error) {
	for range 5 {
		var refused *pgconn.PgError
		if _, err = conn.Exec(ctx, statement); err == nil || !errors.As(err, &refused) {
			return err
		}
	}
	return err
}

// ask calls fn with a connection of its own, which is not counted.
func (p *sqlPlace) ask(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, p.admin)
	if err != nil {
		return fmt.Errorf("bench: connect to %s: %w", p.server, err)
	}
	return errors.Join(fn(conn), conn.Close(ctx))
}

func (p *sqlPlace) close() error { p.pool.Close(); return nil }

// Apply implements Ledger.
func (p *sqlPlace) Apply(ctx context.Context, key, caller string) error {
	_, err := p.pool.Exec(ctx, insertEffect, key, caller)
	return err
}

// Counts implements Ledger.
func (p *sqlPlace) Counts(ctx context.Context) (map[string]int, error) {
	all := make(map[string]int)
	err := p.ask(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT key, count(*) FROM effects GROUP BY key`)
		if err != nil {
			return err
		}
		var key string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { all[key] = n; return nil })
		return err
	})
	return all, err
}

// usage counts the records.
func (p *sqlPlace) usage(ctx context.Context) (u Usage, err error) {
	u = Usage{StoredBytes: -1}
	err = p.ask(ctx, func(conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM `+p.table).Scan(&u.Records); err != nil {
			return err
		}
		if p.server == Cockroach {
			return nil
		}
		return conn.QueryRow(ctx, `SELECT pg_total_relation_size($1::regclass)`, p.table).Scan(&u.StoredBytes)
	})
	return u, err
}

// flushes are those of the whole server. A session tells its own now and then, or when it is
// asked to, so each one of the pool is. That opens those that there are not yet, and ends
// none: a round that follows finds them all.
func (p *sqlPlace) flushes(ctx context.Context) (n int64, err error) {
	conns := make([]*pgxpool.Conn, 0, p.pool.Config().MaxConns)
	defer func() {
		for _, c := range conns {
			c.Release()
		}
	}()
	for range cap(conns) {
		c, err := p.pool.Acquire(ctx)
		if err != nil {
			return -1, fmt.Errorf("bench: connect to %s: %w", p.server, err)
		}
		conns = append(conns, c)
		if p.flushed < 0 {
			continue
		}
		if _, err := c.Exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
			return -1, err
		}
	}
	n = -1
	if p.flushed < 0 {
		return n, nil
	}
	err = p.ask(ctx, func(conn *pgx.Conn) error {
		now, err := flushes(ctx, conn, p.server)
		if now >= 0 {
			n = now - p.flushed
		}
		return err
	})
	return n, err
}

// flushes returns how often the server has flushed its log, or a negative number where
// that is not known: before PostgreSQL 15, where a session cannot be asked to tell its own,
// and in CockroachDB.
func flushes(ctx context.Context, conn *pgx.Conn, server Server) (n int64, err error) {
	if server == Cockroach {
		return -1, nil
	}
	var version int
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return -1, err
	}
	switch {
	case version < 150000:
		return -1, nil
	case version < 180000:
		err = conn.QueryRow(ctx, `SELECT wal_sync FROM pg_stat_wal`).Scan(&n)
	default: // counts moved
		err = conn.QueryRow(ctx, `SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'`).Scan(&n)
	}
	return n, err
}
