package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/postgres"
)

func measurePostgres(r *report) error {
	return r.all([]part{
		{"execute", pgExecute}, {"small", pgSmallPool}, {"replay", pgReplay}, {"tx", pgTransact}, {"queued", pgQueued}, {"million", pgMillion},
	})
}

// host stands in for a test where testdb wants one.
type host struct {
	testing.TB
	clean []func()
}

func (h *host) Helper()                  {}
func (h *host) Context() context.Context { return context.Background() }
func (h *host) Cleanup(f func())         { h.clean = append(h.clean, f) }
func (h *host) Skip(args ...any)         { panic(fmt.Errorf("%s", fmt.Sprint(args...))) }
func (h *host) Fatal(args ...any)        { panic(fmt.Errorf("%s", fmt.Sprint(args...))) }
func (h *host) Fatalf(format string, args ...any) {
	panic(fmt.Errorf(format, args...))
}

// pgBench is an empty database with idem's tables and those of the hand-written code.
type pgBench struct {
	*host
	url   string
	pool  *pgxpool.Pool
	pg    *postgres.Store
	store *idem.Store
}

// pgOpen makes a database and a pool of some connections on it.
func pgOpen(conns int32) (b *pgBench, err error) {
	b = &pgBench{host: new(host)}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	b.url = testdb.Postgres(b).Database(b)
	c, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		return nil, err
	}
	c.MaxConns = conns
	ctx := context.Background()
	if b.pool, err = pgxpool.NewWithConfig(ctx, c); err != nil {
		return nil, err
	}
	b.Cleanup(b.pool.Close)
	if b.pg, err = postgres.New(ctx, b.pool, &postgres.Options{Migrate: true}); err != nil {
		return nil, err
	}
	if b.store, err = idem.New(b.pg, nil); err != nil {
		return nil, err
	}
	_, err = b.pool.Exec(ctx, pgFloorTables)
	return b, err
}

func (b *pgBench) close() {
	for i := len(b.clean) - 1; i >= 0; i-- {
		b.clean[i]()
	}
}

// withPG runs fn with a bench of its own.
func withPG(conns int32, fn func(*pgBench) error) error {
	b, err := pgOpen(conns)
	if err != nil {
		return err
	}
	defer b.close()
	return fn(b)
}

// pgExecute: new keys with an empty fn, lease mode, against two autocommit
// statements for each.
func pgExecute(r *report) error {
	return withPG(8, func(b *pgBench) error {
		for _, at := range []struct {
			callers int
			bar     float64
		}{{1, 1}, {8, 1.4}, {64, 4}, {256, 7}} {
			if err := b.execute(r, at.callers, at.bar, ""); err != nil {
				return err
			}
		}
		return b.hot(r)
	})
}

func pgSmallPool(r *report) error {
	return withPG(2, func(b *pgBench) error { return b.execute(r, 64, 8, ", pool of 2") })
}

func (b *pgBench) execute(r *report, callers int, bar float64, note string) error {
	op := executeResult(b.store)
	rates, ratios, err := r.compare(callers, []variant{
		{name: "idem", op: op},
		{name: "two statements", op: b.twoStatements},
	})
	if err != nil {
		return err
	}
	r.info("postgres: two autocommit statements by hand"+note, fmt.Sprint(callers), rates[1], "/s")
	r.info("postgres: Execute of new keys, lease mode"+note, fmt.Sprint(callers), rates[0], "/s")
	r.atLeast("postgres: Execute / two statements"+note, fmt.Sprint(callers), ratios[1], bar, "x")
	return nil
}

// executeResult is executeNew with a result to store.
func executeResult(store *idem.Store) func() error {
	hash := idem.FingerprintBytes([]byte("request"))
	fn := func(context.Context) (result, error) { return someResult(), nil }
	return func() error {
		ctx, cancel := perCall()
		defer cancel()
		res, err := idem.Execute(ctx, store, scope, idem.Key(uuid.NewString()), hash, fn)
		if err == nil && res.Replayed {
			return fmt.Errorf("a new key was replayed")
		}
		return err
	}
}

// hot is the share of updates that touched no index.
func (b *pgBench) hot(r *report) error {
	var updates, hot float64
	ctx := context.Background()
	// The counters reach the view when the sessions have been idle for a moment.
	b.pool.Reset()
	if err := poll(func() (bool, error) {
		err := b.pool.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'idem_records'`).Scan(&updates, &hot)
		return updates > 0, err
	}); err != nil {
		return err
	}
	r.atLeast("postgres: HOT share of the updates of records", "-", hot/updates, 0.9, "")
	return nil
}

// pgReplay: a replay against a bare prepared SELECT by primary key, with the same
// decoding.
func pgReplay(r *report) error {
	return withPG(8, func(b *pgBench) error {
		const keys = 1000
		ctx, hash := context.Background(), idem.FingerprintBytes([]byte("request"))
		body, err := json.Marshal(someResult())
		if err != nil {
			return err
		}
		var ids [keys]floorID
		for i := range ids {
			ids[i] = newFloorID()
			if _, err := b.pool.Exec(ctx, floorInsertDone, ids[i], ids[i].String(), body); err != nil {
				return err
			}
		}
		name := func(i int64) idem.Key { return idem.Key(fmt.Sprintf("key-%d", i%keys)) }
		var k atomic.Int64
		if err := fill(keys, func() error {
			_, err := idem.Execute(ctx, b.store, scope, name(k.Add(1)), hash, func(context.Context) (result, error) { return someResult(), nil })
			return err
		}); err != nil {
			return err
		}
		if _, err := b.pool.Exec(ctx, "VACUUM ANALYZE"); err != nil {
			return err
		}
		for _, at := range []struct {
			callers int
			bar     float64
		}{{1, 0.8}, {8, 0}, {64, 3.5}, {256, 7}} {
			var i, j atomic.Int64
			rates, ratios, err := r.compare(at.callers, []variant{
				{name: "replay", op: func() error {
					ctx, cancel := perCall()
					defer cancel()
					res, err := idem.Execute(ctx, b.store, scope, name(j.Add(1)), hash, func(context.Context) (result, error) { return result{}, fmt.Errorf("ran again") })
					if err == nil && (!res.Replayed || res.Value.Cents == 0) {
						return fmt.Errorf("not a replay")
					}
					return err
				}},
				{name: "select", op: func() error {
					ctx, cancel := perCall()
					defer cancel()
					var data []byte
					if err := b.pool.QueryRow(ctx, floorSelect, ids[i.Add(1)%keys]).Scan(&data); err != nil {
						return err
					}
					var v result
					return json.Unmarshal(data, &v)
				}},
			})
			if err != nil {
				return err
			}
			callers := fmt.Sprint(at.callers)
			r.info("postgres: one prepared SELECT each", callers, rates[1], "/s")
			r.info("postgres: replay", callers, rates[0], "/s")
			if at.bar > 0 {
				r.atLeast("postgres: replay / prepared SELECT", callers, ratios[1], at.bar, "x")
			}
		}
		return nil
	})
}

// pgTransact: effect and record in one commit, against the same written by hand in
// five round trips, and against the effect alone.
func pgTransact(r *report) error {
	return withPG(8, func(b *pgBench) error {
		store, err := idem.NewTx(b.pg, nil)
		if err != nil {
			return err
		}
		hash := idem.FingerprintBytes([]byte("request"))
		return b.transactional(r, "postgres: ExecuteTx", 1.15, 0.7, func() error {
			ctx, cancel := perCall()
			defer cancel()
			res, err := idem.ExecuteTx(ctx, store, scope, idem.Key(uuid.NewString()), hash, func(ctx context.Context, tx pgx.Tx) (result, error) {
				_, err := tx.Exec(ctx, effectInsert, "customer", 129900, effectPayload)
				return someResult(), err
			})
			if err == nil && res.Replayed {
				return fmt.Errorf("a new key was replayed")
			}
			return err
		})
	})
}

func (b *pgBench) transactional(r *report, name string, fiveTrips, bare float64, op func() error) error {
	for _, n := range []int{1, 8, 64, 256} {
		rates, ratios, err := r.compare(n, []variant{
			{name: "idem", op: op},
			{name: "five round trips", op: b.fiveTrips},
			{name: "effect alone", op: b.effectAlone},
		})
		if err != nil {
			return err
		}
		callers := fmt.Sprint(n)
		r.info(name, callers, rates[0], "/s")
		r.atLeast(name+" / five round trips by hand", callers, ratios[1], fiveTrips, "x")
		r.atLeast(name+" / the same without idempotency", callers, ratios[2], bare, "x")
	}
	return nil
}
