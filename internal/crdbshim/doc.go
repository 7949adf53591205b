// Package crdbshim is a proxy in front of a real PostgreSQL that gives it the transaction manners of
// CockroachDB, and faults on demand. It speaks PostgreSQL's wire protocol on both sides: simple and
// extended queries, pipelines, COPY. Each connection of a client has one session of the server.
//
// What the face of CockroachDB consists of:
//
//   - Restarts. SAVEPOINT cockroach_restart marks a transaction, RELEASE of it commits on the server,
//     and from then on only COMMIT and ROLLBACK are accepted, which change nothing. ROLLBACK TO it
//     ends the server's transaction and begins another one, which has another snapshot.
//   - SERIALIZABLE is the default, and stands in for REPEATABLE READ.
//   - version(), SHOW crdb_version and the parameters at start-up name CockroachDB.
//   - What CockroachDB refuses is refused with its SQLSTATE: see face.go.
//   - Row-level TTL and hash-sharded indexes, which PostgreSQL does not know, are accepted; what was
//     asked of the TTL can be read ([Shim.TTL]), and nothing ever expires a row.
//
// [Shim.Inject] makes chosen statements and commits fail: refused for good, refused with the outcome
// open, cut before or after they took effect, or stalled. With [Options.Plain] the face is off and the
// proxy only injects faults and counts round trips.
//
// # What it does not prove
//
// Behind the shim runs one PostgreSQL. Tests that pass here have met the restart protocol, the errors
// and the refusals that are listed above, and nothing else of CockroachDB. In particular they say
// nothing about:
//
//   - how a real cluster executes, plans or types any statement, and whether it accepts all of those
//     that are not refused here; the list of refusals is long but not complete;
//   - contention and its retries: the genuine 40001 come from PostgreSQL's serializable snapshot
//     isolation, which aborts other transactions at other moments, and a cluster retries many
//     statements by itself before the client sees an error;
//   - locks of SELECT FOR UPDATE, which a cluster may lose and PostgreSQL never does;
//   - clock skew, leaseholders, range splits, loss of a node, replication;
//   - the TTL job, the effect of hash sharding, schema changes that run online, speed.
//
// Only a run against a real cluster shows those.
package crdbshim
