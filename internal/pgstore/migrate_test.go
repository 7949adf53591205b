package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// poolOn opens a small pool, as one process of many has it.
func poolOn(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func names(t testing.TB, schema, prefix string) Names {
	t.Helper()
	n, err := NewNames(schema, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Sixteen processes that start at the same time on an empty database all come up,
// under every default isolation: under the stricter ones a snapshot taken before
// the wait for the lock would not see the winner's tables.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			pg := testdb.Postgres(t)
			url := pg.Database(t)
			n := names(t, "keys", "idem_")
			migrateTogether(t, url+"&default_transaction_isolation="+strings.ReplaceAll(isolation, " ", "%20"), PostgreSQL(), func(int) Names { return n })
			if got := pg.Exec(t, url, "SELECT count(*) FROM keys.idem_schema"); got[0] != "1" {
				t.Errorf("the schema table has %s rows, want 1", got[0])
			}
		})
	}
}

// Stores with prefixes of their own in one schema that is not there yet: the lock
// is the database's, not the prefix's.
func TestMigrateConcurrentlySideBySide(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	url := pg.Database(t)
	migrateTogether(t, url, PostgreSQL(), func(i int) Names { return names(t, "keys", fmt.Sprintf("app%d_", i%4)) })
	if got := pg.Exec(t, url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'keys'"); got[0] != "8" {
		t.Errorf("%s tables, want two for each of four prefixes", got[0])
	}
}

func migrateTogether(t *testing.T, url string, d Dialect, of func(i int) Names) {
	t.Helper()
	const processes = 16
	errs := make([]error, processes)
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range processes {
		pool, n := poolOn(t, url), of(i)
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			errs[i] = Migrate(soon(t), PgxDB{Pool: pool}, n, d)
			if errs[i] == nil {
				errs[i] = CheckSchema(soon(t), PgxDB{Pool: pool}, n, d)
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
}

func TestSchemaVersions(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	url := pg.Database(t)
	db, n := PgxDB{Pool: poolOn(t, url)}, names(t, "", "idem_")
	known := len(Migrations(n, PostgreSQL()))

	var schema *SchemaError
	err := CheckSchema(soon(t), db, n, PostgreSQL())
	if !errors.As(err, &schema) || schema.Found != 0 || schema.Known != known || errors.Is(err, backend.ErrUnknownVersion) {
		t.Errorf("without tables: %v", err)
	}
	if err := Migrate(soon(t), db, n, PostgreSQL()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name          string
		found, oldest int
		want          string // "" for usable
	}{
		{"as it is", known, 1, ""},
		{"newer, and open to this code", known + 2, known, ""},
		{"newer, and closed to this code", known + 2, known + 1, "schema too new: idem_schema has version 3, which is for programs that know version 2 or later; this one knows up to 1"},
		{"older than this code can use", 0, 0, "no schema"},
	} {
		pg.Exec(t, url, "DELETE FROM idem_schema")
		if tt.found > 0 {
			pg.Exec(t, url, fmt.Sprintf("INSERT INTO idem_schema VALUES (%d, %d)", tt.found, tt.oldest))
		}
		err := CheckSchema(soon(t), db, n, PostgreSQL())
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		tooNew := tt.found > known && tt.want != ""
		if errors.Is(err, backend.ErrUnknownVersion) != tooNew {
			t.Errorf("%s: matching ErrUnknownVersion is %v, want %v", tt.name, !tooNew, tooNew)
		}
		if tooNew {
			var v *backend.VersionError
			if !errors.As(err, &v) || v.Found != tt.found || v.Known != known || v.What != "schema" {
				t.Errorf("%s: the version error is %+v", tt.name, v)
			}
			// Migrating backwards is not what happens then.
			if err := Migrate(soon(t), db, n, PostgreSQL()); !errors.Is(err, backend.ErrUnknownVersion) {
				t.Errorf("%s: Migrate: %v", tt.name, err)
			}
		}
	}
	old := version{found: 1, oldest: 1}
	e := &SchemaError{Schema: "keys", Prefix: "idem_", Found: old.found, Needs: 2, Known: 3}
	if text := e.Error(); !strings.Contains(text, "keys.idem_schema has version 1") || !strings.Contains(text, "needs 2 or later and brings 3") {
		t.Errorf("too old: %s", text)
	}
}

// What other tools are given is what Migrate does.
func TestScriptIsTheMigration(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	url := pg.Database(t)
	n := names(t, "keys", "idem_")
	script := Script(n, PostgreSQL())
	db := PgxDB{Pool: poolOn(t, url)}
	if _, err := db.Pool.Exec(soon(t), script); err != nil { // without arguments: many statements at once
		t.Fatalf("%v in\n%s", err, script)
	}
	if err := CheckSchema(soon(t), db, n, PostgreSQL()); err != nil {
		t.Error(err)
	}
	by := names(t, "others", "idem_")
	if err := Migrate(soon(t), db, by, PostgreSQL()); err != nil {
		t.Fatal(err)
	}
	columns := func(schema string) []string {
		return pg.Exec(t, url, "SELECT table_name || '.' || column_name || ' ' || data_type || is_nullable FROM information_schema.columns WHERE table_schema = '"+schema+"' ORDER BY 1")
	}
	if a, b := columns("keys"), columns("others"); len(a) < 30 || !slices.Equal(a, b) {
		t.Errorf("by script %q\nby Migrate %q", a, b)
	}
}

// Every statement ends where the text says so, for both dialects.
func TestMigrationStatements(t *testing.T) {
	t.Parallel()
	n := names(t, "keys", "idem_")
	for _, d := range []Dialect{PostgreSQL(), CockroachDB()} {
		for i, m := range Migrations(n, d) {
			if m.Version != i+1 || !strings.HasPrefix(m.Name, fmt.Sprintf("%04d_", m.Version)) {
				t.Errorf("migration %d is called %s and has version %d", i+1, m.Name, m.Version)
			}
			ss := m.statements()
			if last := ss[len(ss)-1]; !strings.HasPrefix(last, "INSERT INTO "+n.Schema+" (version, oldest) VALUES ("+fmt.Sprint(m.Version)) {
				t.Errorf("%s, %s does not end by writing its version: %s", d.Name, m.Name, last)
			}
			for _, s := range ss {
				switch {
				case !strings.HasPrefix(s, "CREATE ") && !strings.HasPrefix(s, "INSERT ") && !strings.HasPrefix(s, "ALTER "):
					t.Errorf("%s, %s: not a statement that only adds: %s", d.Name, m.Name, s)
				case d.isPostgres(): // one transaction
				case !strings.Contains(s, "IF NOT EXISTS") && !strings.Contains(s, "ON CONFLICT") && !strings.Contains(s, "OR REPLACE"):
					t.Errorf("%s, %s: not repeatable: %s", d.Name, m.Name, s)
				}
			}
		}
	}
}
