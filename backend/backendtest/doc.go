// Package backendtest tests and measures any implementation of package backend:
// a conformance suite ([Run], [RunTx]) whose subtests carry the numbers of the
// rules that they check, benchmarks ([Benchmark], [BenchmarkTx]), and wrappers that
// make a backend fail on purpose ([Wrap], [WrapTx]).
//
// A backend needs some ten lines to be held to the whole contract:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, func(t testing.TB) *backendtest.Harness {
//			dsn, clock := newStore(t) // empty, of this subtest alone
//			return &backendtest.Harness{
//				Open:    func(t testing.TB) backend.Backend { return open(t, dsn, clock) },
//				Advance: clock.Advance,
//				Tick:    time.Microsecond,
//			}
//		})
//	}
//
// Each failure quotes the sentence of the contract that was broken. What a harness
// cannot do is logged as NOT CHECKED, never passed over in silence. Random
// subtests print their seed; see [SeedVariable].
//
// The suite is held to the same measure: its own tests show it dozens of stores
// that are wrong in one way each, and every subtest fails on at least one of them.
//
// It imports the standard library and package backend only, so that an author of
// a backend outside this module can use it too.
package backendtest
