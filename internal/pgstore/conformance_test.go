package pgstore

import (
	"database/sql"
	"testing"

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

// Lease mode keeps the whole contract, whatever the application's pool is set up
// for. All stores share one database: each setup has tables of its own.
func TestConformance(t *testing.T) {
	url := testdb.Postgres(t).Database(t)
	first := newBase(t, url)
	for _, s := range setups() {
		t.Run("pgx/"+s.name, func(t *testing.T) {
			own, pool := first.again(t), newPool(t, url, s)
			backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
				b := own.reset(t)
				return b.harness(func(testing.TB) backend.Backend { return New(PgxDB{Pool: pool}, b.config()) })
			})
		})
		if testing.Short() {
			break
		}
	}
	for _, s := range setups() {
		if s.mode == pgx.QueryExecModeExec || s.isolation == "repeatable read" {
			continue // nothing that database/sql would do otherwise
		}
		t.Run("sql/"+s.name, func(t *testing.T) {
			own, db := own.reset(t), newSQL(t, url, s)
			backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
				b := own.reset(t)
				return b.harness(func(testing.TB) backend.Backend { return New(SQLDB{DB: db}, b.config()) })
			})
		})
		if testing.Short() {
			break
		}
	}
}
