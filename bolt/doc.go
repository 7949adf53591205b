// Package bolt keeps idem's records in one bbolt file: durable, without a server,
// for one machine.
//
//	db, err := bolt.Open("billing.idem", nil)
//	store, err := idem.New(db, nil)
//
// # Two modes
//
// In the exclusive mode, the default, one process keeps the file to itself for as
// long as the store is open: a service, or a long batch job. Concurrent callers
// share commits, a lone one waits for nobody, and effects in the caller's own
// buckets can commit together with their record (Transact, Join, Finish).
//
// With [Options.PerCall] the file is open only while a record is touched, so that
// short-lived commands share it. Every reservation is synced, and there are no
// transactions.
//
// # Guarantees
//
// A commit is synced before it is acknowledged. A process that is killed, and a
// machine that loses power, lose nothing that was acknowledged, as far as the file
// system keeps what it has synced; Guarantees says what was found out about it.
//
// In exclusive mode a reservation under Rerun is in memory only, with its renewals
// and its release: a crash forgets the attempt, and the next caller starts with
// attempt number one and a higher fence. Under Hold and Recover, with Durable, and
// in per-call mode the reservation itself survives. Close writes attempts that are
// still in flight to the file, lease and all.
//
// Fences grow over the whole store, also across crashes and after a record is gone.
//
// # Caveats
//
//   - Leases and windows follow the wall clock of the machine; setting it moves them.
//   - Work inside a transaction holds bbolt's only writer: nothing else commits
//     until it ends. Reservations, renewals and reads go on in exclusive mode.
//   - Work may run again before the commit that counts, when a neighbour in the same
//     commit fails.
//   - bbolt has no savepoint: after an error inside Join the key is uncertain if the
//     caller commits all the same.
//   - An expired record leaves the disk with its generation, up to a sixteenth of its
//     window later; a result past its replay window leaves with its record. Readers
//     see neither.
//   - The file never shrinks by itself; see Compact.
//   - A failed write other than for lack of room puts the handle out of use
//     (ErrPoisoned): open the file again and call Check.
//   - bbolt's pages have no checksum. Whole pages that are lost or overwritten are
//     noticed; single bits that flip in an index entry are noticed by Check only.
package bolt
