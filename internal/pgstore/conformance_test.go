package pgstore

import (
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

var (
	_ DB[pgx.Tx]      = PgxDB{}
	_ DB[*sql.Tx]     = SQLDB{}
	_ backend.Backend = (*Store[pgx.Tx])(nil)
)

// patient is b's configuration with a lock timeout that outlasts the commits of a
// busy machine, so that a duplicate of one is not answered busy.
func (b *base) patient() Config {
	c := b.config()
	c.LockWait = 10 * time.Second
	return c
}

// Lease mode keeps the whole contract, whatever the application's pool is set up
// for. All stores share one database: each setup has tables of its own. IDEM_TEST_LONG
// adds the setups that differ in the driver's ways alone.
func TestConformance(t *testing.T) {
	url := testdb.Postgres(t).Database(t)
	first := newBase(t, url)
	for _, s := range setups() {
		if s.mode != pgx.QueryExecModeCacheStatement && os.Getenv("IDEM_TEST_LONG") == "" {
			continue
		}
		t.Run("pgx/"+s.name, func(t *testing.T) {
			t.Parallel()
			own, pool := first.again(t), newPool(t, url, s)
			backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
				b := own.reset(t)
				return b.harness(func(testing.TB) backend.Backend { return New(PgxDB{Pool: pool}, b.patient()) })
			})
		})
		if s.isolation != "read committed" && os.Getenv("IDEM_TEST_LONG") == "" {
			continue
		}
		t.Run("sql/"+s.name, func(t *testing.T) {
			t.Parallel()
			own, db := first.again(t), newSQL(t, url, s)
			backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
				b := own.reset(t)
				return b.harness(func(testing.TB) backend.Backend { return New(SQLDB{DB: db}, b.patient()) })
			})
		})
	}
}
