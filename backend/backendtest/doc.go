// Package backendtest tests and measures any implementation of package backend:
// a conformance suite ([Run], [RunTx]) whose subtests carry the numbers of the
// rules that they check, benchmarks ([Benchmark]), and wrappers that make a
// backend fail on purpose ([Wrap], [WrapTx]).
//
// It imports the standard library and package backend only, so that an author of
// a backend outside this module can use it too.
package backendtest
