package pgstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

func TestGuaranteesFromSettings(t *testing.T) {
	t.Parallel()
	base := settings{version: "PostgreSQL 15.4 on x86_64", fsync: "on", commit: "on", pages: "on", isolation: "read committed", idle: "0", walDelay: "200ms"}
	const lost, recent, survives, unchecked = backend.Lost, backend.Recent, backend.Survives, backend.Unchecked
	for _, tt := range []struct {
		name                       string
		change                     func(s *settings)
		process, machine, failover backend.Survival
		mends                      string // setting=value, of every finding that wants a change
	}{
		{"sound, alone", func(*settings) {}, survives, survives, survives, ""},
		{"fsync off", func(s *settings) { s.fsync = "off" }, survives, lost, survives, "fsync=on"},
		{"fsync and pages off", func(s *settings) { s.fsync, s.pages = "off", "off" }, survives, lost, survives, "fsync=on full_page_writes=on"},
		{"torn pages", func(s *settings) { s.pages = "off" }, survives, unchecked, survives, "full_page_writes=on"},
		{"commit off", func(s *settings) { s.commit = "off" }, recent, recent, survives, "synchronous_commit=on"},
		{"commit off, torn pages", func(s *settings) { s.commit, s.pages = "off", "off" }, recent, unchecked, survives, "full_page_writes=on synchronous_commit=on"},
		{"commit off, fsync off", func(s *settings) { s.commit, s.fsync = "off", "off" }, recent, lost, survives, "fsync=on synchronous_commit=on"},
		{"asynchronous standby", func(s *settings) { s.connected = 1 }, survives, survives, recent, "synchronous_standby_names=the names of standbys that a commit waits for"},
		{"standby that is away", func(s *settings) { s.slots = 1 }, survives, survives, recent, "synchronous_standby_names=the names of standbys that a commit waits for"},
		{"synchronous standby", func(s *settings) { s.standbys, s.connected, s.visible, s.synchronous = "*", 1, 1, 1 }, survives, survives, survives, ""},
		{"synchronous standby, seen by an ordinary role", func(s *settings) { s.standbys, s.connected = "*", 1 }, survives, survives, survives, ""},
		{"applied by the standby", func(s *settings) { s.commit, s.standbys, s.connected = "remote_apply", "*", 1 }, survives, survives, survives, ""},
		{"commit local", func(s *settings) { s.commit, s.standbys, s.connected = "local", "*", 1 }, survives, survives, recent, "synchronous_commit=on"},
		{"commit remote_write", func(s *settings) { s.commit, s.standbys, s.connected = "remote_write", "*", 1 }, survives, survives, recent, "synchronous_commit=on"},
		{"commit off beside a standby", func(s *settings) { s.commit, s.standbys, s.connected = "off", "*", 1 }, recent, recent, recent, "synchronous_commit=on synchronous_commit=on"},
	} {
		s := base
		tt.change(&s)
		g := s.guarantees()
		if g.ProcessCrash != tt.process || g.MachineCrash != tt.machine || g.Failover != tt.failover {
			t.Errorf("%s: process %v, machine %v, failover %v; want %v, %v, %v", tt.name, g.ProcessCrash, g.MachineCrash, g.Failover, tt.process, tt.machine, tt.failover)
		}
		var mends []string
		for _, f := range g.Findings {
			if f.Want != "" {
				mends = append(mends, f.Setting+"="+f.Want)
			}
			if f.Setting == "" || f.Value == "" || f.Text == "" {
				t.Errorf("%s: a finding without words: %+v", tt.name, f)
			}
		}
		if got := strings.Join(mends, " "); got != tt.mends {
			t.Errorf("%s: to mend: %q, want %q", tt.name, got, tt.mends)
		}
		if !g.Atomic || !g.ServerClock || !g.Shared {
			t.Errorf("%s: %+v", tt.name, g)
		}
	}
}

func TestCockroachVersion(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"CockroachDB CCL v24.2.3 (x86_64-pc-linux-gnu, built 2024/09/23 22:30:53, go1.22.5)": true,
		"CockroachDB CCL v24.2.2 (x86_64)":                                                   false,
		"CockroachDB CCL v23.9.9 (x86_64)":                                                   false,
		"CockroachDB OSS v25.1.0 (x86_64)":                                                   true,
		"CockroachDB CCL v26.2.0-beta.1 (aarch64)":                                           true,
		"CockroachDB CCL v24.3.0-alpha.00000000-1":                                           true,
		"CockroachDB":                   false,
		"CockroachDB CCL":               false,
		"CockroachDB CCL main (x86_64)": false,
	} {
		if name, v := cockroachVersion(text); v.atLeast(24, 2, 3) != ok {
			t.Errorf("%q is read as %s, %v: new enough is %v, want %v", text, name, v, !ok, ok)
		}
	}
}

// The probe is one statement, and reads what the server really has.
func TestProbeReadsTheServer(t *testing.T) {
	t.Parallel()
	pg := testdb.StartPostgres(t, testdb.PGOptions{Settings: map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}})
	url := pg.Database(t)
	db := PgxDB{Pool: poolOn(t, url)}
	g, err := probePostgres(soon(t), db, "here")
	if err != nil {
		t.Fatal(err)
	}
	if g.ProcessCrash != backend.Recent || g.MachineCrash != backend.Lost || g.Failover != backend.Survives {
		t.Errorf("with everything off: %+v", g)
	}
	err = g.Check(&backend.Guarantees{MachineCrash: backend.Survives})
	for _, part := range []string{"fsync is off, set it to on", "synchronous_commit is off, set it to on", "full_page_writes is off, set it to on"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("requiring more: %v, want it to say %q", err, part)
		}
	}
	// A standby that has its place reserved and is away.
	pg.Exec(t, url, "SELECT pg_create_physical_replication_slot('away')")
	if g, err = probePostgres(soon(t), db, "here"); err != nil || g.Failover != backend.Recent {
		t.Errorf("with a slot for a standby: failover %v, %v", g.Failover, err)
	}
	// An ordinary role sees the same.
	role := pg.Role(t)
	g, err = probePostgres(soon(t), PgxDB{Pool: poolOn(t, strings.Replace(url, "postgres@", role+"@", 1))}, "here")
	if err != nil || g.Failover != backend.Recent || g.MachineCrash != backend.Lost {
		t.Errorf("as an ordinary role: %+v, %v", g, err)
	}
}

func TestUnloggedTableIsFound(t *testing.T) {
	t.Parallel()
	pg := testdb.Postgres(t)
	url := pg.Database(t)
	db, n := PgxDB{Pool: poolOn(t, url)}, names(t, "", "idem_")
	g, err := Open(soon(t), db, "here", n, PostgreSQL(), true)
	if err != nil || g.MachineCrash != backend.Survives {
		t.Fatalf("%+v, %v", g, err)
	}
	pg.Exec(t, url, "ALTER TABLE idem_records SET UNLOGGED")
	g, err = Open(soon(t), db, "here", n, PostgreSQL(), false)
	if err != nil || g.ProcessCrash != backend.Lost || g.MachineCrash != backend.Lost || g.Failover != backend.Lost {
		t.Errorf("%s, %v", fmt.Sprint(g), err)
	}
}
