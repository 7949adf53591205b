package crdbshim

import (
	"errors"
	"testing"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
)

// forms runs a test with single statements of each kind.
func forms(t *testing.T, test func(t *testing.T, f *fixture, c *pgx.Conn, exec func(string, ...any) error)) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			c := f.conn(t)
			test(t, f, c, func(sql string, args ...any) error {
				_, err := c.Exec(f.ctx, sql, append([]any{mode}, args...)...)
				return err
			})
		})
	}
	t.Run("pipeline", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, Options{})
		c := f.conn(t)
		test(t, f, c, func(sql string, args ...any) error {
			if len(args) > 0 {
				_, err := c.Exec(f.ctx, sql, args...)
				return err
			}
			return inPipeline(f.ctx, c, sql)
		})
	})
}

func TestReleaseCommits(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, f *fixture, c *pgx.Conn, exec func(string, ...any) error) {
		must := func(sql string) {
			t.Helper()
			if err := exec(sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		must("BEGIN")
		must("SAVEPOINT cockroach_restart")
		must("INSERT INTO t VALUES (1)")
		f.wantRows(t, 0)
		wantStatus(t, c, 'T')
		must(`RELEASE SAVEPOINT "cockroach_restart"`)
		f.wantRows(t, 1)
		wantStatus(t, c, 'T')
		fails(t, exec("INSERT INTO t VALUES (2)"), "25000")
		fails(t, exec("ROLLBACK TO SAVEPOINT cockroach_restart"), "25000")
		wantStatus(t, c, 'T')
		must("COMMIT")
		wantStatus(t, c, 'I')
		must("INSERT INTO t VALUES (3)")
		f.wantRows(t, 2)
	})
}

func TestRollbackAfterReleaseSaysCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	mustExec(t, c, "BEGIN; SAVEPOINT cockroach_restart; INSERT INTO t VALUES (1); RELEASE SAVEPOINT cockroach_restart")
	if tag := mustExec(t, c, "ROLLBACK"); tag.String() != "COMMIT" {
		t.Errorf("ROLLBACK was answered %s", tag)
	}
	wantStatus(t, c, 'I')
	f.wantRows(t, 1)
}

func TestRollbackToStartsOver(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, f *fixture, c *pgx.Conn, exec func(string, ...any) error) {
		must := func(sql string) {
			t.Helper()
			if err := exec(sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		count := func() (n int) {
			t.Helper()
			if err := c.QueryRow(f.ctx, "SELECT count(*) FROM t").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		must("BEGIN ISOLATION LEVEL REPEATABLE READ")
		must("SET LOCAL lock_timeout = '7s'")
		must("SAVEPOINT cockroach_restart")
		must("INSERT INTO t VALUES (1)")
		mustExec(t, f.past, "INSERT INTO t VALUES (2)")
		if n := count(); n != 1 {
			t.Fatalf("the first snapshot has %d rows, want 1", n)
		}
		fails(t, exec("INSERT INTO t VALUES (1)"), "23505")
		wantStatus(t, c, 'E')
		fails(t, exec("SELECT 1"), "25P02")
		fails(t, exec("RELEASE SAVEPOINT cockroach_restart"), "25P02")
		must("ROLLBACK TO SAVEPOINT cockroach_restart")
		wantStatus(t, c, 'T')
		if n := count(); n != 1 {
			t.Fatalf("the second snapshot has %d rows, want 1: the other client's", n)
		}
		var isolation, timeout string
		if err := c.QueryRow(f.ctx, "SELECT current_setting('transaction_isolation'), current_setting('lock_timeout')").Scan(&isolation, &timeout); err != nil {
			t.Fatal(err)
		}
		if isolation != "serializable" || timeout != "7s" {
			t.Errorf("after the restart the isolation is %s and lock_timeout %s", isolation, timeout)
		}
		must("INSERT INTO t VALUES (3)")
		must("RELEASE SAVEPOINT cockroach_restart")
		must("COMMIT")
		f.wantRows(t, 2)
	})
}

func TestRestartProtocolMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for name, test := range map[string]struct {
		before []string
		sql    string
		code   string
	}{
		"outside a block":         {nil, "SAVEPOINT cockroach_restart", "25P01"},
		"nested":                  {[]string{"BEGIN", "SAVEPOINT cockroach_restart"}, "SAVEPOINT cockroach_restart", "42601"},
		"late":                    {[]string{"BEGIN", "SELECT 1"}, "SAVEPOINT cockroach_restart", "42601"},
		"release without":         {[]string{"BEGIN"}, "RELEASE cockroach_restart", "3B001"},
		"rollback to without":     {[]string{"BEGIN"}, "ROLLBACK TO cockroach_restart", "3B001"},
		"begin in a block":        {[]string{"BEGIN"}, "BEGIN", "25001"},
		"gone with a block":       {[]string{"BEGIN", "SAVEPOINT cockroach_restart", "COMMIT", "BEGIN"}, "RELEASE cockroach_restart", "3B001"},
		"ordinary after released": {[]string{"BEGIN", "SAVEPOINT cockroach_restart", "RELEASE cockroach_restart"}, "SELECT 1", "25000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, pipelined := range []bool{false, true} {
				c := f.conn(t)
				if pipelined {
					fails(t, inPipeline(f.ctx, c, append(test.before, test.sql)...), test.code)
					continue
				}
				for _, sql := range test.before {
					mustExec(t, c, sql)
				}
				_, err := c.Exec(f.ctx, test.sql)
				fails(t, err, test.code)
			}
		})
	}
}

func TestOtherSavepointsAreOrdinary(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	for _, sql := range []string{
		"BEGIN", "SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (1)", "SAVEPOINT a", "INSERT INTO t VALUES (2)",
		"ROLLBACK TO SAVEPOINT a", "RELEASE SAVEPOINT a",
	} {
		mustExec(t, c, sql)
	}
	f.wantRows(t, 0) // the release of another savepoint commits nothing
	mustExec(t, c, "RELEASE SAVEPOINT cockroach_restart")
	mustExec(t, c, "COMMIT")
	f.wantRows(t, 1)
}

// TestWholeTransactionInOnePipeline sends everything before it reads anything.
func TestWholeTransactionInOnePipeline(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	f.ResetTrips()
	err := inPipeline(f.ctx, c, "BEGIN", "SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (1)",
		"RELEASE SAVEPOINT cockroach_restart", "COMMIT",
		"BEGIN", "SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (2)", "ROLLBACK TO SAVEPOINT cockroach_restart",
		"INSERT INTO t VALUES (3)", "RELEASE SAVEPOINT cockroach_restart")
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, c, 'T')
	mustExec(t, c, "COMMIT")
	wantStatus(t, c, 'I')
	f.wantRows(t, 2)
	if n := f.Trips(); n != 2 {
		t.Errorf("%d round trips were counted, want 2", n)
	}
}

func TestGenuineSerializationFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	mustExec(t, f.past, "INSERT INTO t VALUES (1, 0), (2, 0)")
	a, b := f.conn(t), f.conn(t)
	for i, c := range []*pgx.Conn{a, b} { // write skew: each reads both rows and writes one
		mustExec(t, c, "BEGIN")
		mustExec(t, c, "SAVEPOINT cockroach_restart")
		mustExec(t, c, "SELECT sum(v) FROM t")
		mustExec(t, c, "UPDATE t SET v = 1 WHERE id = $1", i+1)
	}
	mustExec(t, a, "RELEASE SAVEPOINT cockroach_restart")
	mustExec(t, a, "COMMIT")
	_, err := b.Exec(f.ctx, "RELEASE SAVEPOINT cockroach_restart")
	fails(t, err, "40001")
	wantStatus(t, b, 'E')
	mustExec(t, b, "ROLLBACK TO SAVEPOINT cockroach_restart")
	mustExec(t, b, "UPDATE t SET v = 2 WHERE id = 2")
	mustExec(t, b, "RELEASE SAVEPOINT cockroach_restart")
	mustExec(t, b, "COMMIT")
	var v int
	if err := f.past.QueryRow(f.ctx, "SELECT sum(v) FROM t").Scan(&v); err != nil || v != 3 {
		t.Errorf("the rows sum up to %d (%v), want 3", v, err)
	}
}

func TestExecuteTxRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	atStatement := f.Inject(Fault{Kind: Serialization, SQL: "insert into t", Times: 2})
	atCommit := f.Inject(Fault{Kind: Serialization, AtCommit: true, Times: 3})
	runs := 0
	err := crdbpgx.ExecuteTx(f.ctx, c, pgx.TxOptions{}, func(tx pgx.Tx) error {
		runs++
		_, err := tx.Exec(f.ctx, "INSERT INTO t VALUES ($1)", runs)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if runs != 6 || atStatement.Fired() != 2 || atCommit.Fired() != 3 || f.Fired() != 5 {
		t.Errorf("%d runs, faults fired %d and %d, in all %d; want 6, 2, 3 and 5", runs, atStatement.Fired(), atCommit.Fired(), f.Fired())
	}
	f.wantRows(t, 1)
	wantStatus(t, c, 'I')
}

func TestExecuteTxAmbiguous(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{false, true} {
		f := newFixture(t, Options{})
		c := f.conn(t)
		fault := f.Inject(Fault{Kind: Ambiguous, AtCommit: true, Applied: applied})
		err := crdbpgx.ExecuteTx(f.ctx, c, pgx.TxOptions{}, func(tx pgx.Tx) error {
			_, err := tx.Exec(f.ctx, "INSERT INTO t VALUES (1)")
			return err
		})
		var ambiguous *crdb.AmbiguousCommitError
		if !errors.As(err, &ambiguous) {
			t.Fatalf("applied %v: got %v, want an AmbiguousCommitError", applied, err)
		}
		if fault.Fired() != 1 {
			t.Fatal("the fault did not fire")
		}
		want := 0
		if applied {
			want = 1
		}
		f.wantRows(t, want)
		wantStatus(t, c, 'I')
		mustExec(t, c, "INSERT INTO t VALUES (2)")
	}
}

// TestExecuteTxOnPlainPostgres is the reason why a store must know which server it has: ExecuteTx drops
// the error of COMMIT, because RELEASE was the commit. It also shows that these tests notice a RELEASE
// that does not commit.
func TestExecuteTxOnPlainPostgres(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Plain: true})
	c := f.conn(t)
	fault := f.Inject(Fault{Kind: CutBeforeCommit, AtCommit: true})
	err := crdbpgx.ExecuteTx(f.ctx, c, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := tx.Exec(f.ctx, "INSERT INTO t VALUES (1)")
		return err
	})
	if err != nil || fault.Fired() != 1 {
		t.Fatalf("got %v with %d faults, want no error and one", err, fault.Fired())
	}
	f.wantRows(t, 0)
}

// TestReleaseThatDoesNotCommitIsNoticed plants that bug: a shim without the face keeps the savepoint
// an ordinary one, and the check that TestReleaseCommits makes fails.
func TestReleaseThatDoesNotCommitIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Plain: true})
	c := f.conn(t)
	mustExec(t, c, "BEGIN")
	mustExec(t, c, "SAVEPOINT cockroach_restart")
	mustExec(t, c, "INSERT INTO t VALUES (1)")
	mustExec(t, c, "RELEASE SAVEPOINT cockroach_restart")
	if f.rows(t) != 0 {
		t.Error("RELEASE commits without the face, so the test of the face could not fail")
	}
	if _, err := c.Exec(f.ctx, "INSERT INTO t VALUES (2)"); err != nil {
		t.Errorf("a statement after RELEASE: %v", err)
	}
}

// TestReleaseInSimpleQuery: the block's statements share one query.
func TestReleaseInSimpleQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := f.conn(t)
	results, err := c.PgConn().Exec(f.ctx, `BEGIN; SAVEPOINT cockroach_restart; INSERT INTO t VALUES (1) RETURNING id;
		RELEASE SAVEPOINT cockroach_restart; COMMIT; SELECT 2`).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	tags := ""
	for _, r := range results {
		tags += r.CommandTag.String() + ";"
	}
	if tags != "BEGIN;SAVEPOINT;INSERT 0 1;RELEASE;COMMIT;SELECT 1;" {
		t.Errorf("the tags are %s", tags)
	}
	if string(results[2].Rows[0][0]) != "1" {
		t.Errorf("RETURNING says %q", results[2].Rows)
	}
	f.wantRows(t, 1)
}

// TestConflictNeedsRestart: no ordinary savepoint survives 40001, unlike in PostgreSQL.
func TestConflictNeedsRestart(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, f *fixture, c *pgx.Conn, exec func(string, ...any) error) {
		fault := f.Inject(Fault{Kind: Serialization, SQL: "VALUES (2)"})
		must := func(sql string) {
			t.Helper()
			if err := exec(sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		for _, sql := range []string{"BEGIN", "SAVEPOINT cockroach_restart", "INSERT INTO t VALUES (1)", "SAVEPOINT a"} {
			must(sql)
		}
		fails(t, exec("INSERT INTO t VALUES (1)"), "23505")
		must("ROLLBACK TO SAVEPOINT a") // heals what is no conflict
		fails(t, exec("INSERT INTO t VALUES (2)"), "40001")
		fails(t, exec("ROLLBACK TO SAVEPOINT a"), "40001")
		wantStatus(t, c, 'E')
		must("ROLLBACK TO SAVEPOINT cockroach_restart")
		must("INSERT INTO t VALUES (2)")
		must("RELEASE SAVEPOINT cockroach_restart")
		must("COMMIT")
		f.wantRows(t, 1)
		if fault.Fired() != 1 {
			t.Errorf("fired %d times", fault.Fired())
		}
	})
}
