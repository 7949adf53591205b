package pgstore

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// The server returns only what nobody else knows of a row that it inserted. The record
// put together from that is the stored one, to the microsecond, by the clock of
// production too.
func TestTransactReturnsTheStoredRecord(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{})
	c := g.config()
	c.Now = ""
	g.s = New(PgxDB{Pool: g.pool}, c)
	q := g.queued()
	full := func(key string) backend.ReserveRequest {
		r := request(key)
		r.Fingerprint = make([]byte, 33)
		r.Holder = backend.Holder{Host: "host", PID: 7, Started: time.Now()}
		return r
	}
	for i, c := range []backend.Completion{
		completed("answer"),
		completed(""),
		{State: backend.Failed, Body: []byte("no"), ReplayFor: time.Minute, KnownFor: time.Hour, Undo: true},
		{State: backend.Uncertain, Body: []byte("hm")},
	} {
		for _, abandoned := range []backend.Abandoned{backend.Rerun, backend.Hold} {
			for name, call := range map[string]func(r backend.ReserveRequest) (backend.Reservation, error){
				"transact": func(r backend.ReserveRequest) (backend.Reservation, error) {
					return g.s.Transact(g.ctx, r, func(_ context.Context, _ pgx.Tx, res backend.Reservation) (backend.Completion, error) {
						if res.Record.Fence == 0 || res.Record.State != backend.InFlight || !res.Record.LeaseUntil.Equal(res.Now.Add(r.TTL)) || res.Record.Holder.PID != 7 {
							t.Errorf("the function sees %+v", res)
						}
						return c, nil
					})
				},
				"queued": func(r backend.ReserveRequest) (backend.Reservation, error) {
					return q.Transact(g.ctx, r, func(context.Context, *pgx.Batch, backend.Reservation) (backend.Completion, error) { return c, nil })
				},
			} {
				r := full(fmt.Sprint(name, i, abandoned))
				r.OnAbandoned = abandoned
				res, err := call(r)
				if err != nil || res.Outcome != backend.Acquired {
					t.Fatalf("%s: %v, %v", r.ID.Key, res.Outcome, err)
				}
				stored, err := g.s.Get(g.ctx, r.ID)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(res.Record, stored) {
					t.Errorf("%s, %v: returned\n%+v, stored\n%+v", r.ID.Key, c.State, res.Record, stored)
				}
			}
		}
	}
}

// An insertion that reads nothing meets a row that its caller has to go on from: a
// reserve of this very attempt, made outside of a transaction. The function runs once,
// under the session's own lock_timeout.
func TestTransactOverItsOwnReserve(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1})
	if _, err := g.pool.Exec(g.ctx, "SET lock_timeout = '7s'"); err != nil {
		t.Fatal(err)
	}
	r := request("own")
	if _, err := g.s.Reserve(g.ctx, r); err != nil {
		t.Fatal(err)
	}
	ran := 0
	res, err := g.s.Transact(g.ctx, r, func(ctx context.Context, tx pgx.Tx, res backend.Reservation) (backend.Completion, error) {
		ran++
		var lock string
		if err := tx.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&lock); err != nil || lock != "7s" {
			t.Errorf("the function runs with lock_timeout %s, %v", lock, err)
		}
		return g.effect("own")(ctx, tx, res)
	})
	if err != nil || res.Outcome != backend.Acquired || res.Record.State != backend.Completed || ran != 1 {
		t.Fatalf("%v, %v, %v; the function ran %d times", res.Outcome, res.Record.State, err, ran)
	}
	g.want(1, "own")
	g.idle("a transaction over its own reserve")
}
