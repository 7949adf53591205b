// Package testdb starts throw-away servers for tests: PostgreSQL, PgBouncer and Redis, from the
// binaries that the machine has, on free ports of the loopback interface.
//
// A package that uses it hands its tests to [Main]:
//
//	func TestMain(m *testing.M) { testdb.Main(m) }
//
// [Postgres] and [Redis] return a server that all tests of the binary share and that starts when the
// first test asks for it. [StartPostgres] and [StartRedis] start one of the test's own, which the test
// may kill. The settings are the durable ones: a commit that was answered has been flushed.
//
// A machine without a server skips the tests that need it. The environment decides otherwise:
//
//   - IDEM_TEST_REQUIRE lists what must not be missing, out of postgres, pgbouncer, redis and chromium
//     (the browser that looks at bench's page), separated by commas, or all;
//   - IDEM_TEST_PG_BIN is the folder of PostgreSQL's binaries, when the newest installed is not meant.
//
// Package throwaway starts and stops them; here is what a test wants of it. Nothing outlives the
// tests: [Main] stops the servers and removes their files. When the test binary is killed, Linux kills
// its servers at once; their files, and on other systems the servers themselves, go when the next test
// binary starts one.
//
// A test that looks for leaked goroutines while servers run has two of package throwaway's to expect,
// to be ignored by these names: throwaway.(*spawner).loop, and for each server
// throwaway.(*process).wait.
package testdb
