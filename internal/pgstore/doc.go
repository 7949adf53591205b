// Package pgstore is what the backends on PostgreSQL and CockroachDB share: the
// table, the statements, the moves, transactions and the settling of commits whose
// outcome is unknown.
//
// # One row, one record
//
// A record is a row of the records table ([Names].Records). Its primary key is
// ID.Sum; tenant, operation and key stand beside it in plain columns, for people
// and for the comparison in full. No index touches a column that a completion
// changes, so that completing stays a HOT update: sweep_after is a coarse bound,
// fixed when the key is reserved, and the exact end of a record is known_until,
// which every reader compares with the server's clock.
//
// # How a move is made atomic
//
// The frequent moves are one statement each, whose WHERE clause is the decision of
// backend.CompleteRequest.Apply and its like. What that statement does not accept,
// and every rare move, goes the general way: read the row with the server's time,
// decide with Apply, write the next row where rev is still the one that was read
// (rev grows with every write), and begin again where it is not. A decision that
// time has passed ("the lease is over") stays right until the write, because only
// a write could take it back, and a write changes rev.
//
// # Layers
//
// A [DB] hands out transactions of the caller's pool, a [Link] is one of them; they
// hide whether pgx or database/sql is underneath, and how many statements travel in
// one round trip. [Store] is built on these alone.
package pgstore
