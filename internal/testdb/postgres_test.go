package testdb

import (
	"os"
	"strings"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
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
	if _, err := pg.srv.Exec(b, "SELECT n FROM only_here"); err == nil {
		t.Error("a table of one test's database is seen in another's")
	}
}

func TestPostgresKeepsCommitsAcrossKill(t *testing.T) {
	t.Parallel()
	pg := StartPostgres(t, PGOptions{})
	db := pg.Database(t)
	pg.Exec(t, db, "CREATE TABLE kept AS SELECT 7 AS n")
	pg.Kill(t)
	if _, err := pg.srv.Exec(db, "SELECT 1"); err == nil {
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
	Postgres(t) // the host is there
	parent, err := os.MkdirTemp(session.host.Dir(), "parent-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(parent, 0o711); err != nil {
		t.Fatal(err)
	}
	pg := StartPostgres(t, PGOptions{Parent: parent, Settings: map[string]string{
		"application_name": "it's", "synchronous_commit": "off",
	}})
	if in, err := os.ReadDir(parent); err != nil || len(in) != 1 {
		t.Errorf("its parent has %v, %v, want a folder", in, err)
	}
	for name, want := range map[string]string{"application_name": "it's", "synchronous_commit": "off"} {
		if got := pg.Exec(t, "postgres", "SHOW "+name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if _, err := startPostgres(t.Context(), PGOptions{Settings: map[string]string{"no_such_setting": "1"}}); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("an unknown setting: %v, want an error with the end of the log", err)
	}
}

func TestPostgresDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	pg := Postgres(t)
	var name string
	outer := t
	t.Run("test", func(t *testing.T) {
		name = throwaway.DatabaseName(pg.Database(t))
		c, err := throwaway.Connect(pg.Addr(), "postgres", name) // stays connected
		if err != nil {
			t.Fatal(err)
		}
		outer.Cleanup(c.Close)
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
	c, err := throwaway.Connect(pg.Addr(), role, throwaway.DatabaseName(db))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Query("SELECT n FROM secret"); err == nil || !strings.Contains(err.Error(), "42501") {
		t.Errorf("a bare role reads another's table: %v, want permission denied", err)
	}
}
