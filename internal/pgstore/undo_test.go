package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// R21: where a savepoint cannot be gone back to, the caller's transaction commits
// nothing, and the caller is told. A function that leaves rows open makes it so, with
// an error of its own and without.
func TestR21JoinThatCannotBeUndoneCommitsNothing(t *testing.T) {
	t.Parallel()
	const many = "SELECT generate_series(1, 100000)"
	mine := errors.New("mine")
	// check looks at what is left; commit is the caller's, outer what it did before.
	check := func(t *testing.T, g *rig, r backend.ReserveRequest, failed, err error, commit func() error) {
		t.Helper()
		if !errors.Is(err, errNotUndone) || failed != nil && !errors.Is(err, failed) {
			t.Errorf("Join: %v; want %v and what became of the transaction", err, failed)
		}
		if err := commit(); err == nil {
			t.Error("the caller's transaction was committed")
		}
		if rec, err := g.s.Get(g.ctx, r.ID); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("the record is %v, %v", rec.State, err)
		}
		g.t = t
		g.want(0, "before")
		g.want(0, "k")
	}
	for name, failed := range map[string]error{"an error": mine, "no error": nil} {
		t.Run("sql, "+name, func(t *testing.T) {
			g := newRig(t, "", setup{})
			db := newSQL(t, g.url, setup{size: 1})
			s := New(SQLDB{DB: db}, g.config())
			tx, err := db.BeginTx(g.ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("INSERT INTO " + g.effects() + " VALUES ('before')"); err != nil {
				t.Fatal(err)
			}
			r := request("k")
			_, err = s.Join(g.ctx, tx, r, func(ctx context.Context, tx *sql.Tx, _ backend.Reservation) (backend.Completion, error) {
				if _, err := tx.ExecContext(ctx, "INSERT INTO "+g.effects()+" VALUES ('k')"); err != nil {
					t.Error(err)
				}
				rows, err := tx.QueryContext(ctx, many) // nobody closes them
				if err != nil || !rows.Next() {
					t.Error(err)
				}
				return completed("x"), failed
			})
			check(t, g, r, failed, err, tx.Commit)
			// The connection is clean, or another one.
			if _, err := s.Transact(g.ctx, request("next"), func(context.Context, *sql.Tx, backend.Reservation) (backend.Completion, error) {
				return completed("x"), nil
			}); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
		t.Run("pgx, "+name, func(t *testing.T) {
			g := newRig(t, "", setup{size: 2})
			outer := g.begin("")
			g.own(outer, "before")
			tx, err := outer.Begin(g.ctx) // a savepoint of the caller's
			if err != nil {
				t.Fatal(err)
			}
			r := request("k")
			_, err = g.s.Join(g.ctx, tx, r, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
				if _, err := g.effect("k")(ctx, tx, res); err != nil {
					t.Error(err)
				}
				rows, err := tx.Query(ctx, many)
				if err != nil || !rows.Next() {
					t.Error(err)
				}
				return completed("x"), failed
			})
			check(t, g, r, failed, err, func() error { return outer.Commit(g.ctx) })
			_ = outer.Rollback(g.ctx)
			g.idle("a transaction that was given up")
		})
	}
}
