// Package throwaway starts servers that do not outlive the process: PostgreSQL,
// PgBouncer and Redis, from the binaries that the machine has, on free ports of the
// loopback interface. A benchmark uses it as it is, tests through package testdb.
//
// The settings are the durable ones, unless the caller has others: a commit that
// PostgreSQL has answered has been flushed. Redis writes nothing to disk until its
// arguments say so.
//
// Nothing is left behind. [Host.Close] stops the servers and removes their files. When
// the process is killed, Linux kills its servers at once; their files, and on other
// systems the servers themselves, go when the next [New] is called with that parent.
//
// The environment variable IDEM_TEST_PG_BIN is the folder of PostgreSQL's binaries, when
// the newest installed is not meant.
package throwaway
