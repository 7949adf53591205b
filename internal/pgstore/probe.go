package pgstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/goidem/idem/backend"
)

// oldestPostgres is the oldest server version that the statements are written for.
const oldestPostgres = 130000

// settings of a PostgreSQL server that decide what a commit is worth, as one
// connection of the pool sees them.
type settings struct {
	version                         string
	number                          int
	replica, readOnly               bool
	fsync, commit, pages, standbys  string
	isolation, idle, walDelay       string
	connected, visible, synchronous int // standbys; visible: those whose state this role may see
	slots                           int // for standbys that may be away
}

// probeSQL reads all of them in one statement.
const probeSQL = `SELECT version(), current_setting('server_version_num')::int4, pg_is_in_recovery(),
	current_setting('transaction_read_only') = 'on',
	current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
	current_setting('synchronous_standby_names'),
	current_setting('default_transaction_isolation'), current_setting('idle_in_transaction_session_timeout'),
	current_setting('wal_writer_delay'),
	(SELECT count(*) FROM pg_stat_replication)::int4,
	(SELECT count(sync_state) FROM pg_stat_replication)::int4,
	(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))::int4,
	(SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical')::int4`

// probePostgres finds out what the server is and gives.
func probePostgres[Tx any](ctx context.Context, db DB[Tx], where string) (backend.Guarantees, error) {
	var s settings
	err := db.Do(ctx, &Stmt{SQL: probeSQL, Row: func(r Scanner) error {
		return r.Scan(&s.version, &s.number, &s.replica, &s.readOnly, &s.fsync, &s.commit, &s.pages, &s.standbys,
			&s.isolation, &s.idle, &s.walDelay, &s.connected, &s.visible, &s.synchronous, &s.slots)
	}})
	if err != nil {
		// Another product may lack one of the views or settings.
		if v, verr := serverVersion(ctx, db); verr == nil && isCockroach(v) {
			s.version, err = v, nil
		}
	}
	switch {
	case err != nil:
		return backend.Guarantees{}, err
	case isCockroach(s.version):
		return backend.Guarantees{}, fmt.Errorf("%w: %s is CockroachDB, whose transactions are retried in another way: use package cockroach (a cockroach:// URL on the command line)", ErrServer, where)
	case s.number < oldestPostgres:
		return backend.Guarantees{}, fmt.Errorf("%w: %s is PostgreSQL %d; 13 or newer is needed", ErrServer, where, s.number/10000)
	case s.replica:
		return backend.Guarantees{}, fmt.Errorf("%w: %s is a replica: connect to the primary (target_session_attrs=read-write finds it among several hosts)", ErrReadOnly, where)
	case s.readOnly:
		return backend.Guarantees{}, fmt.Errorf("%w: %s: default_transaction_read_only is on for this role or database: set it to off", ErrReadOnly, where)
	}
	return s.guarantees(), nil
}

func serverVersion[Tx any](ctx context.Context, db DB[Tx]) (v string, err error) {
	err = db.Do(ctx, &Stmt{SQL: "SELECT version()", Row: func(r Scanner) error { return r.Scan(&v) }})
	return v, err
}

func isCockroach(version string) bool { return strings.HasPrefix(version, "CockroachDB") }

// guarantees puts the settings into grades and words.
func (s *settings) guarantees() backend.Guarantees {
	g := backend.Guarantees{
		ProcessCrash: backend.Survives, MachineCrash: backend.Survives, Failover: backend.Survives,
		Atomic: true, ServerClock: true, Shared: true,
	}
	find := func(setting, value, want, text string) {
		g.Findings = append(g.Findings, backend.Finding{Setting: setting, Value: value, Want: want, Text: text})
	}
	product, _, _ := strings.Cut(s.version, " on ")
	find("server", product, "", "the primary; its clock decides leases and windows")
	s.disk(&g, find)
	s.failover(&g, find)
	find("default_transaction_isolation", s.isolation, "", "idem is right under each of them; stricter ones make it retry more often")
	idle := "nothing ends a transaction that its program has left open; its key waits as long"
	if s.idle != "0" {
		idle = "a transaction whose work is idle for longer is ended by the server and rolled back"
	}
	find("idle_in_transaction_session_timeout", s.idle, "", idle)
	return g
}

// disk grades crashes of the server and of its machine.
func (s *settings) disk(g *backend.Guarantees, find func(setting, value, want, text string)) {
	if s.fsync == "on" {
		find("fsync", s.fsync, "", "what is committed has been flushed to disk")
	} else {
		g.MachineCrash = backend.Lost
		find("fsync", s.fsync, "on", "a power loss can damage the whole database")
	}
	if s.pages == "on" {
		find("full_page_writes", s.pages, "", "a page torn by a power loss is restored")
	} else {
		if s.fsync == "on" {
			g.MachineCrash = backend.Unchecked
		}
		find("full_page_writes", s.pages, "on", "right only where the file system never tears a page, which cannot be seen from here")
	}
	if s.commit == "off" {
		g.ProcessCrash = min(g.ProcessCrash, backend.Recent)
		g.MachineCrash = min(g.MachineCrash, backend.Recent)
		find("synchronous_commit", s.commit, "on", "commits are acknowledged before they are flushed: up to three times wal_writer_delay ("+s.walDelay+") of them are lost in a crash")
		return
	}
	find("synchronous_commit", s.commit, "", "a commit is flushed before it is acknowledged")
}

// failover grades the promotion of a standby.
func (s *settings) failover(g *backend.Guarantees, find func(setting, value, want, text string)) {
	const names = "synchronous_standby_names"
	standbys := fmt.Sprintf("%d connected", s.connected)
	switch {
	case s.standbys == "" && s.connected == 0 && s.slots == 0:
		find(names, "empty", "", "no standby is connected and none is expected: there is nothing to fail over to, as far as this server knows")
	case s.standbys == "":
		g.Failover = backend.Recent
		find(names, "empty", "the names of standbys that a commit waits for", standbys+"; they follow asynchronously: a promoted one may lack the last commits, and their keys would run again")
	case s.commit == "off" || s.commit == "local":
		g.Failover = backend.Recent
		find("synchronous_commit", s.commit, "on", "commits do not wait for the standbys that "+names+" lists")
	case s.commit == "remote_write":
		g.Failover = backend.Recent
		find("synchronous_commit", s.commit, "on", "a standby acknowledges before it has flushed: what it had not yet is lost if its machine stops, too")
	case s.visible == s.connected && s.synchronous == 0:
		// The server holds commits back until one comes; it is not a loss.
		find(names, s.standbys, "", "no such standby is connected: commits wait until one is")
	default:
		find(names, s.standbys, "", "a commit waits until a listed standby has flushed it; promote only one of those. Cancelling that wait acknowledges a commit that no standby has")
	}
}

// checkTables looks at the tables themselves: whether this role may use them, and
// whether they are kept like others.
func checkTables[Tx any](ctx context.Context, db DB[Tx], n Names, d Dialect, g *backend.Guarantees) error {
	var allowed bool
	var kept string
	sql := `SELECT has_table_privilege($1::text, 'SELECT') AND has_table_privilege($1::text, 'INSERT') AND
		has_table_privilege($1::text, 'UPDATE') AND has_table_privilege($1::text, 'DELETE')`
	args := []any{n.Records}
	if d.isPostgres() {
		sql += ` AND has_sequence_privilege($2::text, 'USAGE')`
		args = append(args, n.Fence)
	}
	sql += `, (SELECT relpersistence::text FROM pg_catalog.pg_class WHERE oid = $1::text::regclass)`
	err := db.Do(ctx, &Stmt{SQL: sql, Args: args, Row: func(r Scanner) error { return r.Scan(&allowed, &kept) }})
	switch {
	case err != nil:
		return err
	case !allowed:
		return fmt.Errorf("%w: the role may not read and write %s: grant what idem migrate --print lists at its end", ErrAccess, n.Records)
	case kept == "u":
		g.ProcessCrash, g.MachineCrash, g.Failover = backend.Lost, backend.Lost, backend.Lost
		g.Findings = append(g.Findings, backend.Finding{
			Setting: "table", Value: "unlogged", Want: "logged (ALTER TABLE ... SET LOGGED)",
			Text: "the server empties it after a crash, and standbys do not have it",
		})
	}
	return nil
}
