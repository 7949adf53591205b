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
// for: here with every move in a merged statement, under REPEATABLE READ, where a
// statement outside a transaction can be refused, too. TestTransactionalConformance
// includes it, as calls go that come alone, under READ COMMITTED and SERIALIZABLE;
// IDEM_TEST_LONG runs every setup with both drivers in both ways.
func TestConformance(t *testing.T) {
	url := testdb.Postgres(t).Database(t)
	first := newBase(t, url)
	long := os.Getenv("IDEM_TEST_LONG") != ""
	for _, s := range setups() {
		if long || s.name == "repeatable read" {
			t.Run("pgx/"+s.name, func(t *testing.T) {
				pool := newPool(t, url, s)
				leaseConformance(t, first, func(b *base) backend.Backend { return merged(PgxDB{Pool: pool}, b.patient()) })
			})
		}
		if long {
			t.Run("alone/pgx/"+s.name, func(t *testing.T) {
				pool := newPool(t, url, s)
				leaseConformance(t, first, func(b *base) backend.Backend { return New(PgxDB{Pool: pool}, b.patient()) })
			})
			t.Run("sql/"+s.name, func(t *testing.T) {
				db := newSQL(t, url, s)
				leaseConformance(t, first, func(b *base) backend.Backend { return merged(SQLDB{DB: db}, b.patient()) })
			})
			t.Run("alone/sql/"+s.name, func(t *testing.T) {
				db := newSQL(t, url, s)
				leaseConformance(t, first, func(b *base) backend.Backend { return New(SQLDB{DB: db}, b.patient()) })
			})
		}
	}
}

// merged is a store that merges lone calls, too.
func merged[Tx any](db DB[Tx], c Config) *Store[Tx] {
	s := New(db, c)
	s.merge = newMerging(s, mergeOptions{always: true})
	return s
}

func leaseConformance(t *testing.T, first *base, open func(b *base) backend.Backend) {
	t.Parallel()
	own := first.again(t)
	backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
		b := own.reset(t)
		return b.harness(func(testing.TB) backend.Backend { return open(b) })
	})
}
