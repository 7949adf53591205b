package cockroach

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/pgstore"
	"github.com/goidem/idem/internal/testdb"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// cluster returns the URL of a real cluster, or of a shim in front of PostgreSQL,
// with the URL of what checks it from outside.
func cluster(t testing.TB) (url, admin string, shim *crdbshim.Shim) {
	t.Helper()
	if url = os.Getenv("IDEM_TEST_COCKROACH_URL"); url != "" {
		return url, url, nil
	}
	admin = testdb.Postgres(t).Database(t)
	shim = crdbshim.Start(t, admin, crdbshim.Options{})
	return shim.URL(), admin, shim
}

func and(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

// lint:const numbers the stores of all tests, also across runs on one cluster
var prefixes atomic.Int64

func prefix() string { return fmt.Sprintf("t%d_%d_", os.Getpid(), prefixes.Add(1)) }

func TestConformance(t *testing.T) {
	url, admin, shim := cluster(t)
	s := site{admin: newPool(t, admin), pool: newPool(t, and(url, "pool_max_conns=24"))}
	s.exec(t, "CREATE TABLE IF NOT EXISTS effects (name text NOT NULL)") // no constraint: it would hide a second effect
	backendtest.RunTx(t, func(t testing.TB) *backendtest.TxHarness[pgx.Tx] {
		h, store := s.fresh(t)
		if shim != nil {
			h.LoseCommit = func(_ testing.TB, applied bool) {
				kind := crdbshim.CutBeforeCommit
				if applied {
					kind = crdbshim.CutAfterCommit
				}
				shim.Inject(crdbshim.Fault{Kind: kind, AtCommit: true, Match: ofStore(store)})
			}
		}
		return h
	})
	if shim != nil {
		if refused := shim.Refused(); len(refused) > 0 {
			t.Errorf("statements that CockroachDB refuses: %q", refused)
		}
	}
}

// ofStore matches statements on the records of one store.
func ofStore(s *Store) *regexp.Regexp {
	return regexp.MustCompile(regexp.QuoteMeta(s.config.Names.Records))
}

// What the protocol has to survive: a restart wanted anywhere, also at the commit,
// and commits in doubt. In each case there is one effect and one answer.
func TestFaults(t *testing.T) {
	t.Parallel()
	url, admin, shim := cluster(t)
	if shim == nil {
		t.Skip("faults are the shim's")
	}
	s := site{admin: newPool(t, admin), pool: newPool(t, url)}
	s.exec(t, "CREATE TABLE IF NOT EXISTS effects (name text NOT NULL)")
	for _, tt := range []struct {
		name  string
		fault crdbshim.Fault
	}{
		{"restart at the reserve", crdbshim.Fault{Kind: crdbshim.Serialization, SQL: "INSERT INTO"}},
		{"restart at the effect", crdbshim.Fault{Kind: crdbshim.Serialization, SQL: "INTO effects"}},
		{"restart at the completion", crdbshim.Fault{Kind: crdbshim.Serialization, SQL: "UPDATE"}},
		{"restart at the commit", crdbshim.Fault{Kind: crdbshim.Serialization, AtCommit: true}},
		{"five restarts at the commit", crdbshim.Fault{Kind: crdbshim.Serialization, AtCommit: true, Times: 5}},
		{"40003, committed", crdbshim.Fault{Kind: crdbshim.Ambiguous, AtCommit: true, Applied: true}},
		{"40003, not committed", crdbshim.Fault{Kind: crdbshim.Ambiguous, AtCommit: true}},
		{"cut, committed", crdbshim.Fault{Kind: crdbshim.CutAfterCommit, AtCommit: true}},
		{"cut, not committed", crdbshim.Fault{Kind: crdbshim.CutBeforeCommit, AtCommit: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, store := s.fresh(t)
			fault := tt.fault
			if fault.SQL != "INTO effects" {
				fault.Match = ofStore(store)
			}
			fired := shim.Fired()
			shim.Inject(fault)
			r := backend.ReserveRequest{Ref: backend.Ref{ID: backend.ID{Operation: "op", Key: "k"}, Owner: [16]byte{1}}, TTL: time.Minute, KnownFor: time.Hour, OnAbandoned: backend.Rerun}
			work := func(_ context.Context, tx pgx.Tx, _ backend.Reservation) (backend.Completion, error) {
				if _, err := tx.Exec(t.Context(), "INSERT INTO effects VALUES ($1)", store.config.Names.Prefix+"e"); err != nil {
					return backend.Completion{}, err
				}
				return backend.Completion{State: backend.Completed, Body: []byte("done"), ReplayFor: time.Hour, KnownFor: time.Hour}, nil
			}
			res, err := store.Transact(soon(t), r, work)
			if err != nil || res.Outcome != backend.Acquired || string(res.Record.Body) != "done" {
				t.Errorf("Transact: %v, %q, %v", res.Outcome, res.Record.Body, err)
			}
			if n := h.Count(t, "e"); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
			if shim.Fired() == fired {
				t.Error("the fault did not happen")
			}
			shim.ClearFaults()
		})
	}
}

// site is where one store is.
type site struct {
	admin, pool *pgxpool.Pool
	o           Options
	clock       string // table that moves the store's clock
}

func (s *site) exec(t testing.TB, text string, args ...any) pgconn.CommandTag {
	t.Helper()
	tag, err := s.admin.Exec(t.Context(), text, args...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return tag
}

func (s site) fresh(t testing.TB) (*backendtest.TxHarness[pgx.Tx], *Store) {
	s.o = Options{TablePrefix: prefix(), Migrate: true, LockWait: 500 * time.Millisecond}
	s.clock = s.o.TablePrefix + "clock"
	s.o.now = "(SELECT t FROM " + s.clock + ")" // stands still between two calls of Advance
	s.exec(t, "CREATE TABLE "+s.clock+" (t timestamptz NOT NULL)")
	s.exec(t, "INSERT INTO "+s.clock+" VALUES (clock_timestamp())")
	store, err := New(soon(t), s.pool, &s.o)
	if err != nil {
		t.Fatal(err)
	}
	records := s.o.TablePrefix + "records"
	return &backendtest.TxHarness[pgx.Tx]{
		Open: func(testing.TB) backend.Transactional[pgx.Tx] { return newStore(s.pool, store.config) },
		Advance: func(d time.Duration) {
			if _, err := s.admin.Exec(context.Background(), "UPDATE "+s.clock+" SET t = t + $1", d); err != nil {
				panic(err)
			}
		},
		Tick:     time.Microsecond,
		Parallel: true,
		Put:      s.put,
		Damage: func(t testing.TB, id backend.ID) {
			s.exec(t, "UPDATE "+records+" SET state = 99 WHERE id = $1", id.Sum())
		},
		Future: func(t testing.TB, id backend.ID) {
			s.exec(t, "UPDATE "+records+" SET format = 99 WHERE id = $1", id.Sum())
		},
		Effect: func(t testing.TB, tx pgx.Tx, name string) {
			if _, err := tx.Exec(t.Context(), "INSERT INTO effects VALUES ($1)", s.o.TablePrefix+name); err != nil {
				t.Error(err)
			}
		},
		Count: func(t testing.TB, name string) (n int) {
			if err := s.admin.QueryRow(t.Context(), "SELECT count(*) FROM effects WHERE name = $1", s.o.TablePrefix+name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		InOwnTx: func(t testing.TB, do func(tx pgx.Tx) error) error {
			return pgx.BeginFunc(t.Context(), s.pool, do)
		},
		EndEarly: func(tx pgx.Tx) bool {
			if tx.Commit(context.Background()) == nil {
				return true
			}
			_, err := tx.Exec(context.Background(), "COMMIT") // what no type can prevent
			return err == nil
		},
	}, store
}

// put stores a record as it is.
func (s *site) put(t testing.TB, r backend.Record) {
	t.Helper()
	orNull := func(at time.Time) any {
		if at.IsZero() {
			return nil
		}
		return at
	}
	table := s.o.TablePrefix + "records"
	s.exec(t, "DELETE FROM "+table+" WHERE id = $1", r.ID.Sum())
	s.exec(t, "INSERT INTO "+table+` (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned,
		fingerprint, holder_host, holder_pid, holder_started, reserved_at, lease_until, completed_at, replay_until, known_until,
		evidence, body, sweep_after)
		VALUES ($1, $2, $3, $4, 1, 1, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, now())`,
		r.ID.Sum(), r.ID.Tenant, r.ID.Operation, r.ID.Key, int16(r.State), r.Owner, int64(r.Fence), int32(r.Attempt), r.TookOver, int16(r.OnAbandoned),
		r.Fingerprint, r.Holder.Host, int64(r.Holder.PID), orNull(r.Holder.Started), r.ReservedAt, orNull(r.LeaseUntil), orNull(r.CompletedAt),
		orNull(r.ReplayUntil), orNull(r.KnownUntil), r.Evidence, r.Body)
}

// Sixteen processes that start at the same time come up, without any lock.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	url, _, shim := cluster(t)
	o := &Options{Schema: "keys", TablePrefix: prefix(), Migrate: true}
	const processes = 16
	errs := make(chan error, processes)
	start := make(chan struct{})
	for range processes {
		pool := newPool(t, and(url, "pool_max_conns=2"))
		go func() {
			<-start
			_, err := New(soon(t), pool, o)
			errs <- err
		}()
	}
	close(start)
	for range processes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if shim == nil {
		return
	}
	table := "keys." + o.TablePrefix + "records"
	found := false
	for key, value := range shim.TTL() {
		found = found || strings.HasSuffix(key, "ttl_expiration_expression") && strings.Contains(value, "state IN (2, 3)")
	}
	if !found {
		t.Errorf("row-level TTL of %s: %q", table, shim.TTL())
	}
}

// Each package refuses the other's server.
func TestWrongServerIsRefused(t *testing.T) {
	t.Parallel()
	plain := testdb.Postgres(t).Database(t)
	if _, err := Open(soon(t), plain, nil); err == nil || !strings.Contains(err.Error(), "package postgres") {
		t.Errorf("PostgreSQL: %v", err)
	}
	for version, says := range map[string]string{
		"CockroachDB CCL v24.2.2 (x86_64)": "v24.2.3 or newer",
		"CockroachDB":                      "unknown version",
	} {
		old := crdbshim.Start(t, plain, crdbshim.Options{Version: version})
		if _, err := Open(soon(t), old.URL(), nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", version, err)
		}
	}
}

var _ pgstore.DB[pgx.Tx] = pgstore.CrdbDB{}
