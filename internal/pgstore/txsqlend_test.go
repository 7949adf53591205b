package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// R19 with database/sql, whose type keeps nobody from ending the transaction.
func TestR19SQLTransactionIsNotTheFunctionsToEnd(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	db := newSQL(t, g.url, setup{size: 4, mode: pgx.QueryExecModeCacheStatement})
	s := New(SQLDB{DB: db}, g.config())
	undo := completed("no")
	undo.State, undo.Undo = backend.Failed, true
	exec := func(text string) func(*sql.Tx) { return func(tx *sql.Tx) { _, _ = tx.Exec(text) } }
	for _, c := range []struct {
		key     string
		end     func(tx *sql.Tx)
		c       backend.Completion
		want    error
		effects int
		state   backend.State // 0: none
	}{
		{"commit of the type", func(tx *sql.Tx) { _ = tx.Commit() }, completed("x"), backend.ErrTransactionEnded, 1, backend.Uncertain},
		{"rollback of the type", func(tx *sql.Tx) { _ = tx.Rollback() }, completed("x"), backend.ErrTransactionEnded, 0, 0},
		{"commit", exec("COMMIT"), completed("x"), backend.ErrOutcomeUnknown, 1, backend.Uncertain},
		{"commit and chain", exec("COMMIT AND CHAIN"), completed("x"), backend.ErrOutcomeUnknown, 1, backend.Uncertain},
		{"commit and undo", exec("COMMIT"), undo, backend.ErrTransactionEnded, 1, backend.Uncertain},
		{"rollback", exec("ROLLBACK"), completed("x"), backend.ErrOutcomeUnknown, 0, 0},
		{"rollback and chain", exec("ROLLBACK AND CHAIN"), completed("x"), backend.ErrOutcomeUnknown, 0, 0},
		{"prepare", exec("PREPARE TRANSACTION 'x'"), completed("x"), backend.ErrTransactionEnded, 0, 0},
		{"back to the savepoint", exec("ROLLBACK TO SAVEPOINT idem_fn"), completed("x"), nil, 0, backend.Completed},
		{"release of the savepoint", exec("RELEASE SAVEPOINT idem_fn"), completed("x"), nil, 1, backend.Completed},
		{"release and undo", exec("RELEASE SAVEPOINT idem_fn"), undo, errEnded, 0, 0},
		{"a savepoint of its own and undo", exec("SAVEPOINT mine"), undo, nil, 0, backend.Failed},
		{"swallowed error", exec("SELECT 1/0"), completed("x"), errSwallowed, 0, 0},
		{"fine", exec("SELECT 1"), completed("x"), nil, 1, backend.Completed},
	} {
		t.Run(c.key, func(t *testing.T) {
			g.t = t
			runs := 0
			_, err := s.Transact(g.ctx, request(c.key), func(ctx context.Context, tx *sql.Tx, _ backend.Reservation) (backend.Completion, error) {
				runs++
				if _, err := tx.ExecContext(ctx, "INSERT INTO "+g.effects()+" (name) VALUES ($1)", c.key); err != nil {
					t.Error(err)
				}
				c.end(tx)
				return c.c, nil
			})
			if !errors.Is(err, c.want) || c.want == nil && err != nil || runs != 1 {
				t.Errorf("Transact: %v after %d runs; want %v after one", err, runs, c.want)
			}
			g.want(c.effects, c.key)
			if rec, err := g.s.Get(g.ctx, request(c.key).ID); rec.State != c.state || (c.state == 0) != errors.Is(err, backend.ErrNotFound) {
				t.Errorf("the record is %v (%v); want %v", rec.State, err, c.state)
			}
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are still lent", n)
			}
		})
	}
}

// A constraint that is looked at in the COMMIT fails there, definitely, and not as if the
// function had ended its transaction.
func TestDeferredConstraintIsADefiniteFailure(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	one := g.names.Prefix + "one"
	g.exec("CREATE TABLE " + one + " (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
	check := func(err error) {
		t.Helper()
		if code(err) != codeUnique || errors.Is(err, backend.ErrOutcomeUnknown) {
			t.Errorf("Transact: %v; want a definite SQLSTATE %s", err, codeUnique)
		}
		if rec, err := g.s.Get(g.ctx, request("k").ID); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("the record is %v, %v", rec.State, err)
		}
	}
	twice := "INSERT INTO " + one + " VALUES (1), (1)"
	_, err := g.s.Transact(g.ctx, request("k"), func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
		_, err := tx.Exec(ctx, twice)
		return completed("x"), err
	})
	check(err)
	_, err = New(SQLDB{DB: newSQL(t, g.url, setup{size: 1})}, g.config()).Transact(g.ctx, request("k"), func(ctx context.Context, tx *sql.Tx, _ backend.Reservation) (backend.Completion, error) {
		_, err := tx.ExecContext(ctx, twice)
		return completed("x"), err
	})
	check(err)
}
