package pgstore

import (
	"testing"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/testdb"
)

// merged is a store that merges lone calls, too.
func merged[Tx any](db DB[Tx], c Config) *Store[Tx] {
	s := New(db, c)
	s.merge = newMerging(s, mergeOptions{always: true})
	return s
}

// Every move that can be merged keeps the contract in a merged statement, whatever
// the driver and however the arguments travel.
func TestConformanceMerged(t *testing.T) {
	url := testdb.Postgres(t).Database(t)
	first := newBase(t, url)
	for _, s := range setups() {
		if s.isolation == "repeatable read" {
			continue // serializable is that and more
		}
		t.Run("pgx/"+s.name, func(t *testing.T) {
			t.Parallel()
			own, pool := first.again(t), newPool(t, url, s)
			backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
				b := own.reset(t)
				return b.harness(func(testing.TB) backend.Backend { return merged(PgxDB{Pool: pool}, b.patient()) })
			})
		})
	}
	t.Run("sql", func(t *testing.T) {
		t.Parallel()
		own, db := first.again(t), newSQL(t, url, setups()[0])
		backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
			b := own.reset(t)
			return b.harness(func(testing.TB) backend.Backend { return merged(SQLDB{DB: db}, b.patient()) })
		})
	})
}
