package pgstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// open begins a transaction of the caller's own.
func (g *rig) begin(iso pgx.TxIsoLevel) pgx.Tx {
	g.t.Helper()
	tx, err := g.pool.BeginTx(g.ctx, pgx.TxOptions{IsoLevel: iso})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(g.ctx)) })
	return tx
}

func (g *rig) own(tx pgx.Tx, name string) {
	g.t.Helper()
	if _, err := tx.Exec(g.ctx, "INSERT INTO "+g.effects()+" (name) VALUES ($1)", name); err != nil {
		g.t.Fatalf("the caller's transaction is not usable: %v", err)
	}
}

// C29: a duplicate found inside the caller's transaction does not spoil it.
func TestC29DuplicateDoesNotPoisonTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for _, iso := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(iso), func(t *testing.T) {
			g := newRig(t, "", setup{})
			done := request("done")
			done.Fingerprint = digest(1)
			if _, err := g.s.Transact(g.ctx, done, g.effect("done")); err != nil {
				t.Fatal(err)
			}
			if _, err := g.s.Reserve(g.ctx, request("leased")); err != nil {
				t.Fatal(err)
			}
			elsewhere := g.begin(pgx.ReadCommitted)
			if _, err := g.s.Join(g.ctx, elsewhere, request("open"), g.effect("open")); err != nil {
				t.Fatal(err)
			}
			again, other, open := request("done"), request("done"), request("open")
			again.Fingerprint, other.Fingerprint, open.Wait = digest(1), digest(2), 0
			tx := g.begin(iso)
			g.own(tx, "first")
			for _, c := range []struct {
				r    backend.ReserveRequest
				want backend.Outcome
			}{
				{again, backend.Existing}, {other, backend.Mismatch}, {request("leased"), backend.Existing}, {open, backend.Busy},
			} {
				began := time.Now()
				res, err := g.s.Join(g.ctx, tx, c.r, g.effect("forbidden"))
				if err != nil || res.Outcome != c.want {
					t.Errorf("%s: %v, %v; want %v", c.r.ID.Key, res.Outcome, err, c.want)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("%s took %v", c.r.ID.Key, took)
				}
			}
			if _, err := tx.Exec(g.ctx, "RELEASE SAVEPOINT idem_join"); err == nil {
				t.Error("a savepoint of idem was left open")
			}
			// That statement was ours to fail. A fresh transaction shows the rest.
			_ = tx.Rollback(g.ctx)
			tx = g.begin(iso)
			g.own(tx, "first")
			if _, err := g.s.Join(g.ctx, tx, again, g.effect("forbidden")); err != nil {
				t.Error(err)
			}
			g.own(tx, "second")
			if err := tx.Commit(g.ctx); err != nil {
				t.Fatal(err)
			}
			g.want(1, "first")
			g.want(1, "second")
			g.want(0, "forbidden")
		})
	}
}

// digest is a stored fingerprint.
func digest(n byte) []byte {
	b := make([]byte, 33)
	b[0], b[1] = 1, n
	return b
}

// R21: a key that was settled after the caller's snapshot was taken.
func TestJoinTellsAnOldSnapshot(t *testing.T) {
	t.Parallel()
	for _, iso := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(iso), func(t *testing.T) {
			g := newRig(t, "", setup{})
			tx := g.begin(iso)
			g.own(tx, "before") // takes the snapshot
			if _, err := g.s.Transact(g.ctx, request("k"), g.effect("k")); err != nil {
				t.Fatal(err)
			}
			ran := false
			res, err := g.s.Join(g.ctx, tx, request("k"), func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) {
				ran = true
				return completed("x"), nil
			})
			switch {
			case ran:
				t.Error("the function ran")
			case iso == pgx.ReadCommitted && (err != nil || res.Outcome != backend.Existing):
				t.Errorf("%v, %v; want the result", res.Outcome, err)
			case iso != pgx.ReadCommitted && !errors.Is(err, backend.ErrRetryTransaction):
				t.Errorf("%v, %v; want ErrRetryTransaction", res.Outcome, err)
			}
			g.own(tx, "after")
			if err := tx.Commit(g.ctx); err != nil {
				t.Fatal(err)
			}
			g.want(1, "after")
			g.want(1, "k")
		})
	}
}

// A Join beside a Transact on the same key of the same process, both ways round: no
// gate stands between them, the database does.
func TestJoinAndTransactOnOneKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 3})
	tx := g.begin("")
	if _, err := g.s.Join(g.ctx, tx, request("k"), g.effect("k")); err != nil {
		t.Fatal(err)
	}
	fast := request("k")
	fast.Wait = 0
	if res, err := g.s.Transact(g.ctx, fast, g.effect("k")); err != nil || res.Outcome != backend.Busy {
		t.Fatalf("beside an open Join: %v, %v; want busy", res.Outcome, err)
	}
	slow := make(chan error, 1)
	go func() {
		res, err := g.s.Transact(g.ctx, request("k"), g.effect("k"))
		if err == nil && (res.Outcome != backend.Existing || string(res.Record.Body) != "answer") {
			err = fmt.Errorf("a waiter behind a Join was answered %v", res.Outcome)
		}
		slow <- err
	}()
	if err := tx.Commit(g.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-slow; err != nil {
		t.Fatal(err)
	}
	_, err := g.s.Transact(g.ctx, request("other"), func(ctx context.Context, inner pgx.Tx, res backend.Reservation) (backend.Completion, error) {
		own := g.begin("")
		defer own.Rollback(ctx)
		joined, err := g.s.Join(ctx, own, func() backend.ReserveRequest { r := request("other"); r.Wait = 0; return r }(), g.effect("other"))
		if err != nil || joined.Outcome != backend.Busy {
			t.Errorf("a Join beside an open Transact: %v, %v; want busy", joined.Outcome, err)
		}
		// And a nested one, of another key, in the very transaction.
		if _, err := g.s.Join(ctx, inner, request("nested"), g.effect("nested")); err != nil {
			return backend.Completion{}, err
		}
		return g.effect("other")(ctx, inner, res)
	})
	if err != nil {
		t.Fatal(err)
	}
	g.want(1, "k")
	g.want(1, "other")
	g.want(1, "nested")
}

// R19 in a transaction of the caller.
func TestJoinFunctionEndsTheTransaction(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"COMMIT", "COMMIT; BEGIN", "ROLLBACK", "ROLLBACK; BEGIN", "SELECT 1/0"} {
		t.Run(text, func(t *testing.T) {
			g := newRig(t, "", setup{})
			tx := g.begin("")
			_, err := g.s.Join(g.ctx, tx, request("k"), func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
				_, _ = tx.Exec(ctx, text)
				return completed("x"), nil
			})
			want := backend.ErrOutcomeUnknown
			if text == "SELECT 1/0" {
				want = errSwallowed
			}
			if !errors.Is(err, want) {
				t.Fatalf("Join: %v; want %v", err, want)
			}
			_ = tx.Rollback(g.ctx)
			rec, err := g.s.Get(g.ctx, request("k").ID)
			if committed := text[0] == 'C'; committed != (err == nil && rec.State == backend.Uncertain) {
				t.Fatalf("the record is %v, %v", rec.State, err)
			}
		})
	}
}

// C37: a record without a lease deadline is held, in a transaction too.
func TestC37NoDeadlineIsNotOver(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	r := request("k")
	g.put(backend.Record{Ref: r.Ref, State: backend.InFlight, Fence: 7, Attempt: 1, OnAbandoned: backend.Rerun, ReservedAt: time.Now().UTC().Add(-24 * time.Hour)})
	for _, takeOver := range []uint64{0, 7} {
		again := request("k")
		again.TakeOver = takeOver
		res, err := g.s.Transact(g.ctx, again, g.effect("k"))
		if err != nil || res.Outcome != backend.Existing || res.Record.State != backend.InFlight {
			t.Errorf("Transact, take over %d: %v, %v", takeOver, res.Outcome, err)
		}
		tx := g.begin("")
		res, err = g.s.Join(g.ctx, tx, again, g.effect("k"))
		if err != nil || res.Outcome != backend.Existing || res.Record.State != backend.InFlight {
			t.Errorf("Join, take over %d: %v, %v", takeOver, res.Outcome, err)
		}
		if err := tx.Commit(g.ctx); err != nil {
			t.Fatal(err)
		}
	}
	g.want(0, "k")
}
