// Package crashtest holds the proofs by real faults: processes that use idem die at
// named points, servers are killed under them, commits lose their answers, and what
// had been acknowledged is looked for afterwards. The code is all in tests;
// `make crash` (bolt) and `make faults` (SQL servers) run the long versions.
package crashtest
