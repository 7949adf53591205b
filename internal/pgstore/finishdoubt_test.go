package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

// R18, R19: a row that bears the token of this Finish and has become uncertain since
// its function was started was written by a commit: by that whose answer is lost, if
// that was to store it, and else by the function itself. In neither case does the
// function run again.
func TestR18FinishMeetsItsOwnUncertainRow(t *testing.T) {
	t.Parallel()
	direct := testdb.Postgres(t).Database(t)
	shim := crdbshim.Start(t, direct, crdbshim.Options{Plain: true})
	g := newRig(t, direct, setup{size: 2})
	s := New(PgxDB{Pool: newPool(t, shim.URL(), setup{size: 2})}, g.config())
	uncertain := backend.Completion{State: backend.Uncertain, Body: []byte("perhaps")}
	retry := &pgconn.PgError{Code: codeSerialization}
	for _, c := range []struct {
		name  string
		fault crdbshim.Kind // of the first commit
		sql   string        // what the function ends with, the first time
		fails error         // what it returns then
		c     backend.Completion
		held  bool // the record was uncertain before

		runs, effects int
		want          error
		state         backend.State
	}{
		{name: "uncertain, committed", fault: crdbshim.CutAfterCommit, c: uncertain, runs: 1, effects: 1, state: backend.Uncertain},
		{name: "uncertain, not committed", fault: crdbshim.CutBeforeCommit, c: uncertain, runs: 2, effects: 1, state: backend.Uncertain},
		{name: "completed, committed", fault: crdbshim.CutAfterCommit, c: completed("x"), runs: 1, effects: 1, state: backend.Completed},
		{name: "held before, committed", fault: crdbshim.CutAfterCommit, c: completed("x"), held: true, runs: 1, effects: 1, state: backend.Completed},
		{name: "held before, not committed", fault: crdbshim.CutBeforeCommit, c: completed("x"), held: true, runs: 2, effects: 1, state: backend.Completed},
		{name: "a function that commits and wants a retry", sql: "COMMIT", fails: retry, c: completed("x"), runs: 1, effects: 1, want: backend.ErrTransactionEnded, state: backend.Uncertain},
		{name: "a function that only wants a retry", fails: retry, c: completed("x"), runs: 2, effects: 1, state: backend.Completed},
		{name: "held before, a function that only wants a retry", fails: retry, c: completed("x"), held: true, runs: 2, effects: 1, state: backend.Completed},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.t = t
			r := request(c.name)
			if _, err := g.s.Reserve(g.ctx, r); err != nil {
				t.Fatal(err)
			}
			if c.held {
				if _, err := g.s.Complete(g.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Uncertain}); err != nil {
					t.Fatal(err)
				}
			}
			var fault *crdbshim.Injected
			runs := 0
			ctx, cancel := context.WithTimeout(g.ctx, 30*time.Second)
			defer cancel()
			rec, err := s.Finish(ctx, r.Ref, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
				runs++
				if _, err := g.effect(c.name)(ctx, tx, res); err != nil {
					t.Error(err)
				}
				if runs > 1 {
					return c.c, nil
				}
				if c.sql != "" {
					if _, err := tx.Exec(ctx, c.sql); err != nil {
						t.Error(err)
					}
				}
				if c.fault != 0 {
					fault = shim.Inject(crdbshim.Fault{Kind: c.fault, AtCommit: true})
				}
				return c.c, c.fails
			})
			if fault != nil && fault.Fired() != 1 {
				t.Error("the fault did not happen")
			}
			if !errors.Is(err, c.want) || c.want == nil && (err != nil || rec.State != c.state) {
				t.Errorf("Finish: %v, %v; want %v, %v", rec.State, err, c.state, c.want)
			}
			if runs != c.runs {
				t.Errorf("the function ran %d times; want %d", runs, c.runs)
			}
			g.want(c.effects, c.name)
			if stored, err := g.s.Get(g.ctx, r.ID); err != nil || stored.State != c.state {
				t.Errorf("the record is %v, %v; want %v", stored.State, err, c.state)
			}
			// Another copy of the call learns the same.
			if c.want == nil && c.state == backend.Completed {
				if rec, err := s.Finish(ctx, r.Ref, nil); err != nil || rec.State != c.state {
					t.Errorf("a later copy: %v, %v", rec.State, err)
				}
			}
		})
	}
}
