package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
)

// C09: the work is done and recording it fails, on a server that refuses it, that
// loses its answer, or that refuses the reserve.
func TestC09WorkDoneRecordingFails(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 4})
	store, err := idem.New(New(PgxDB{Pool: g.pool}, g.config()), &idem.Options{LeaseTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	// The server refuses what is written into this table, and counts.
	p := g.names.Prefix
	g.exec(fmt.Sprintf(`CREATE TABLE %[1]sfaults (op text, state int, times int); CREATE SEQUENCE %[1]sreleases;
		CREATE FUNCTION %[1]sfail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.state = 5 THEN PERFORM nextval('%[1]sreleases'); END IF;
			IF EXISTS (SELECT FROM %[1]sfaults AS f WHERE f.op = TG_OP AND f.state = NEW.state) THEN
				IF nextval('%[1]sfailed') <= (SELECT times FROM %[1]sfaults) THEN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END IF;
			END IF; RETURN NEW; END $$;
		CREATE SEQUENCE %[1]sfailed;
		CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON %[2]s FOR EACH ROW EXECUTE FUNCTION %[1]sfail()`, p, g.names.Records))
	fault := func(op string, state, times int) {
		g.exec(fmt.Sprintf("DELETE FROM %[1]sfaults; ALTER SEQUENCE %[1]sfailed RESTART; INSERT INTO %[1]sfaults VALUES ('%s', %d, %d)", p, op, state, times))
	}
	call := func(key string, ending func()) (idem.Result[string], error) {
		return idem.Execute(g.ctx, store, idem.Scope{Operation: "op"}, idem.Key(key), idem.FingerprintJSON(1), func(ctx context.Context) (string, error) {
			_, err := g.admin.Exec(ctx, "INSERT INTO "+g.effects()+" VALUES ($1)", key)
			if ending != nil {
				ending()
			}
			return "v", err
		})
	}
	const always = 1 << 30
	fault("UPDATE", int(backend.Completed), always)
	res, err := call("a", nil)
	if !errors.Is(err, idem.ErrOutcomeUnknown) || res.Value != "v" {
		t.Errorf("(a) recording fails: %q, %v; want what the function returned and ErrOutcomeUnknown", res.Value, err)
	}
	if n := g.ask("SELECT is_called FROM " + p + "releases"); n != "false" {
		t.Error("(a) the key was released")
	}
	if _, err := call("a", nil); !errors.Is(err, idem.ErrInFlight) {
		t.Errorf("(a) the second call: %v; want ErrInFlight", err)
	}
	g.want(1, "a")
	g.advance(time.Hour) // under Rerun, what is abandoned runs again
	fault("UPDATE", int(backend.Completed), 0)
	if res, err := call("a", nil); err != nil || res.Replayed {
		t.Errorf("(a) after the lease: %+v, %v; want it run", res, err)
	}
	g.want(2, "a")

	fault("UPDATE", int(backend.Completed), 2)
	if res, err := call("b", nil); err != nil || res.Replayed {
		t.Errorf("(b) recording fails twice: %+v, %v", res, err)
	}
	fault("UPDATE", int(backend.Completed), 0)
	if res, err := call("c", func() {
		g.wire.mu.Lock()
		g.wire.any, g.wire.cut = true, cutAfter
		g.wire.mu.Unlock()
	}); err != nil || res.Replayed {
		t.Errorf("(c) the answer to the recording is lost: %+v, %v", res, err)
	}
	if g.wire.next(cutNothing) != cutNothing {
		t.Error("(c) nothing was cut")
	}
	for _, key := range []string{"b", "c"} {
		if res, err := call(key, nil); err != nil || !res.Replayed || res.Value != "v" {
			t.Errorf("%s again: %+v, %v; want the replay", key, res, err)
		}
		g.want(1, key)
	}

	fault("INSERT", int(backend.InFlight), always)
	if _, err := call("d", nil); !errors.Is(err, idem.ErrUnavailable) {
		t.Errorf("(d) the reserve fails: %v; want ErrUnavailable", err)
	}
	g.want(0, "d")
}

// C44: a backlog that one statement cannot remove in the time it has goes in batches,
// each of which commits; one that fails takes nothing back.
func TestC44BacklogGoesInBatches(t *testing.T) {
	t.Parallel()
	b := newBase(t, "")
	const rows, batch = 3000, 500
	b.exec(fmt.Sprintf(`INSERT INTO %s (id, %s, sweep_after) SELECT md5(i::text)::uuid, 'shop', 'pay', 'bulk' || i, 1, 1, 2, md5(i::text)::uuid, i, 1, false, 1, `+
		`NULL, '', 0, NULL, now() - interval '2 h', NULL, now() - interval '2 h', now() - interval '1 h', now() - interval '1 h', '', 'x', now() - interval '1 h' FROM generate_series(1, %d) AS i`, b.names.Records, columns, rows))
	// A row takes its time to go, so that the whole takes longer than the server allows,
	// and a batch does not.
	b.exec(fmt.Sprintf(`CREATE FUNCTION %[1]sslow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF random() < 0.05 THEN PERFORM pg_sleep(0.01); END IF; RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON %[2]s FOR EACH ROW EXECUTE FUNCTION %[1]sslow()`, b.names.Prefix, b.names.Records))
	pool := newPool(t, b.url+"&statement_timeout=900", setup{size: 2})
	s := New(PgxDB{Pool: pool}, b.config())
	if _, err := pool.Exec(soon(t), "DELETE FROM "+b.names.Records+" WHERE known_until < now()"); err == nil {
		t.Fatal("one statement removes everything in time: nothing is tested")
	}
	left := func() (n int) {
		if _, err := fmt.Sscan(b.ask("SELECT count(*) FROM "+b.names.Records), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	failed := 0
	for before := rows; before > 0; {
		done, err := s.Expire(soon(t), backend.ExpireRequest{Limit: batch})
		now := left()
		switch {
		case err != nil: // a busy machine: this batch took too long, and the next may not
			if failed++; failed > 10 {
				t.Fatal(err)
			}
		case done.Removed > batch || done.Removed != before-now || done.More != (now > 0):
			t.Fatalf("a round of %d over %d records: %+v, and %d are left", batch, before, done, now)
		case done.Removed == 0:
			t.Fatalf("%d records stay", now)
		}
		before = now
		if res, err := s.Reserve(soon(t), reserveOf("live")); err != nil || res.Outcome == backend.Busy {
			t.Fatalf("a call beside the sweeper: %v, %v", res.Outcome, err)
		}
		b.exec("DELETE FROM " + b.names.Records + " WHERE key = 'live'")
	}
}

// C45: nothing that idem does stays with a session: no lock, no channel, no prepared
// statement of its own, no setting, no transaction.
func TestC45NothingIsBoundToASession(t *testing.T) {
	t.Parallel()
	g := newRig(t, "", setup{size: 1, mode: pgx.QueryExecModeExec})
	state := func() (s string) {
		t.Helper()
		var parts []string
		for _, query := range []string{
			"SELECT pg_backend_pid()::text",
			"SELECT coalesce(string_agg(name || '=' || setting, ',' ORDER BY name), '') FROM pg_settings WHERE source = 'session' OR name IN ('lock_timeout', 'statement_timeout', 'search_path')",
			"SELECT coalesce(string_agg(name, ','), '') FROM pg_prepared_statements",
			"SELECT coalesce(string_agg(c, ','), '') FROM pg_listening_channels() AS c",
			"SELECT count(*)::text FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
			"SELECT count(*)::text FROM pg_cursors WHERE name <> ''",
			"SELECT count(*)::text FROM pg_class WHERE relpersistence = 't' AND relnamespace = pg_my_temp_schema()",
		} {
			var part string
			if err := g.pool.QueryRow(g.ctx, query).Scan(&part); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, part)
		}
		return strings.Join(parts, "; ")
	}
	before := state()
	q := g.queued()
	take := g.abandoned("over")
	fails := func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) {
		return backend.Completion{}, errors.New("fails")
	}
	undo := completed("no")
	undo.State, undo.Undo = backend.Failed, true
	for what, do := range map[string]func() error{
		"lease mode": func() error {
			r := request("lease")
			_, e1 := g.s.Reserve(g.ctx, r)
			e2 := g.s.Renew(g.ctx, r.Ref, time.Hour)
			_, e3 := g.s.Complete(g.ctx, mergedCompletion(r.Ref, "x"))
			rec, e4 := g.s.Get(g.ctx, r.ID)
			return errors.Join(e1, e2, e3, e4, g.s.Forget(g.ctx, backend.ForgetRequest{ID: r.ID, Fence: rec.Fence}))
		},
		"a takeover": func() error { _, err := g.s.Transact(g.ctx, take(time.Second), g.effect("x")); return err },
		"a transaction": func() error {
			_, e1 := g.s.Transact(g.ctx, request("t"), g.effect("x"))
			_, e2 := g.s.Transact(g.ctx, request("t"), g.effect("x"))
			return errors.Join(e1, e2)
		},
		"a function that fails": func() error {
			if _, err := g.s.Transact(g.ctx, request("f"), fails); err == nil {
				return errors.New("no error")
			}
			return nil
		},
		"an effect that is undone": func() error {
			_, err := g.s.Transact(g.ctx, request("u"), func(context.Context, pgx.Tx, backend.Reservation) (backend.Completion, error) { return undo, nil })
			return err
		},
		"queued statements": func() error {
			_, e1 := q.Transact(g.ctx, request("q"), g.queue("x", completed("x")))
			_, e2 := q.Transact(g.ctx, request("q"), g.queue("x", completed("x")))
			return errors.Join(e1, e2)
		},
		"a join": func() error {
			return pgx.BeginFunc(g.ctx, g.pool, func(tx pgx.Tx) error {
				_, err := g.s.Join(g.ctx, tx, request("j"), g.effect("x"))
				return err
			})
		},
		"a finish": func() error {
			r := request("fin")
			_, e1 := g.s.Reserve(g.ctx, r)
			_, e2 := g.s.Finish(g.ctx, r.Ref, g.effect("x"))
			return errors.Join(e1, e2)
		},
		"a listing and a sweep": func() error {
			for _, err := range g.s.List(g.ctx, backend.Filter{}) {
				if err != nil {
					return err
				}
			}
			_, err := g.s.Expire(g.ctx, backend.ExpireRequest{})
			return err
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if after := state(); after != before {
			t.Errorf("after %s the session is\n%s, and was\n%s", what, after, before)
		}
	}
}
