package testdb

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

// PgBouncer starts a PgBouncer that pools the connections to a server by transaction, and returns the
// URL of a database, given by its name or its URL, through it. It goes when the test ends. Settings
// are lines of its configuration, such as "default_pool_size=2", and win over testdb's own. The test
// is skipped when PgBouncer is not installed, or fails when IDEM_TEST_REQUIRE asks for it; it is
// skipped as well when it sets max_prepared_statements and the installed version is older than 1.21,
// which brought them.
func PgBouncer(tb testing.TB, pg *PG, database string, settings ...string) string {
	tb.Helper()
	version, err := throwaway.BouncerVersion()
	need(tb, "pgbouncer", err)
	const preparedSince = 21
	settings = slices.DeleteFunc(slices.Clone(settings), func(line string) bool {
		name, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(name) != "max_prepared_statements" || version >= preparedSince {
			return false
		}
		if n, err := strconv.Atoi(strings.TrimSpace(value)); err != nil || n != 0 {
			tb.Skipf("PgBouncer 1.%d knows no prepared statements, 1.%d does", version, preparedSince)
		}
		return true
	})
	host, err := open()
	if err != nil {
		tb.Fatal(err)
	}
	b, err := host.PgBouncer(starting(tb), pg.srv, database, settings...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.Close)
	return b.URL(database)
}
