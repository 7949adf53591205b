// Package backend is the contract between idem and a store: what a backend is
// asked, what it must answer, and what it must never do.
//
// People who use idem need only the types that their own calls mention
// ([Guarantees] for requirements, [State] for listings). This page is for people
// who write a backend.
//
// # Writing a backend
//
// Implement [Backend]. Every move (reserve, complete, release, renew, resolve,
// forget) is one atomic step on one record: read the record, decide, write it,
// with nothing in between. The decisions are pure functions of this package: the
// Apply method of each request takes the current record and the store's time and
// returns the next record. A store that can run Go inside its atomic step (a map
// under a mutex, an embedded database) calls Apply there; a store that decides on
// a server (SQL, Lua) states the same decisions in its own language and is held
// to them by the conformance suite in package backendtest.
//
// Run backendtest.Run against your backend, and backendtest.RunTx if it
// implements [Transactional]. Each subtest carries the number of the rule that
// it checks; the rules are quoted where they fail.
//
// What a backend may rely on: tokens are 16 random bytes made for one attempt only.
// What a backend owes:
//
//   - Every method begins with the request's Validate (ID.Validate for Get,
//     Ref.Validate for Release, Ref.ValidateRenew for Renew), before anything is read
//     (R7), and then gives up if ctx is over.
//   - The record that Apply returns is the answer, as it is. A next record whose
//     State is zero means: remove it if it is there.
//   - A seed for Apply that grows over the whole store, so that a fence is never
//     given twice, also after a record is gone; with seed 0 an operator's delayed
//     request can meet another attempt under the same number. Say which it is.
//   - A store that is always durable ignores ReserveRequest.Durable. Expire passes
//     over a record that it cannot read; List ends with its error.
//   - Errors mean infrastructure, a broken record or a lost compare-and-set.
//     Whether a key is free, taken, finished or bound to another request is an
//     [Outcome], not an error.
//   - An error after which the move may or may not have happened matches
//     [ErrOutcomeUnknown]. Never turn unknown into yes or no. Moves are
//     repeatable: the core sends the same move again with the same token.
//   - The store's clock decides leases and windows, read at the move itself, not
//     at the start of a transaction. [Reservation.Now] tells the caller what it
//     said.
//   - Bytes returned belong to the caller, bytes received are copied before they
//     are kept.
//   - ctx governs waiting. A backend returns soon after ctx ends, with ctx.Err() and
//     never with its cause, which may be one of these errors and belong to somebody
//     else; if the move had been sent by then, the error matches ErrOutcomeUnknown.
//   - Every method is safe for concurrent use.
//   - No error carries a raw key, a stored result, driver text with data in it,
//     or a secret.
//
// There is no Close in the contract: whoever opened the underlying client closes
// it.
package backend
