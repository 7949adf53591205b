package crdbshim

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	for _, test := range []struct{ sql, code string }{
		{"LISTEN ch", "0A000"},
		{"NOTIFY ch, 'x'", "0A000"},
		{"unlisten *", "0A000"},
		{"SELECT pg_notify('ch', '')", "42883"},
		{"SELECT pg_advisory_lock(1)", "42883"},
		{"SELECT pg_advisory_xact_lock(1, 2)", "42883"},
		{"SELECT pg_catalog.pg_try_advisory_lock(1)", "42883"},
		{"SELECT pg_advisory_unlock_all()", "42883"},
		{"SELECT ctid FROM t", "42703"},
		{`SELECT "xmin" FROM t`, "42703"},
		{"INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 1 RETURNING (xmax = 0)", "42703"},
		{"DELETE FROM t WHERE ctid IN (SELECT ctid FROM t LIMIT 1)", "42703"},
		{"SELECT txid_current()", "42883"},
		{"SELECT pg_current_xact_id()", "42883"},
		{"SELECT pg_current_wal_lsn()", "42883"},
		{"SELECT pg_total_relation_size('t')", "42883"},
		{"LOCK TABLE t", "42601"},
		{"VACUUM t", "42601"},
		{"MERGE INTO t USING t AS o ON t.id = o.id WHEN MATCHED THEN DO NOTHING", "42601"},
		{"DO $$ BEGIN END $$", "0A000"},
		{"PREPARE TRANSACTION 'x'", "0A000"},
		{"CREATE TEMP TABLE x (id int)", "0A000"},
		{"CREATE INDEX x ON t USING hash (id)", "0A000"},
		{"CREATE TABLE x (id int PRIMARY KEY) PARTITION BY HASH (id)", "0A000"},
		{"ALTER TABLE t ADD CONSTRAINT u UNIQUE (v) DEFERRABLE INITIALLY DEFERRED", "0A000"},
		{"ALTER TABLE t SET (autovacuum_vacuum_scale_factor = 0)", "22023"},
		{"SHOW fsync", "42704"},
		{"SELECT current_setting('fsync')", "42704"},
		{"SET LOCAL deadlock_timeout = 1", "42704"},
		{"WITH a AS (DELETE FROM t WHERE id = 1) UPDATE t SET v = 2", "0A000"},
		{"WITH a AS (INSERT INTO t VALUES (1)), b AS (INSERT INTO t VALUES (2) ON CONFLICT DO NOTHING) SELECT 1", "0A000"},
	} {
		for name, mode := range modes {
			f.ClearLog()
			_, err := c.Exec(f.ctx, test.sql, mode)
			if got := sqlState(err); got != test.code {
				t.Errorf("%s (%s): got %v, want SQLSTATE %s", test.sql, name, err, test.code)
			}
			wantStatus(t, c, 'I')
			if got := f.Refused(); !slices.Equal(got, []string{test.sql}) {
				t.Errorf("%s (%s): Refused is %q", test.sql, name, got)
			}
		}
		mustExec(t, c, "BEGIN")
		_, err := c.Exec(f.ctx, test.sql)
		if sqlState(err) != test.code {
			t.Errorf("%s in a block: got %v, want SQLSTATE %s", test.sql, err, test.code)
		}
		wantStatus(t, c, 'E')
		mustExec(t, c, "ROLLBACK")
		if code := sqlState(inPipeline(f.ctx, c, "INSERT INTO t VALUES (5)", test.sql, "INSERT INTO t VALUES (6)")); code != test.code {
			t.Errorf("%s in a pipeline: got SQLSTATE %q, want %s", test.sql, code, test.code)
		}
		f.wantRows(t, 0) // the refusal ended the pipeline's implicit transaction
	}
}

// TestAccepted has the words of TestRefusals where they mean something else.
func TestAccepted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	for _, sql := range []string{
		"SELECT 'LISTEN ctid pg_advisory_lock(1)' -- LISTEN xmin",
		"/* /* LOCK */ ctid */ SELECT $q$ xmin $q$, E'it\\'s ctid', U&'xmax'",
		`CREATE TABLE "lock table" (notify int, "listen;ctid" text)`,
		`SELECT notify AS listen FROM "lock table"`,
		"SELECT 1 FROM t FOR UPDATE SKIP LOCKED",
		"SELECT 1 FROM t FOR NO KEY UPDATE",
		"INSERT INTO t VALUES (1), (2) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id",
		"WITH a AS (SELECT id FROM t FOR UPDATE), b AS (UPDATE t SET v = 3 WHERE id IN (SELECT id FROM a)) SELECT 1",
		"WITH a AS (INSERT INTO t VALUES (3)), b AS (INSERT INTO t VALUES (4)) SELECT 1",
		`WITH a AS (INSERT INTO t VALUES (5) ON CONFLICT (id) DO UPDATE SET v = 1) DELETE FROM "lock table"`,
		"SET lock_timeout = '60s'",
		"BEGIN; SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = 0; COMMIT",
		"CREATE TABLE ff (id int PRIMARY KEY) WITH (fillfactor = 70, autovacuum_enabled = false)",
		"CREATE INDEX CONCURRENTLY ON ff (id) WITH (fillfactor = 70)",
		"ALTER TABLE ff SET (fillfactor = 80)",
	} {
		if _, err := c.Exec(f.ctx, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if got := f.Refused(); len(got) > 0 {
		t.Errorf("refused: %q", got)
	}
}

func TestRowLevelTTL(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	mustExec(t, c, `CREATE TABLE s (id int PRIMARY KEY, expires_at timestamptz) WITH (
		ttl_expiration_expression = 'expires_at + ''1h''::interval', ttl_job_cron = '@hourly', fillfactor = 90)`)
	mustExec(t, c, `DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA other; CREATE TABLE other."S" (id int) WITH (ttl_expire_after = '1 day')`)
	mustExec(t, c, `ALTER TABLE s SET (ttl_job_cron = '@daily', ttl_delete_batch_size = 50)`)
	mustExec(t, c, `ALTER TABLE other."S" RESET (ttl_expire_after)`)
	want := map[string]string{
		"s.ttl_expiration_expression": "expires_at + '1h'::interval",
		"s.ttl_job_cron":              "@daily",
		"s.ttl_delete_batch_size":     "50",
	}
	if got := f.TTL(); !maps.Equal(got, want) {
		t.Errorf("TTL is %q, want %q", got, want)
	}
	var options string
	if err := f.past.QueryRow(f.ctx, "SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE oid = 's'::regclass").Scan(&options); err != nil || !strings.Contains(options, "fillfactor=90") {
		t.Errorf("the table's options are %q (%v)", options, err)
	}
	_, err := c.Exec(f.ctx, "ALTER TABLE absent SET (ttl = 'on')")
	fails(t, err, "42P01")
}

func TestHashShardedIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	mustExec(t, c, "CREATE INDEX sharded ON t (v, id) USING HASH WITH (bucket_count = 8)")
	mustExec(t, c, "CREATE UNIQUE INDEX IF NOT EXISTS sharded2 ON t (v) USING HASH WHERE v > 0")
	mustExec(t, c, "CREATE TABLE h (a int, b int, PRIMARY KEY (a, b) USING HASH WITH (bucket_count = 4))")
	var n int
	if err := f.past.QueryRow(f.ctx, "SELECT count(*) FROM pg_indexes WHERE schemaname = current_schema AND indexdef LIKE '%btree%' AND indexname IN ('sharded', 'sharded2', 'h_pkey')").Scan(&n); err != nil || n != 3 {
		t.Errorf("%d indexes were made (%v), want 3", n, err)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	const old = "CockroachDB CCL v23.1.0 (it's old)"
	f := newFixture(t, Options{Version: old})
	c := f.conn(t)
	for _, mode := range modes {
		var a, b, isolation string
		if err := c.QueryRow(f.ctx, "select VERSION()", mode).Scan(&a); err != nil {
			t.Fatal(err)
		}
		if err := c.QueryRow(f.ctx, "SHOW crdb_version", mode).Scan(&b); err != nil {
			t.Fatal(err)
		}
		if err := c.QueryRow(f.ctx, "SHOW transaction_isolation", mode).Scan(&isolation); err != nil {
			t.Fatal(err)
		}
		if a != old || b != old || isolation != "serializable" {
			t.Errorf("got %q, %q and %q", a, b, isolation)
		}
	}
	if got := c.PgConn().ParameterStatus("crdb_version"); got != old {
		t.Errorf("the parameter is %q", got)
	}
	rows, err := c.Query(f.ctx, "SELECT version() AS named, version(), pg_catalog.version() = $1", old)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectOneRow(rows, pgx.RowToMap)
	if err != nil || got["named"] != old || got["version"] != old || got["?column?"] != true {
		t.Errorf("got %v (%v)", got, err)
	}

	plain := connect(t, f.ctx, Start(t, f.server, Options{Plain: true}).URL())
	var version, isolation string
	if err := plain.QueryRow(f.ctx, "SELECT version(), current_setting('transaction_isolation')").Scan(&version, &isolation); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version, "PostgreSQL") || isolation != "read committed" || plain.PgConn().ParameterStatus("crdb_version") != "" {
		t.Errorf("plain is %q, %q, %q", version, isolation, plain.PgConn().ParameterStatus("crdb_version"))
	}
	mustExec(t, plain, "LISTEN ch")
	mustExec(t, plain, "SELECT pg_advisory_xact_lock(1), ctid FROM t")
	mustExec(t, plain, "DO $$ BEGIN END $$")
}

// TestAdvisoryNoop shows what a store that relied on advisory locks would meet.
func TestAdvisoryNoop(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{AdvisoryNoop: true})
	a, b := f.conn(t), f.conn(t)
	for _, c := range []*pgx.Conn{a, b} { // both at once
		mustExec(t, c, "BEGIN")
		mustExec(t, c, "SELECT pg_advisory_xact_lock($1)", int64(7))
		var ok bool
		if err := c.QueryRow(f.ctx, "SELECT pg_try_advisory_lock($1, (1 + $2))", int32(7), int32(8)).Scan(&ok); err != nil || !ok {
			t.Errorf("got %v (%v)", ok, err)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{LogLimit: 10})
	c := f.conn(t)
	for range 100 {
		mustExec(t, c, "SELECT 1")
	}
	mustExec(t, c, "SELECT $1::int", 2)
	got := f.Log()
	if len(got) < 10 || len(got) > 20 || got[len(got)-1] != "SELECT $1::int" {
		t.Errorf("the log has %d entries and ends with %q", len(got), got[len(got)-1])
	}
}
