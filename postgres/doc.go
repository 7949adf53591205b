// Package postgres keeps idem's records in PostgreSQL 13 or newer, in a table beside
// the caller's own, so that an effect and its record commit together.
//
// # Which constructor
//
// [New] takes the caller's *pgxpool.Pool, [NewSQL] the caller's *sql.DB with pgx's
// driver, for sqlc, GORM, ent and bun, [Open] a URL. [Store.Queued] is for work that
// only queues statements: reserve, effect, complete and commit then travel
// in one round trip. All of them share one table; any number of processes may use
// it at the same time.
//
// # Tables
//
// Opening never changes the schema unless Options.Migrate says so; until there is
// one, the error is a [*SchemaError] that says what to run. Migrations only add, and
// each is one transaction under an advisory lock that ends with it, so that any
// number of processes may start at the same time. They come in three ways:
//
//   - Options.Migrate, or [Migrate] with a role of its own when a release is
//     deployed;
//   - idem migrate --store postgres://...;
//   - [Migrations] or idem migrate --print, for goose, atlas and the like.
//
// A program that does not migrate needs these rights and no others (with the names
// of the default options):
//
//	GRANT USAGE ON SCHEMA your_schema TO app; -- if it is not public
//	GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE idem_records TO app;
//	GRANT SELECT ON TABLE idem_schema TO app;
//	GRANT USAGE ON SEQUENCE idem_fence TO app;
//
// The view idem_overview shows the records to people.
//
// # What is promised
//
// What the server gives is looked at when the store is opened, and is in
// [Store.Guarantees]: fsync, synchronous_commit, full_page_writes, standbys. A
// replica is refused with [ErrReadOnly].
//
// Fences come from a sequence, so that none is given twice on a key, also after its
// record is gone. A server that crashes may skip some.
//
// Leases and windows are judged by the server's clock.
//
// # Pools
//
// idem needs one connection for a call and never a second one, so that a pool of
// size one works. A transactional call keeps its connection while the work runs.
//
// In lease mode, calls that wait for other callers' open transactions hold at most a
// quarter of the pool, and those who only look at such a key half, so that completions and
// renewals find a connection behind a storm of duplicates. Half and quarter are of the size
// that the pool had when the store was opened. Transactional calls are not counted: leave
// room for them.
//
// Behind PgBouncer in transaction mode nothing of idem is bound to a session. The
// pool's statement cache is: with PgBouncer 1.21 or newer and
// max_prepared_statements above zero it may stay; otherwise set
//
//	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
//
// or add default_query_exec_mode=exec to the URL, also to that of database/sql. Do
// not use cache_describe or describe_exec there: they take two round trips, which may
// go to two servers. Run migrations on either side.
//
// # Errors
//
// Errors carry no text of the driver, no key and no secret. Opening fails with one of
// [ErrUnreachable], [ErrAccess], [ErrReadOnly], [ErrServer] or a [*SchemaError], within
// the deadline of its context, and within 30 seconds if that has none. All of them
// mean that nothing was stored.
package postgres
