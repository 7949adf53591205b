package pgstore

import (
	"context"
	"fmt"

	"github.com/goidem/idem/backend"
)

// SchemaError says that the tables in the database are not those that this code can
// use. Nothing was changed. Where they are too new it matches
// backend.ErrUnknownVersion and unwraps to a *backend.VersionError.
type SchemaError struct {
	Schema string // as in the options; empty for the first of the search path
	Prefix string // of the tables
	Found  int    // the version in the database; 0: there are no tables
	Oldest int    // the oldest version that code may know and still use what was found
	Needs  int    // the oldest version that this code can use
	Known  int    // the newest version that this code knows
}

// Error names both versions and says what to do.
func (e *SchemaError) Error() string {
	switch {
	case e.Found == 0:
		return fmt.Sprintf("idem: no schema: there is no table %s; this program brings version %d: run idem migrate, or open with Migrate once, as a role that may create tables", e.table(), e.Known)
	case e.TooNew():
		return fmt.Sprintf("idem: schema too new: %s has version %d, which is for programs that know version %d or later; this one knows up to %d: update the program", e.table(), e.Found, e.Oldest, e.Known)
	}
	return fmt.Sprintf("idem: schema too old: %s has version %d; this program needs %d or later and brings %d: run idem migrate of this release, or open with Migrate once", e.table(), e.Found, e.Needs, e.Known)
}

func (e *SchemaError) table() string {
	if e.Schema != "" {
		return e.Schema + "." + e.Prefix + "schema"
	}
	return e.Prefix + "schema"
}

// TooNew reports whether the program has to be updated, and not the schema.
func (e *SchemaError) TooNew() bool { return e.Found > e.Known }

// Unwrap returns the version error where the schema is too new.
func (e *SchemaError) Unwrap() error {
	if e.TooNew() {
		return &backend.VersionError{What: "schema", Found: e.Found, Known: e.Known}
	}
	return nil
}

// version is a row of the schema table.
type version struct{ found, oldest int }

// judge compares what was found with what this code knows.
func (v version) judge(n Names, known int) error {
	e := &SchemaError{Schema: n.Namespace, Prefix: n.Prefix, Found: v.found, Oldest: v.oldest, Needs: oldestUsable, Known: known}
	if v.found < oldestUsable || v.found > known && v.oldest > known {
		return e
	}
	return nil
}

// readVersion returns the newest applied version, zero where there is no schema
// table.
func readVersion(ctx context.Context, do func(context.Context, *Stmt) error, n Names) (version, error) {
	var v version
	err := do(ctx, &Stmt{
		SQL: fmt.Sprintf(`SELECT version, oldest FROM %s ORDER BY version DESC LIMIT 1`, n.Schema),
		Row: func(s Scanner) error { return s.Scan(&v.found, &v.oldest) },
	})
	switch code(err) {
	case codeNoTable, codeNoSchema:
		return version{}, nil
	}
	return v, err
}

// CheckSchema finds out whether this code can use the tables. It needs no more
// rights than the moves themselves.
func CheckSchema[Tx any](ctx context.Context, db DB[Tx], n Names, d Dialect) error {
	v, err := readVersion(ctx, db.Do, n)
	if err != nil {
		return err
	}
	return v.judge(n, len(Migrations(n, d)))
}
