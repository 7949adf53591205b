// Package redis keeps idem's records in Redis 7.0 or newer, or Valkey: one server,
// a pair watched by Sentinel, or a Cluster. It is tested against Redis 7.0. Valkey
// was only imitated, as were WAITAOF and the servers that have it: nothing is used that
// they document otherwise, and no test has run on them.
//
// It is the fast store for windows that may be lost with the server's memory. What
// it promises depends on how the server is run, and no setting makes it as safe as
// a database that commits effect and record together. Read the next section before
// you rely on it.
//
// # What can be lost
//
// While the server keeps its data, one attempt owns a key, a completion is
// accepted from that attempt only, and a completed key replays for its window. A
// server that forgets a record lets the operation run again. It forgets
//
//   - in a failover: replication is asynchronous, so a promoted replica may lack
//     the last acknowledged writes. Reservations and results among them are gone.
//     WAIT narrows the gap and does not close it.
//   - in a crash, by what appendfsync says: nothing acknowledged with always, about
//     the last second with everysec, everything since the last snapshot without an
//     append-only file. A master that restarts empty also empties its replicas.
//   - by eviction: every maxmemory-policy except noeviction may remove a record
//     before its time. With noeviction a full server refuses new keys instead, and
//     nothing runs.
//   - by FLUSHALL, DEL and the like.
//
// What stays true whatever is lost: a completion never creates a record. An attempt
// whose record is gone, or was taken by another, is told so (backend.ErrLeaseLost).
// A record whose large result was evicted alone answers backend.ErrCorruptRecord:
// the operation took effect, and its result is lost; it is not run again.
//
// A client that reads from replicas would show a taken key as free, and a Ring
// moves keys to another server at the first missed heartbeat; [New] refuses both.
//
// # Time and fences
//
// Leases and windows are judged by the server's clock, read at each move; its
// precision is a millisecond. A clock that is set forward lets leases and windows
// end early, one set back lets them last longer. An attempt that counts as abandoned too
// early is told so when it completes; what it did has happened.
//
// A fence is the server's time in microseconds at the reserve, or one more than the
// fence before it, whichever is higher. It grows while the record lives, and after
// the record is gone as long as the server's clock, or that of the server promoted
// in its place, does not fall behind by more than the record's absence. One that
// begins in the very millisecond of one that the server has forgotten gets its fence
// again. Fences need 64 bits in whatever compares them.
//
// # What is on the server
//
// A record is one string whose name is the prefix and 22 characters made from the
// identity. The value holds the identity in full and has a versioned layout. Its key
// expires with the record: there is nothing to sweep, and Expire has nothing to do.
// A result of more than 1 KiB whose replay window is shorter than the key's dedup
// window lies in a second key of the same slot, which expires with the replay
// window. A smaller one stays in the record until that expires, hidden from
// readers. A record under Hold or Recover, and an uncertain one, has no expiry until
// it is settled.
//
// Nobody else may change the expiry of these keys: a reservation's lease and a result's
// windows are counted from it.
//
// The user of the connection needs SET, GET, DEL, PTTL, PEXPIRETIME, TIME, EVAL,
// EVALSHA and SCAN, WAIT or WAITAOF for acknowledgements, and INFO for the findings of
// [Store.Guarantees].
//
// # Calls
//
// Up to four callers at once send their commands by themselves; from the fifth on, calls
// go together, in a lane of its own for each master. A caller whose context ends leaves:
// at once while it queues (nothing was sent, and the error is the context's), is part of
// a batch or waits for acknowledgements, and within 250 ms when it sends by itself; a
// deadline is kept by the socket, if the client heeds it (ContextTimeoutEnabled). One that
// leaves never fails the others.
//
// On a Cluster commands go to the nodes' own clients: hooks belong there
// (ClusterClient.OnNewNode).
//
// go-redis reports connections that cannot be made through a logger of its own, by default
// on standard error. It is one for the whole process, so this package leaves it alone:
// the program decides, with go-redis's SetLogger.
//
// # Errors
//
// Where the server answered that it does not carry out the command, the error is a
// [*RefusedError] and that command changed nothing. Where no answer came, a read
// fails plainly and a write matches backend.ErrOutcomeUnknown: go-redis may have
// sent it, several times, and one copy may still arrive. Sending the same move again
// with the same token is always safe and learns the truth. No error carries an
// address, a password or the server's own text.
package redis
