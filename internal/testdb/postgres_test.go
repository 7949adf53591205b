package testdb

import "testing"

func TestMain(m *testing.M) { Main(m) }

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
