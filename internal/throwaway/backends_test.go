package throwaway

import (
	"slices"
	"strconv"
	"testing"
)

// TestPostgresKillTakesEveryBackend has a backend that is busy, which would outlive its postmaster.
func TestPostgresKillTakesEveryBackend(t *testing.T) {
	t.Parallel()
	pg := startedPostgres(t)
	saysWhatItIs(t, pg, "fsync", "on")
	busy := make(chan error, 1)
	go func() {
		_, err := pg.Exec("postgres", "SELECT count(*) FROM generate_series(1, 1000000000000)")
		busy <- err
	}()
	const find = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND pid <> pg_backend_pid()"
	var pids []string
	if !Poll(t.Context(), func() bool { pids, _ = pg.Exec("postgres", find); return len(pids) > 0 }) {
		t.Fatal("the busy backend does not show")
	}
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if !running(pid) || !slices.Contains(pg.PIDs(), pid) || !slices.Contains(pg.PIDs(), pg.PID()) {
		t.Fatalf("the busy backend %d and %d are not among the processes %v", pid, pg.PID(), pg.PIDs())
	}
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	if running(pid) {
		t.Error("the busy backend outlives the kill")
	}
	if err := <-busy; err == nil {
		t.Error("its query succeeded")
	}
	if pg.Alive() || pg.PIDs() != nil || pg.Kill() == nil {
		t.Error("a killed server counts as alive")
	}
	restart := func() {
		t.Helper()
		if err := pg.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart() // over what a kill leaves behind, then in order, then while it runs
	pg.Stop()
	restart()
	restart()
	if _, err := pg.Exec("postgres", "SELECT 1"); err != nil {
		t.Error(err)
	}
}
