package pgstore

import (
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// Names are the quoted, qualified names of what a store consists of in a database.
type Names struct {
	Records  string // table of records
	Schema   string // table of applied migrations
	Fence    string // sequence of fences; not on CockroachDB
	Overview string // view for people
	Sweep    string // index on sweep_after; unqualified, as CREATE INDEX wants it
	// Namespace is the unquoted schema, empty for the first of the search path; Prefix
	// the unquoted table prefix.
	Namespace, Prefix string
}

// maxPrefix leaves room for the longest suffix within PostgreSQL's 63 bytes.
const maxPrefix = 40

// NewNames builds the names from a schema, which may be empty for the first of the
// search path, and a table prefix.
func NewNames(schema, prefix string) (Names, error) {
	if len(prefix) > maxPrefix {
		return Names{}, fmt.Errorf("%w: a table prefix of %d bytes; at most %d", backend.ErrInvalidRequest, len(prefix), maxPrefix)
	}
	for what, s := range map[string]string{"schema": schema, "table prefix": prefix} {
		if s != "" && !regexp.MustCompile(`^[a-z_][a-z0-9_]*$`).MatchString(s) {
			return Names{}, fmt.Errorf("%w: %s %q; it must be lower-case letters, digits and underscores, beginning with no digit", backend.ErrInvalidRequest, what, s)
		}
	}
	name := func(suffix string) string {
		if schema == "" {
			return pgx.Identifier{prefix + suffix}.Sanitize()
		}
		return pgx.Identifier{schema, prefix + suffix}.Sanitize()
	}
	return Names{
		Records: name("records"), Schema: name("schema"), Fence: name("fence"), Overview: name("overview"),
		Sweep: pgx.Identifier{prefix + "records_sweep"}.Sanitize(), Namespace: schema, Prefix: prefix,
	}, nil
}
