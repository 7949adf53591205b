package pgstore

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/goidem/idem/backend"
)

// A command that ends the transaction is found wherever the server would find it, and
// nowhere else.
func TestOnlyEffectsReadsAsTheServerDoes(t *testing.T) {
	const (
		fine = iota
		block
		refused
	)
	for text, want := range map[string]int{
		"COMMIT": refused, " \n commit;": refused, ";;(COMMIT)": refused, "end": refused, "prepare transaction 'x'": refused,
		"-- name: Done :exec\nCOMMIT":                        refused,
		"/* a /* nested */ b */ ROLLBACK":                    refused,
		"/* a */ -- b\r\n\t;; start transaction":             refused,
		"SELECT 1; COMMIT":                                   refused,
		"SELECT ';'; commit":                                 refused,
		`SELECT E'\''; ABORT`:                                refused,
		`SELECT E'a''\'; x'; ABORT`:                          refused,
		`SELECT '\'; COMMIT`:                                 refused,
		`SELECT "a""b;" FROM t; begin`:                       refused,
		"SELECT $1, $a$ ; $$ ; $a$; END":                     refused,
		"CALL p()":                                           block,
		"-- x\nDO $$ BEGIN COMMIT; END $$":                   block,
		"SELECT 1; /**/ call p($1)":                          block,
		"INSERT INTO t VALUES (1)":                           fine,
		"-- COMMIT\nSELECT 1":                                fine,
		"SELECT 'x; COMMIT'":                                 fine,
		`SELECT E'\'; COMMIT'`:                               fine,
		`SELECT "; COMMIT"`:                                  fine,
		"SELECT $q$; COMMIT$q$, $1":                          fine,
		"SELECT 1 /* ; COMMIT /* */ ; COMMIT */":             fine,
		"SELECT a$b$, c FROM t WHERE d = $2 -- ; COMMIT":     fine,
		"UPDATE commit SET rollback = 1":                     fine,
		"WITH begin AS (SELECT 1) SELECT commit FROM begin;": fine,
		"committed":                                          fine, "": fine, "-- nothing": fine, "/* open": fine,
	} {
		b := new(pgx.Batch)
		b.Queue(text)
		wrap, err := onlyEffects(b)
		got := fine
		switch {
		case err != nil:
			got = refused
		case wrap:
			got = block
		}
		if got != want || err != nil && !errors.Is(err, backend.ErrInvalidRequest) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

// R17, R19: nothing that a queued statement does commits a part of the batch.
func TestR19QueuedStatementsCannotCommit(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			g := newRig(t, "", setup{size: 1, mode: mode})
			p := g.names.Prefix
			g.exec("CREATE PROCEDURE " + p + "commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; RAISE EXCEPTION 'no'; END $$;" +
				"CREATE PROCEDURE " + p + "undoes() LANGUAGE plpgsql AS $$ BEGIN ROLLBACK; END $$;" +
				"CREATE PROCEDURE " + p + "writes() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO " + g.effects() + " VALUES ('called'); END $$")
			q := g.queued()
			call := func(key, text string) (backend.Reservation, error) {
				return q.Transact(g.ctx, request(key), func(_ context.Context, b *pgx.Batch, _ backend.Reservation) (backend.Completion, error) {
					b.Queue("INSERT INTO " + g.effects() + " (name) VALUES ('first')")
					b.Queue(text)
					b.Queue("INSERT INTO " + g.effects() + " (name) VALUES ('last')")
					return completed("answer"), nil
				})
			}
			for _, text := range []string{
				"-- name: Done :exec\nCOMMIT", "/* /* */ */ ROLLBACK", ";COMMIT",
				"CALL " + p + "commits()", "/* x */ call " + p + "undoes()", "DO $$ BEGIN COMMIT; END $$",
			} {
				_, err := call("k", text)
				var pg *pgconn.PgError
				if err == nil || errors.Is(err, backend.ErrOutcomeUnknown) || !errors.Is(err, backend.ErrInvalidRequest) && (!errors.As(err, &pg) || pg.Code != "2D000") {
					t.Errorf("%s: %v; want a definite refusal, idem's or the server's", text, err)
				}
				if rec, err := g.s.Get(g.ctx, request("k").ID); !errors.Is(err, backend.ErrNotFound) {
					t.Fatalf("%s: the record is %v, %v", text, rec.State, err)
				}
				g.want(0, "first")
				g.idle(text)
			}
			// A procedure that leaves the transaction alone works, for the owner and for a
			// duplicate that this process has not seen.
			if res, err := call("k", "CALL "+p+"writes()"); err != nil || res.Outcome != backend.Acquired {
				t.Fatalf("a procedure that only writes: %v, %v", res.Outcome, err)
			}
			q = NewQueued(New(PgxDB{Pool: g.pool}, g.config()), PgxDB{Pool: g.pool})
			if res, err := call("k", "CALL "+p+"writes()"); err != nil || res.Outcome != backend.Existing || string(res.Record.Body) != "answer" {
				t.Fatalf("its duplicate: %v, %v", res.Outcome, err)
			}
			for _, name := range []string{"first", "called", "last"} {
				g.want(1, name)
			}
			g.idle("a procedure")
		})
	}
}
