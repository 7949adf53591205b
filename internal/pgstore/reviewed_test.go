package pgstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// A record function of ExecuteThenTx that commits by SQL is not run again: what it
// did is committed (R19).
func TestR19EarlyCommitOfThenTxIsNotRepeated(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	st := New(PgxDB{Pool: g.pool}, Config{Names: g.names, Dialect: PostgreSQL(), Guarantees: backend.Guarantees{Atomic: true, Shared: true, ServerClock: true}})
	store, err := idem.NewTx(st, nil)
	if err != nil {
		t.Fatal(err)
	}
	scope, hash := idem.Scope{Operation: "op"}, idem.FingerprintJSON(1)
	call := func(context.Context) (int, error) { return 1, nil }
	record := func(ctx context.Context, tx pgx.Tx, _ int) (int, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO "+g.effects()+" (name) VALUES ('early')"); err != nil {
			return 0, err
		}
		_, err := tx.Exec(ctx, "COMMIT")
		return 1, err
	}
	_, err = idem.ExecuteThenTx(g.ctx, store, scope, "k", hash, call, record)
	if !errors.Is(err, idem.ErrOutcomeUnknown) {
		t.Errorf("the first call: %v; want ErrOutcomeUnknown", err)
	}
	if _, err = idem.ExecuteThenTx(g.ctx, store, scope, "k", hash, call, record); !errors.Is(err, idem.ErrUnresolved) {
		t.Errorf("the second call: %v; want ErrUnresolved", err)
	}
	if n := g.count(t, "early"); n != 1 {
		t.Errorf("%d effects are committed; want 1", n)
	}
}

// Queued effects may take as long as the caller allows.
func TestQueuedEffectsAreNotCutOff(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	r := request("k")
	_, err := g.queued().Transact(g.ctx, r, func(_ context.Context, b *pgx.Batch, _ backend.Reservation) (backend.Completion, error) {
		b.Queue("SELECT pg_sleep(6)") // longer than the limit of a commit
		b.Queue("INSERT INTO " + g.effects() + " (name) VALUES ('slow')")
		return completed("answer"), nil
	})
	if n := g.count(t, "slow"); err != nil || n != 1 {
		t.Errorf("%v, %d effects", err, n)
	}
}

// A function that leaves rows open is told so, and is not run again.
func TestRowsLeftOpenAreNoCommitInDoubt(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	runs := 0
	_, err := g.s.Transact(g.ctx, request("k"), func(ctx context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
		runs++
		rows, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
		if err != nil {
			return backend.Completion{}, err
		}
		rows.Next()
		return completed("x"), nil
	})
	if err == nil || errors.Is(err, backend.ErrOutcomeUnknown) || runs != 1 {
		t.Errorf("%d runs, %v; want one, and an error that says that nothing was committed", runs, err)
	}
}

// Of the callers in lease mode that wait behind another process's transaction on one
// key, one holds a connection (R20).
func TestR20LeaseModeWaitersHoldOneConnection(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 4})
	holder := New(PgxDB{Pool: newPool(t, g.url, setup{size: 2})}, g.config())
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = holder.Transact(g.ctx, request("hot"), func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) {
			once.Do(func() { close(entered) })
			<-leave
			return completed("x"), nil
		})
	})
	<-entered
	for range 8 {
		wg.Go(func() {
			r := request("hot")
			r.Wait = 5 * time.Second
			_, _ = g.s.Reserve(g.ctx, r)
		})
	}
	deadline := time.Now().Add(700 * time.Millisecond)
	most := int32(0)
	for time.Now().Before(deadline) {
		most = max(most, g.pool.Stat().AcquiredConns())
		time.Sleep(time.Millisecond)
	}
	if _, err := g.s.Reserve(g.ctx, request("cold")); err != nil {
		t.Errorf("another key: %v", err)
	}
	close(leave)
	wg.Wait()
	// The waiter's, and one for the merged statement that found the key blocked.
	if most > 2 {
		t.Errorf("%d of 4 connections were held for one key", most)
	}
}
