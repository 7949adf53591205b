// Package bolt keeps idem's records in one bbolt file: a store without a server,
// for one machine.
//
// # Two modes
//
// [Open] keeps the file to itself for as long as the store lives. This is the mode
// of a service, and of one long batch job: reservations are made in memory,
// concurrent callers share commits, and transactions work ([DB.Transact],
// [DB.Join], [DB.Finish]). A second process that opens the file gets a
// [*LockError].
//
// With Options.PerCall the file is open only while one record is touched, and
// never while an operation runs. This is the mode of short-lived commands that
// share a file, such as idem run in cron. Every reservation is then a synced
// commit, and transactions are refused with [ErrPerCall]. Both modes read the same
// file, one after the other: an exclusive opener waits for OpenTimeout at most.
//
// [New] is the exclusive mode on a database that the caller has opened. Records
// live in the bucket "idem", beside the caller's own, so that effect and record
// commit together. The caller's other write transactions and the store's wait for
// each other.
//
// # What is on disk
//
// A completed or failed record is synced before the move returns. So is a
// reservation under Hold or Recover, one that asks to be durable, everything that
// an operator decides, and every uncertain key.
//
// In exclusive mode a reservation under Rerun, its renewals and its release are in
// memory only. If the process dies, the attempt and its number die with it, and
// the key is free at the next start without waiting for the lease: the lock of the
// file has already shown that the holder is gone. Close writes attempts that are
// still in flight, so that their leases hold. A service should therefore end on
// SIGTERM by letting its operations finish and then calling Close.
//
// Fences grow strictly over the whole file, also after a record is gone. They are
// given out from a block that is marked as used on disk: after a stop without
// Close they jump by up to 1<<20. They need 64 bits in whatever compares them.
//
// # Errors
//
// [*FileError] and [*LockError] say which file, and match the sentinels of this
// package. ErrDamaged also matches backend.ErrCorruptRecord: ask a person. ErrFull
// stored nothing, and the store works again once there is room. After ErrPoisoned
// the handle answers nothing more: open the file again and call Check. ErrClosed,
// ErrPerCall, ErrReadOnly and ErrWrongTx match backend.ErrInvalidRequest: trying
// again does not help.
//
// # Caveats
//
// A long transaction is felt by all. While a write transaction is open, in work
// given to Transact or in the caller's own code, no other write of the store
// commits. While a read transaction is open, pages freed since cannot be used
// again, and the file grows.
//
// Work in a transaction may run again before the commit that counts, when a
// neighbour in the same commit fails. In a caller's own transaction there is no
// savepoint: after an error inside Join the key is uncertain if the caller commits
// all the same.
//
// An expired record leaves the disk with its generation, up to a sixteenth of its
// window later, once Expire is called. So does a result whose replay window is over
// before its record is; the key stays known without it. Where the two windows end
// within the same generation, the result goes with the record. Readers see neither.
//
// bbolt's pages have no checksum; records have. Pages that are lost or overwritten
// are noticed when they are met; single bits that flip in an index entry hide its
// record until Check looks for it.
//
// The file never shrinks by itself: expired records leave free pages that later
// ones use. [DB.Compact] gives them back.
//
// The file system must keep what it has synced, and its locks must hold. Local
// disks do; in memory and on network file systems see [DB.Guarantees], which says
// what was found. Never copy a file over one that is in use.
package bolt
