package pgstore

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

var (
	_ backend.Transactional[pgx.Tx]  = (*Store[pgx.Tx])(nil)
	_ backend.Transactional[*sql.Tx] = (*Store[*sql.Tx])(nil)
)

// effects is a table without any unique constraint.
func (b *base) effects() string { return pgx.Identifier{b.names.Prefix + "effects"}.Sanitize() }

func (b *base) count(t testing.TB, name string) (n int) {
	if err := b.admin.QueryRow(context.WithoutCancel(t.Context()), "SELECT count(*) FROM "+b.effects()+" WHERE name = $1", name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// newWired is newPool with its wire watched.
func newWired(t testing.TB, url string, s setup) (*pgxpool.Pool, *wire) {
	t.Helper()
	c, err := pgxpool.ParseConfig(dsn(url, s))
	if err != nil {
		t.Fatal(err)
	}
	w := new(wire)
	w.config(&c.ConnConfig.Config)
	c.MaxConns = s.size
	c.ConnConfig.DefaultQueryExecMode = s.mode
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, w
}

func newWiredSQL(t testing.TB, url string, s setup) (*sql.DB, *wire) {
	t.Helper()
	c, err := pgx.ParseConfig(dsn(url, s))
	if err != nil {
		t.Fatal(err)
	}
	w := new(wire)
	w.config(&c.Config)
	c.DefaultQueryExecMode = s.mode
	db := stdlib.OpenDB(*c)
	db.SetMaxOpenConns(int(s.size))
	db.SetMaxIdleConns(int(s.size))
	t.Cleanup(func() { db.Close() })
	return db, w
}

// txHarness is b for the transactional part of the suite.
func txHarness[Tx any](b *base, db DB[Tx], w *wire) *backendtest.TxHarness[Tx] {
	b.exec("CREATE TABLE IF NOT EXISTS " + b.effects() + " (name text)")
	b.exec("DELETE FROM " + b.effects())
	c := b.config()
	c.LockWait = 500 * time.Millisecond // outlasts a commit on a busy machine
	plain := b.harness(nil)
	return &backendtest.TxHarness[Tx]{
		Open:    func(testing.TB) backend.Transactional[Tx] { return New(db, c) },
		Advance: plain.Advance, Tick: plain.Tick, FenceOutlivesRecord: plain.FenceOutlivesRecord,
		Put: plain.Put, Damage: plain.Damage, Future: plain.Future,
		Count: b.count,
		LoseCommit: func(t testing.TB, applied bool) {
			t.Cleanup(func() {
				if w.next(cutNothing) != cutNothing {
					t.Error("no commit came by to be lost")
				}
			})
			if applied {
				w.next(cutAfter)
			} else {
				w.next(cutBefore)
			}
		},
	}
}

func pgxHarness(b *base, pool *pgxpool.Pool, w *wire) *backendtest.TxHarness[pgx.Tx] {
	h := txHarness[pgx.Tx](b, PgxDB{Pool: pool}, w)
	insert := "INSERT INTO " + b.effects() + " (name) VALUES ($1)"
	h.Effect = func(t testing.TB, tx pgx.Tx, name string) {
		if _, err := tx.Exec(context.WithoutCancel(t.Context()), insert, name); err != nil {
			t.Errorf("effect: %v", err)
		}
	}
	h.InOwnTx = func(t testing.TB, do func(pgx.Tx) error) error {
		return pgx.BeginFunc(context.WithoutCancel(t.Context()), pool, do)
	}
	h.EndEarly = func(tx pgx.Tx) bool {
		ctx := context.Background()
		if tx.Commit(ctx) == nil {
			return true
		}
		_, err := tx.Exec(ctx, "COMMIT")
		return err == nil
	}
	return h
}

func sqlHarness(b *base, db *sql.DB, w *wire) *backendtest.TxHarness[*sql.Tx] {
	h := txHarness[*sql.Tx](b, SQLDB{DB: db}, w)
	insert := "INSERT INTO " + b.effects() + " (name) VALUES ($1)"
	h.Effect = func(t testing.TB, tx *sql.Tx, name string) {
		if _, err := tx.ExecContext(context.WithoutCancel(t.Context()), insert, name); err != nil {
			t.Errorf("effect: %v", err)
		}
	}
	h.InOwnTx = func(t testing.TB, do func(*sql.Tx) error) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := do(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	h.EndEarly = func(tx *sql.Tx) bool { return tx.Commit() == nil }
	return h
}

// Transactional mode keeps the whole contract, whatever the application's pool is
// set up for: here the default with pgx and the strictest isolation with database/sql.
// IDEM_TEST_LONG runs every setup with both.
func TestTransactionalConformance(t *testing.T) {
	url := testdb.Postgres(t).Database(t)
	first := newBase(t, url)
	long := os.Getenv("IDEM_TEST_LONG") != ""
	for _, s := range setups() {
		if long || s.name == "read committed" {
			t.Run("pgx/"+s.name, func(t *testing.T) {
				t.Parallel()
				own := first.again(t)
				pool, w := newWired(t, url, s)
				backendtest.RunTx(t, func(t testing.TB) *backendtest.TxHarness[pgx.Tx] { return pgxHarness(own.reset(t), pool, w) })
			})
		}
		if long || s.name == "serializable" {
			t.Run("sql/"+s.name, func(t *testing.T) {
				t.Parallel()
				own := first.again(t)
				db, w := newWiredSQL(t, url, s)
				backendtest.RunTx(t, func(t testing.TB) *backendtest.TxHarness[*sql.Tx] { return sqlHarness(own.reset(t), db, w) })
			})
		}
	}
}
