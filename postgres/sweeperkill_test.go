package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/internal/testdb"
)

// sweeperURL is where the child of TestCaseC14_C44_SweeperKilled sweeps.
const sweeperURL = "IDEM_SWEEPER_CHILD"

// TestSweeperChild is a process with a sweeper that is killed.
func TestSweeperChild(t *testing.T) {
	url := os.Getenv(sweeperURL)
	if url == "" {
		t.Skip("a helper of another test")
	}
	s, err := Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sweeper, err := expiry.NewSweeper(s, &expiry.SweeperOptions{Interval: time.Second, Limit: 100, Latency: func() time.Duration {
		time.Sleep(10 * time.Millisecond) // so that it does not end before it is killed
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := sweeper.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func payment(kind string, i int) backend.ReserveRequest {
	r := backend.ReserveRequest{TTL: time.Hour, KnownFor: time.Hour, OnAbandoned: backend.Rerun}
	r.ID = backend.ID{Operation: "pay", Key: fmt.Sprint(kind, i)}
	r.Owner = [16]byte{1, byte(i), byte(i >> 8), kind[0]}
	return r
}

// acquire gets the key, and takes an expired record over.
func acquire(ctx context.Context, s *Store, r backend.ReserveRequest) error {
	for range 10 {
		res, err := s.Reserve(ctx, r)
		switch {
		case err != nil:
			return err
		case res.Outcome == backend.Acquired:
			return nil
		case res.Outcome == backend.Gone:
			r.TakeOver = 0
		case res.Outcome == backend.Existing && res.Record.Expired(res.Now):
			r.TakeOver = res.Record.Fence
		case res.Outcome != backend.Busy:
			return fmt.Errorf("%s: %v, %v", r.ID.Key, res.Outcome, res.Record.State)
		}
	}
	return fmt.Errorf("%s: it cannot be got", r.ID.Key)
}

func done(ctx context.Context, s *Store, ref backend.Ref, state backend.State, known time.Duration) error {
	_, err := s.Complete(ctx, backend.CompleteRequest{Ref: ref, State: state, ReplayFor: known, KnownFor: known, Body: []byte("x")})
	return err
}

// together runs fn for 0 to n-1 on some goroutines.
func together(t *testing.T, n int, fn func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < n; i += 8 {
				if err := fn(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// until polls for a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// A sweeper's process is killed while it removes a backlog, beside callers whose keys
// are among those it is about to remove. Another follows, everything due goes, and no
// live, held, uncertain or revived record with it.
func TestCaseC14_C44_SweeperKilled(t *testing.T) {
	const bulk, few = 6000, 150
	url := testdb.Postgres(t).Database(t)
	s, err := Open(t.Context(), url, &Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	count := func(where string) (n int) {
		t.Helper()
		if err := s.Pool().QueryRow(ctx, "SELECT count(*) FROM idem_records WHERE "+where).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	together(t, few, func(i int) error {
		back, uncertain, held := payment("back", i), payment("uncertain", i), payment("held", i)
		for _, r := range []backend.ReserveRequest{back, uncertain, payment("live", i)} {
			if err := acquire(ctx, s, r); err != nil {
				return err
			}
		}
		if err := done(ctx, s, back.Ref, backend.Completed, time.Millisecond); err != nil {
			return err
		}
		held.TTL, held.OnAbandoned = 10*time.Millisecond, backend.Hold
		if err := acquire(ctx, s, held); err != nil {
			return err
		}
		_, err := s.Complete(ctx, backend.CompleteRequest{Ref: uncertain.Ref, State: backend.Uncertain})
		return err
	})
	if _, err := s.Pool().Exec(ctx, `INSERT INTO idem_records (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned, holder_host, holder_pid, `+
		`reserved_at, completed_at, replay_until, known_until, evidence, body, sweep_after) SELECT md5(i::text)::uuid, '', 'pay', 'bulk' || i, 1, 1, 2, md5(i::text)::uuid, i, 1, false, 1, '', 0, `+
		`now(), now(), now(), now(), '', 'x', now() FROM generate_series(1, $1::int) AS i`, bulk); err != nil {
		t.Fatal(err)
	}
	// All are at the head of the sweeper's index, in no order, whether due or not.
	if _, err := s.Pool().Exec(ctx, "UPDATE idem_records SET sweep_after = now() - random() * interval '1 hour'"); err != nil {
		t.Fatal(err)
	}

	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe, "-test.run=^TestSweeperChild$")
	child.Env = append(os.Environ(), sweeperURL+"="+url)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	killed := sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	defer killed()
	until(t, "the child has begun", func() bool { return count("key LIKE 'bulk%'") < bulk })

	sweeper, err := expiry.NewSweeper(s, &expiry.SweeperOptions{Interval: time.Second, Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- sweeper.Run(running) }()
	// Beside it all, expired keys are used again.
	together(t, few, func(i int) error {
		r := payment("back", i)
		r.Owner[0] = 2
		if err := acquire(ctx, s, r); err != nil {
			return err
		}
		if i == few/2 {
			killed()
		}
		return done(ctx, s, r.Ref, backend.Completed, time.Hour)
	})
	if left := count("key LIKE 'bulk%'"); left == 0 {
		t.Log("the child had finished before it was killed")
	}
	until(t, "the backlog is gone", func() bool { return count("key LIKE 'bulk%'") == 0 })
	until(t, "the successor says so", func() bool {
		st := sweeper.Status()
		return st.Last.Leading && st.Last.BacklogKnown && st.Last.Backlog.Due == 0
	})
	begun := time.Now()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("Run ended after %v", took)
	}
	if st := sweeper.Status(); st.Errors != 0 {
		t.Errorf("the successor: %+v", st)
	}
	together(t, few, func(i int) error {
		for kind, want := range map[string]backend.State{"back": backend.Completed, "uncertain": backend.Uncertain, "held": backend.InFlight, "live": backend.InFlight} {
			rec, err := s.Get(ctx, payment(kind, i).ID)
			if err != nil || rec.State != want || kind == "back" && rec.Owner[0] != 2 {
				t.Errorf("%s%d: %v, %v; want it %v", kind, i, rec.State, err, want)
			}
		}
		return nil
	})
}

// Two sweepers that take no account of each other's lease: no error, no deadlock, and
// their counts add up.
func TestCaseC14_TwoSweepersAtOnce(t *testing.T) {
	const rows = 5000
	s, err := Open(t.Context(), testdb.Postgres(t).Database(t), &Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Pool().Exec(t.Context(), `INSERT INTO idem_records (id, tenant, operation, key, format, rev, state, owner, fence, attempt, took_over, on_abandoned, holder_host, holder_pid, `+
		`reserved_at, completed_at, replay_until, known_until, evidence, body, sweep_after) SELECT md5(i::text)::uuid, '', 'pay', 'bulk' || i, 1, 1, 2, md5(i::text)::uuid, i, 1, false, 1, '', 0, `+
		`now(), now(), now() - interval '1 h', CASE WHEN i % 2 = 0 THEN now() ELSE now() + interval '1 h' END, '', 'x', now() FROM generate_series(1, $1::int) AS i`, rows); err != nil {
		t.Fatal(err)
	}
	var removed, bodies [3]int
	var wg sync.WaitGroup
	for i := range removed {
		wg.Go(func() {
			for more := true; more; {
				done, err := s.Expire(t.Context(), backend.ExpireRequest{Limit: 100})
				if err != nil {
					t.Error(err)
					return
				}
				removed[i], bodies[i], more = removed[i]+done.Removed, bodies[i]+done.Bodies, done.More
			}
		})
	}
	wg.Wait()
	if done, err := s.Expire(t.Context(), backend.ExpireRequest{Limit: rows}); err != nil {
		t.Error(err)
	} else {
		removed[0], bodies[0] = removed[0]+done.Removed, bodies[0]+done.Bodies
	}
	var left, results int
	if err := s.Pool().QueryRow(t.Context(), "SELECT count(*), count(body) FROM idem_records").Scan(&left, &results); err != nil {
		t.Fatal(err)
	}
	if r, b := removed[0]+removed[1]+removed[2], bodies[0]+bodies[1]+bodies[2]; r != rows/2 || b != rows/2 || left != rows/2 || results != 0 {
		t.Errorf("removed %d, dropped %d results, %d rows and %d results are left; want %d, %[5]d, %[5]d and 0", r, b, left, results, rows/2)
	}
}
