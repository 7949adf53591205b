package testdb

import (
	"net/url"
	"slices"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

func TestPgBouncerPoolsByTransaction(t *testing.T) {
	t.Parallel()
	pg := Postgres(t)
	db := pg.Database(t)
	u, err := url.Parse(PgBouncer(t, pg, db, "default_pool_size=1", "max_prepared_statements=0"))
	if err != nil {
		t.Fatal(err)
	}
	if u.Host == pg.Addr() {
		t.Fatal("the URL leads past PgBouncer")
	}
	// Two clients at once on the only connection: each has it between the other's transactions.
	var backends []string
	for range 2 {
		c, err := throwaway.Connect(u.Host, "postgres", throwaway.DatabaseName(db))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got, err := c.Query("SELECT pg_backend_pid()")
		if err != nil {
			t.Fatal(err)
		}
		backends = append(backends, got...)
	}
	if len(backends) != 2 || len(slices.Compact(backends)) != 1 {
		t.Errorf("the clients were served by backends %v, want the same", backends)
	}
}

func TestPgBouncerSurvivesTheServersRestart(t *testing.T) {
	t.Parallel()
	pg := StartPostgres(t, PGOptions{})
	u, err := url.Parse(PgBouncer(t, pg, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	pg.Kill(t)
	pg.Restart(t)
	if !throwaway.Poll(t.Context(), func() bool {
		c, e := throwaway.Connect(u.Host, "postgres", "postgres")
		if err = e; err == nil {
			_, err = c.Query("SELECT 1")
			c.Close()
		}
		return err == nil
	}) {
		t.Error(err)
	}
}
