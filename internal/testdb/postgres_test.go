package testdb

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestPostgresDatabasesAreApart(t *testing.T) {
	t.Parallel()
	pg := Postgres(t)
	if again := Postgres(t); again != pg {
		t.Error("the second call started another server")
	}
	a, b := pg.Database(t), pg.Database(t)
	pg.Exec(t, a, "CREATE TABLE only_here AS SELECT 7 AS n")
	if got := pg.Exec(t, a, "SELECT n FROM only_here"); len(got) != 1 || got[0] != "7" {
		t.Errorf("the table in its database holds %q, want 7", got)
	}
	if _, err := pg.exec(b, "SELECT n FROM only_here"); err == nil {
		t.Error("a table of one test's database is seen in another's")
	}
}

func TestPostgresKeepsCommitsAcrossKill(t *testing.T) {
	t.Parallel()
	pg := StartPostgres(t, PGOptions{})
	db := pg.Database(t)
	pg.Exec(t, db, "CREATE TABLE kept AS SELECT 7 AS n")
	pg.Kill(t)
	if _, err := pg.exec(db, "SELECT 1"); err == nil {
		t.Fatal("the killed server answers")
	}
	pg.Restart(t)
	if got := pg.Exec(t, db, "SELECT n FROM kept"); len(got) != 1 || got[0] != "7" {
		t.Errorf("after a kill the table holds %q, want 7", got)
	}
}

func TestPostgresIsDurable(t *testing.T) {
	t.Parallel()
	pg := Postgres(t)
	for name, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"server_encoding": "UTF8", "listen_addresses": "127.0.0.1",
	} {
		if got := pg.Exec(t, "postgres", "SHOW "+name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
}

func TestPostgresOptions(t *testing.T) {
	t.Parallel()
	parent := filepath.Dir(Postgres(t).dir)
	pg := StartPostgres(t, PGOptions{Parent: parent, Settings: map[string]string{
		"application_name": "it's", "synchronous_commit": "off",
	}})
	if filepath.Dir(pg.dir) != parent {
		t.Errorf("its folder is %s, want one in %s", pg.dir, parent)
	}
	for name, want := range map[string]string{"application_name": "it's", "synchronous_commit": "off"} {
		if got := pg.Exec(t, "postgres", "SHOW "+name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if _, err := startPostgres(PGOptions{Settings: map[string]string{"no_such_setting": "1"}}); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("an unknown setting: %v, want an error with the end of the log", err)
	}
}

// TestPostgresKillTakesEveryBackend has a backend that is busy, which would outlive its postmaster.
func TestPostgresKillTakesEveryBackend(t *testing.T) {
	t.Parallel()
	pg := StartPostgres(t, PGOptions{})
	busy := make(chan error, 1)
	go func() {
		_, err := pg.exec("postgres", "SELECT count(*) FROM generate_series(1, 1000000000000)")
		busy <- err
	}()
	const find = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND pid <> pg_backend_pid()"
	var pids []string
	if !poll(func() bool { pids = pg.Exec(t, "postgres", find); return len(pids) > 0 }) {
		t.Fatal("the busy backend does not show")
	}
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if !running(pid) {
		t.Fatal("the busy backend is not among the processes")
	}
	pg.Kill(t)
	if running(pid) {
		t.Error("the busy backend outlives the kill")
	}
	if err := <-busy; err == nil {
		t.Error("its query succeeded")
	}
	pg.Restart(t) // over what a kill leaves behind, then in order, then while it runs
	pg.Stop()
	pg.Restart(t)
	pg.Restart(t)
	pg.Exec(t, "postgres", "SELECT 1")
}

func TestPostgresDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	pg := Postgres(t)
	var name string
	outer := t
	t.Run("test", func(t *testing.T) {
		name = databaseName(pg.Database(t))
		c, err := pgConnect(pg.Addr(), superuser, name) // stays connected
		if err != nil {
			t.Fatal(err)
		}
		outer.Cleanup(func() { c.conn.Close() })
	})
	if left := pg.Exec(t, "postgres", "SELECT datname FROM pg_database WHERE datname = '"+name+"'"); len(left) > 0 {
		t.Errorf("the database of a test that has ended is there: %q", left)
	}
}

func TestPostgresRoleHasNoRights(t *testing.T) {
	t.Parallel()
	pg := Postgres(t)
	db, role := pg.Database(t), pg.Role(t, "CONNECTION LIMIT 5")
	pg.Exec(t, db, "CREATE TABLE secret (n int)")
	c, err := pgConnect(pg.Addr(), role, databaseName(db))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := c.query("SELECT n FROM secret"); err == nil || !strings.Contains(err.Error(), "42501") {
		t.Errorf("a bare role reads another's table: %v, want permission denied", err)
	}
}
