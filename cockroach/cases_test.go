package cockroach

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

// C44: a backlog goes in batches, each of which commits.
func TestC44BacklogGoesInBatches(t *testing.T) {
	t.Parallel()
	url, admin, _ := cluster(t)
	s := site{admin: newPool(t, admin), pool: newPool(t, url)}
	_, store := s.fresh(t)
	table := store.config.Names.Records
	const rows, batch = 1500, 400
	s.exec(t, fmt.Sprintf(`INSERT INTO %s (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned, holder_host, holder_pid, `+
		`reserved_at, completed_at, replay_until, known_until, evidence, body, sweep_after) SELECT md5(i::text)::uuid, '', 'bulk', i::text, 1, 1, 2, md5(i::text)::uuid, i, 1, false, 1, '', 0, `+
		`now() - interval '2 h', now() - interval '2 h', now() - interval '1 h', now() - interval '1 h', '', 'x', now() - interval '1 h' FROM generate_series(1, %d) AS i`, table, rows))
	for left := rows; left > 0; {
		done, err := store.Expire(soon(t), backend.ExpireRequest{Limit: batch})
		var now int
		if err := s.admin.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&now); err != nil {
			t.Fatal(err)
		}
		if err != nil || done.Removed == 0 || done.Removed > batch || done.Removed != left-now || done.More != (now > 0) {
			t.Fatalf("a round of %d over %d records: %+v, %v, and %d are left", batch, left, done, err, now)
		}
		left = now
	}
}

// C45: nothing relies on a feature of sessions, where the cluster refuses it and where it
// accepts the call and does nothing: of two sessions one wins.
func TestC45NothingIsBoundToASession(t *testing.T) {
	t.Parallel()
	admin := testdb.Postgres(t).Database(t)
	shim := crdbshim.Start(t, admin, crdbshim.Options{AdvisoryNoop: true})
	s := site{admin: newPool(t, admin), pool: newPool(t, shim.URL())}
	s.exec(t, "CREATE TABLE effects (name text NOT NULL)")
	h, store := s.fresh(t)
	other := newStore(newPool(t, shim.URL()), store.config)
	const keys = 8
	var won, ran [keys]atomic.Int32
	var wg sync.WaitGroup
	for i := range 4 * keys {
		key, db := i%keys, []*Store{store, other}[i/keys%2]
		wg.Go(func() {
			r := backend.ReserveRequest{
				Ref: backend.Ref{ID: backend.ID{Operation: "op", Key: fmt.Sprint("lease", key)}, Owner: [16]byte{byte(i + 1)}},
				TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun, Wait: 10 * time.Second,
			}
			res, err := db.Reserve(soon(t), r)
			if err != nil {
				t.Errorf("Reserve: %v", err)
			}
			if res.Outcome == backend.Acquired {
				won[key].Add(1)
			}
			r.ID.Key = fmt.Sprint("tx", key)
			res, err = db.Transact(soon(t), r, func(_ context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
				h.Effect(t, tx, r.ID.Key)
				return backend.Completion{State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour}, nil
			})
			if err != nil {
				t.Errorf("Transact: %v", err)
			}
			if res.Outcome == backend.Acquired {
				ran[key].Add(1)
			}
		})
	}
	wg.Wait()
	for key := range keys {
		if n := won[key].Load(); n != 1 {
			t.Errorf("%d sessions won a lease", n)
		}
		if n, effects := ran[key].Load(), h.Count(t, fmt.Sprint("tx", key)); n != 1 || effects != 1 {
			t.Errorf("%d sessions won a transaction, with %d effects", n, effects)
		}
	}
	if refused := shim.Refused(); len(refused) > 0 {
		t.Errorf("statements that CockroachDB refuses: %q", refused)
	}
	for _, text := range shim.Log() {
		for _, word := range []string{"advisory", "listen", "notify", "prepare ", "declare ", "temp table"} {
			if strings.Contains(strings.ToLower(text), word) {
				t.Errorf("a statement that is bound to a session: %s", text)
			}
		}
	}
}
