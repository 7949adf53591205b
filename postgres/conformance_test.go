package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

// full runs what internal/pgstore covers already, too.
func full(t *testing.T) {
	t.Helper()
	if os.Getenv("BACKENDTEST_FULL") == "" {
		t.Skip("BACKENDTEST_FULL=1 runs it; internal/pgstore holds the same code to the same suite")
	}
}

// Through PgBouncer in transaction mode nothing may be bound to a session (C45): the
// pool of server connections is smaller than that of the clients.
func TestConformanceBouncer(t *testing.T) {
	conform(t, true, pgxHarness)
}

func TestConformance(t *testing.T) {
	full(t)
	conform(t, false, pgxHarness)
}

func TestConformanceSQL(t *testing.T) {
	full(t)
	conform(t, false, sqlHarness)
}

func TestConformanceSQLBouncer(t *testing.T) {
	full(t)
	conform(t, true, sqlHarness)
}

// conform runs the suite. All its stores share one database and differ in the
// prefix of their tables.
func conform[Tx any](t *testing.T, bounced bool, harness func(t testing.TB, s *site) *backendtest.TxHarness[Tx]) {
	t.Helper()
	pg := testdb.Postgres(t)
	direct := pg.Database(t)
	url := direct
	if bounced {
		url = testdb.PgBouncer(t, pg, direct, "default_pool_size=12", "max_prepared_statements=0") + "&default_query_exec_mode=exec"
	}
	pg.Exec(t, direct, "CREATE TABLE effects (name text NOT NULL)") // no constraint: it would hide a second effect
	s := site{admin: newPool(t, direct), pool: newPool(t, url+"&pool_max_conns=24"), db: newDB(t, url)}
	s.db.SetMaxOpenConns(24)
	s.db.SetMaxIdleConns(24)
	backendtest.RunTx(t, func(t testing.TB) *backendtest.TxHarness[Tx] {
		own := s
		own.o = Options{TablePrefix: fmt.Sprintf("t%d_", prefixes.Add(1)), Migrate: true, LockWait: 500 * time.Millisecond} // a busy machine is slow to commit
		own.clock = own.o.TablePrefix + "clock"
		own.o.now = "(SELECT t FROM " + own.clock + ")" // stands still between two calls of Advance
		own.exec(t, "CREATE TABLE "+own.clock+" AS SELECT clock_timestamp() AS t")
		return harness(t, &own)
	})
}

// lint:const numbers the stores of all tests
var prefixes atomic.Int64

// site is where one store is.
type site struct {
	admin, pool *pgxpool.Pool
	db          *sql.DB
	o           Options
	clock       string // table that moves the store's clock
}

func (s *site) exec(t testing.TB, text string, args ...any) pgconn.CommandTag {
	t.Helper()
	tag, err := s.admin.Exec(t.Context(), text, args...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return tag
}

// common is what both harnesses share.
func common[Tx any](s *site) *backendtest.TxHarness[Tx] {
	return &backendtest.TxHarness[Tx]{
		Advance: func(d time.Duration) {
			if _, err := s.admin.Exec(context.Background(), "UPDATE "+s.clock+" SET t = t + $1", d); err != nil {
				panic(err)
			}
		},
		Tick:                time.Microsecond,
		Parallel:            true,
		FenceOutlivesRecord: true,
		Put:                 s.put,
		Damage: func(t testing.TB, id backend.ID) {
			s.exec(t, "UPDATE "+s.o.TablePrefix+"records SET state = 99 WHERE id = $1", id.Sum())
		},
		Future: func(t testing.TB, id backend.ID) {
			s.exec(t, "UPDATE "+s.o.TablePrefix+"records SET format = 99 WHERE id = $1", id.Sum())
		},
		Count: func(t testing.TB, name string) (n int) {
			if err := s.admin.QueryRow(t.Context(), "SELECT count(*) FROM effects WHERE name = $1", s.o.TablePrefix+name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
	}
}

func pgxHarness(t testing.TB, s *site) *backendtest.TxHarness[pgx.Tx] {
	h := common[pgx.Tx](s)
	c := first(t, func(ctx context.Context) (*Store, error) { return New(ctx, s.pool, &s.o) }).config
	h.Open = func(testing.TB) backend.Transactional[pgx.Tx] { return newStore(s.pool, c) }
	h.Effect = func(t testing.TB, tx pgx.Tx, name string) {
		if _, err := tx.Exec(t.Context(), "INSERT INTO effects VALUES ($1)", s.o.TablePrefix+name); err != nil {
			t.Error(err)
		}
	}
	h.InOwnTx = func(t testing.TB, do func(tx pgx.Tx) error) error {
		return pgx.BeginFunc(t.Context(), s.pool, do)
	}
	h.EndEarly = func(tx pgx.Tx) bool {
		if tx.Commit(context.Background()) == nil {
			return true
		}
		_, err := tx.Exec(context.Background(), "COMMIT") // what no type can prevent
		return err == nil
	}
	return h
}

func sqlHarness(t testing.TB, s *site) *backendtest.TxHarness[*sql.Tx] {
	h := common[*sql.Tx](s)
	c := first(t, func(ctx context.Context) (*SQLStore, error) { return NewSQL(ctx, s.db, &s.o) }).config
	h.Open = func(testing.TB) backend.Transactional[*sql.Tx] { return newSQLStore(s.db, c) }
	h.Effect = func(t testing.TB, tx *sql.Tx, name string) {
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO effects VALUES ($1)", s.o.TablePrefix+name); err != nil {
			t.Error(err)
		}
	}
	h.InOwnTx = func(t testing.TB, do func(tx *sql.Tx) error) error {
		tx, err := s.db.BeginTx(t.Context(), nil)
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

// first opens the store of a subtest as everybody does; further handles on it need no
// look at the server.
func first[S any](t testing.TB, open func(ctx context.Context) (S, error)) S {
	t.Helper()
	store, err := open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// put stores a record as it is.
func (s *site) put(t testing.TB, r backend.Record) {
	t.Helper()
	orNull := func(at time.Time) any {
		if at.IsZero() {
			return nil
		}
		return at
	}
	table := s.o.TablePrefix + "records"
	s.exec(t, "DELETE FROM "+table+" WHERE id = $1", r.ID.Sum())
	s.exec(t, "INSERT INTO "+table+` (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned,
		fingerprint, holder_host, holder_pid, holder_started, reserved_at, lease_until, completed_at, replay_until, known_until,
		evidence, body, sweep_after)
		VALUES ($1, $2, $3, $4, 1, 1, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, now())`,
		r.ID.Sum(), r.ID.Tenant, r.ID.Operation, r.ID.Key, int16(r.State), r.Owner, int64(r.Fence), int32(r.Attempt), r.TookOver, int16(r.OnAbandoned),
		r.Fingerprint, r.Holder.Host, int64(r.Holder.PID), orNull(r.Holder.Started), r.ReservedAt, orNull(r.LeaseUntil), orNull(r.CompletedAt),
		orNull(r.ReplayUntil), orNull(r.KnownUntil), r.Evidence, r.Body)
}
