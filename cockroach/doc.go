// Package cockroach keeps idem's records in CockroachDB v24.2.3 or newer, in a table
// beside the caller's own, so that an effect and its record commit together. It is
// for those who outgrow one machine; its calls and options are those of package
// postgres.
//
// # What has been run
//
// This package has been tested against a shim, and not against a cluster: a proxy in
// front of a real PostgreSQL that gives CockroachDB's restart protocol its meaning,
// makes statements and commits fail with 40001, 40003 and cut connections, and
// refuses what CockroachDB refuses. How a cluster plans and types the statements, its
// contention, clocks and node losses have not been met. The same tests run against a
// cluster when IDEM_TEST_COCKROACH_URL names one.
//
// # Transactions
//
// A transaction runs under SERIALIZABLE, or what the pool sets, with CockroachDB's
// restart protocol: the savepoint cockroach_restart, whose release is the commit. If
// the server wants a transaction again (40001), the whole of it runs again, work
// included, so work touches only its transaction and sets what it returns anew. A
// commit whose outcome is unknown (40003, a cut connection) is settled by going back
// to the record.
//
// A transaction of the caller's own belongs into ExecuteTx of cockroach-go
// (crdb/crdbpgxv5), with idem.ExecuteIn inside: what the server wants again, that runs
// again.
//
// On PostgreSQL that protocol would commit in the wrong place: opening such a server
// is refused with [ErrServer], as package postgres refuses a cluster.
//
// # Tables
//
// Opening never changes the schema unless Options.Migrate says so. There are no
// advisory locks; each statement of a migration can be repeated, and any number of
// processes may migrate at the same time. See also idem migrate --store
// cockroach://..., and its --print.
//
// A program that does not migrate needs these rights and no others (with the names
// of the default options):
//
//	GRANT USAGE ON SCHEMA your_schema TO app; -- if it is not public
//	GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE idem_records TO app;
//	GRANT SELECT ON TABLE idem_schema TO app;
//
// The primary key is a hash, and the index for the sweeper is hash-sharded, so that
// neither makes one range hot. Row-level TTL removes expired records once a day, as
// a backstop for when no sweeper runs: its expression is NULL for everything that is
// not settled, and no reader relies on it.
//
// # What differs from PostgreSQL
//
// The first fence of a key comes from the cluster's clock in microseconds: a sequence
// would cost a round trip between nodes for every key. A clock that was set back can
// give a fence again once its record is gone.
//
// Leases and windows are judged by the clock of the node that runs the statement.
// Nodes may differ by up to the cluster's max-offset (500 ms), so leases should be
// longer than that by far.
//
// A duplicate of a key whose transaction is still open waits where the cluster holds
// a lock, and otherwise loses at its commit and finds the record there.
package cockroach
