package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// What an error answer says about the statement decides whether it is sent again.
func TestFailureTellsUndoneFromUnknown(t *testing.T) {
	t.Parallel()
	const secret = "key-of-customer-7"
	answer := func(severity, code string) error {
		return fmt.Errorf("wrapped: %w", &pgconn.PgError{Severity: severity, Code: code, Message: secret, Detail: secret})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name                        string
		ctx                         context.Context
		err                         error
		sent, unknown, retry, stale bool
	}{
		{"serialization", nil, answer("ERROR", "40001"), true, false, true, false},
		{"deadlock", nil, answer("ERROR", "40P01"), true, false, true, false},
		{"lock timeout", nil, answer("ERROR", "55P03"), true, false, false, false},
		{"duplicate", nil, answer("ERROR", "23505"), true, false, false, false},
		{"read only", nil, answer("ERROR", "25006"), true, false, false, false},
		{"completion unknown", nil, answer("ERROR", "40003"), true, true, false, false},
		{"shutdown", nil, answer("FATAL", "57P01"), true, true, false, false},
		{"shutdown, as CockroachDB says it", nil, answer("ERROR", "57P01"), true, true, false, false},
		{"a pooler lost the server", nil, answer("FATAL", "08P01"), true, true, false, false},
		{"disk full", nil, answer("ERROR", "53100"), true, false, false, false},
		{"panic on a full disk", nil, answer("PANIC", "53100"), true, true, false, false},
		{"login", nil, answer("FATAL", "28P01"), false, false, false, false},
		{"cut", nil, errors.New("unexpected EOF " + secret), true, true, false, false},
		{"refused", nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false, false, false, false},
		{"dead connection", nil, fmt.Errorf("x: %w", safe{errors.New(secret)}), true, false, false, true},
		{"cancelled under way", over, errors.New("context canceled"), true, true, false, false},
	} {
		ctx := c.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		err := newFailure(ctx, c.err, c.sent)
		if isUnknown(err) != c.unknown || isRetry(err) != c.retry || isStale(err) != c.stale {
			t.Errorf("%s: unknown %v, retry %v, stale %v; want %v, %v, %v", c.name, isUnknown(err), isRetry(err), isStale(err), c.unknown, c.retry, c.stale)
		}
		if got := errors.Is(asMove(err), backend.ErrOutcomeUnknown); got != c.unknown {
			t.Errorf("%s: as a move it matches ErrOutcomeUnknown: %v", c.name, got)
		}
		if errors.Is(err, backend.ErrOutcomeUnknown) || errors.Is(asRead(err), backend.ErrOutcomeUnknown) {
			t.Errorf("%s: as a read it matches ErrOutcomeUnknown", c.name)
		}
		if text := asMove(err).Error(); strings.Contains(text, secret) || !strings.HasPrefix(text, "idem: ") {
			t.Errorf("%s: %q", c.name, text)
		}
	}
	if err := newFailure(over, errors.New("x"), false); err != context.Canceled {
		t.Errorf("nothing sent and the context is over: %v", err)
	}
	if err := asRead(newFailure(over, errors.New("x"), true)); err != context.Canceled {
		t.Errorf("a read and the context is over: %v", err)
	}
}

// safe is an error of which the driver says that nothing had been sent.
type safe struct{ error }

func (safe) SafeToRetry() bool { return true }

// A wrong address, no database, no table, no permission: one clear error each,
// within the caller's deadline, nothing reserved, no text of the driver's.
func TestStoreThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	b := newBase(t, "")
	role := pg.Role(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.Addr().String()
	free.Close()
	other := *b
	other.names, _ = NewNames("", "absent_")
	for name, c := range map[string]struct {
		url  string
		base *base
		want string
	}{
		"nothing listens":  {"postgres://postgres@" + closed + "/x?sslmode=disable", b, "nothing listens"},
		"no database":      {pg.URL("postgres", "absent"), b, "no such database (SQLSTATE 3D000)"},
		"no table":         {b.url, &other, "run its migrations"},
		"no permission":    {strings.Replace(b.url, "postgres@", role+"@", 1), b, "grant it SELECT"},
		"read-only server": {b.url + "&default_transaction_read_only=on", b, "connect to the primary"},
	} {
		for driver, store := range map[string]backend.Backend{
			"pgx": New(PgxDB{Pool: newPool(t, c.url, setup{size: 2, mode: pgx.QueryExecModeCacheStatement})}, c.base.config()),
			"sql": New(SQLDB{DB: newSQL(t, c.url, setup{size: 2, mode: pgx.QueryExecModeCacheStatement})}, c.base.config()),
		} {
			_, err := store.Reserve(soon(t), reserveOf("key"))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "a retry is safe") || errors.Is(err, backend.ErrOutcomeUnknown) {
				t.Errorf("%s, %s: %v", name, driver, err)
			}
		}
	}
	if rows := b.ask("SELECT count(*) FROM " + b.names.Records); rows != "0" {
		t.Errorf("%s rows were reserved", rows)
	}
}

// A session that is killed under a statement leaves the outcome unknown, and the
// same move again learns the truth; the pool does not hand the connection out again.
func TestKilledSession(t *testing.T) {
	t.Parallel()
	b := newBase(t, "")
	one := setup{size: 1, mode: pgx.QueryExecModeCacheStatement}
	for driver, open := range map[string]func() backend.Backend{
		"pgx": func() backend.Backend {
			return New(PgxDB{Pool: newPool(t, b.url, one)}, b.config())
		},
		"sql": func() backend.Backend {
			return New(SQLDB{DB: newSQL(t, b.url, one)}, b.config())
		},
	} {
		l, store := newLease(t, b, setup{}), open()
		tx := l.hold(reserveOf(driver))
		r := reserveOf(driver)
		r.Wait = time.Minute
		answer := make(chan error, 1)
		go func() {
			_, err := store.Reserve(soon(t), r)
			answer <- err
		}()
		deadline := time.After(30 * time.Second)
		for b.ask("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "+mine+" AND wait_event_type = 'Lock'") == "0" {
			select {
			case err := <-answer:
				t.Fatalf("%s: the reserve did not wait: %v", driver, err)
			case <-deadline:
				t.Fatalf("%s: nobody waits for the lock", driver)
			case <-time.After(5 * time.Millisecond):
			}
		}
		if err := <-answer; !errors.Is(err, backend.ErrOutcomeUnknown) {
			t.Errorf("%s: the reserve of a killed session: %v; want an unknown outcome", driver, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if res, err := store.Reserve(soon(t), r); err != nil || res.Outcome != backend.Acquired {
			t.Errorf("%s: the same reserve again: %v, %v", driver, res.Outcome, err)
		}
	}
}
