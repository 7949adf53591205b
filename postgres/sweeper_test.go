package postgres

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/internal/testdb"
)

// A backlog that one DELETE could not remove within the statement timeout is gone
// after small batches. IDEM_SWEEP_ROWS=500000 is the long form.
func TestCaseC44_SweeperFinishesUnderStatementTimeout(t *testing.T) {
	t.Parallel()
	rows := 15_000
	if n, err := strconv.Atoi(os.Getenv("IDEM_SWEEP_ROWS")); err == nil {
		rows = n
	}
	url := testdb.Postgres(t).Database(t)
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	admin, err := Open(t.Context(), url, &Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.Pool().Exec(t.Context(), `INSERT INTO idem_records (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned, holder_host, holder_pid, `+
		`reserved_at, completed_at, replay_until, known_until, evidence, body, sweep_after) SELECT md5(i::text)::uuid, '', 'bulk', i::text, 1, 1, 2, md5(i::text)::uuid, i, 1, false, 1, '', 0, `+
		`now() - interval '2 h', now() - interval '2 h', now() - interval '1 h', now() - interval '1 h', '', 'x', now() - interval '1 h' FROM generate_series(1, $1::int) AS i`, rows); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url+sep+"statement_timeout=1000", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const limit = 1000
	done := make(chan expiry.Round, 1)
	var removed, batches int
	sweeper, err := expiry.NewSweeper(s, &expiry.SweeperOptions{Limit: limit, OnRound: func(r expiry.Round) {
		removed, batches = removed+r.Removed, batches+r.Batches
		if r.Err != nil || !r.More {
			select {
			case done <- r:
			default:
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sweeper.Run(ctx) }()
	select {
	case r := <-done:
		if r.Err != nil || !r.BacklogKnown || r.Backlog.Due != 0 {
			t.Errorf("the last round: %+v", r)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the backlog is not gone")
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Run does not return")
	}
	if removed != rows || batches < rows/limit {
		t.Errorf("removed %d of %d in %d batches of %d", removed, rows, batches, limit)
	}
}
