// Package expiry says how long a key is remembered.
//
// A [Policy] is a set of rules, built by [New] or read from a file by package
// policyfile. For every scope exactly one [Rule] decides, alone: the most specific
// one that matches. Rules do not inherit from each other, and their order does not
// matter.
//
// # Which rule decides
//
// In this order, and with nothing left to chance:
//
//  1. a rule for the tenant of the call comes before a rule for any tenant;
//  2. an operation's exact name comes before a prefix (billing.*), a prefix before
//     a glob (*.close, billing.*.v2), a glob before the default rule (*);
//  3. of two prefixes the longer one decides;
//  4. of two globs the one with more literal bytes decides, then the one with fewer
//     stars.
//
// Two globs of one rank that can match the same operation are refused when the
// policy is built, and so are two rules for the same tenant and operation.
//
// # Two windows, three outcomes
//
// A completed operation has a replay window, in which retries get its result, and a
// dedup window, in which its key is recognised. A failure is replayed for the whole
// of its dedup window. An attempt that was abandoned under Rerun is remembered for
// its own dedup window, counted from the end of its lease. An uncertain key has no
// window until it is settled.
//
// # Horizons
//
// A horizon is how long after the operation somebody may still ask for it again: a
// client that retries, a queue that is redriven, a provider that sends a webhook
// anew, an operator who replays a day, a settlement file that names it. A dedup
// window below the longest horizon means that such a request finds no record and is
// executed a second time, so that [New] refuses it, and names the horizon. So it does
// for failures. The window of abandoned attempts may be shorter: under Rerun they run
// again anyway.
//
// # Late keys
//
// Where keys carry the time they were issued, a rule says so ([Rule.Issued]), and
// [Policy.Lateness] tells a key that is so old that its record may be gone from one
// that was never used. See docs/adr/0005-late-keys.md.
//
// # Sweeping
//
// A [Sweeper] removes what has expired. Any number of processes may run one on a
// store; the one that holds the lease works, the others stand by. The lease is a
// record of the store like any other, of operation idem.sweeper with the key lease:
// it shows up when records are listed and counted, in flight while a sweeper runs and
// open for ten minutes after it has stopped. Use that operation for nothing else. The
// lease only spares work: sweepers that overlap remove nothing that is not due.
package expiry
