package pgstore

import (
	"embed"
	"fmt"
	"path"
	"strings"
	"text/template"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// oldestUsable is the oldest schema version that this code can work on.
const oldestUsable = 1

// A Migration brings the schema from the version before to its own. Migrations only
// add (R28). Each writes its version into the schema table, together with the
// oldest one that code may know and still use the result.
type Migration struct {
	Version int
	Name    string // "0001_records"
	SQL     string // statements, each ending in a semicolon at the end of a line
}

// Migrations returns what leads to the newest schema, in order.
func Migrations(n Names, d Dialect) []Migration {
	files, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		panic(err) // embedded
	}
	data := struct {
		Names                   Names
		PostgreSQL, CockroachDB bool
		IfNotExists, Once       string
	}{Names: n, PostgreSQL: d.isPostgres(), CockroachDB: !d.isPostgres()}
	if !d.isPostgres() {
		// Statements commit one by one there, so each can be met half done.
		data.IfNotExists, data.Once = " IF NOT EXISTS", " ON CONFLICT (version) DO NOTHING"
	}
	var all []Migration
	for i, f := range files { // sorted by name
		text, err := migrationFiles.ReadFile(path.Join("migrations", f.Name()))
		if err != nil {
			panic(err)
		}
		var b strings.Builder
		if i == 0 && n.Namespace != "" {
			b.WriteString(createNamespace(n) + ";\n\n")
		}
		if err := template.Must(template.New(f.Name()).Parse(string(text))).Execute(&b, data); err != nil {
			panic(err)
		}
		all = append(all, Migration{Version: i + 1, Name: strings.TrimSuffix(f.Name(), ".sql"), SQL: tidy(b.String())})
	}
	return all
}

// tidy drops the blank lines that the template's conditions leave behind.
func tidy(sql string) string {
	for strings.Contains(sql, "\n\n\n") {
		sql = strings.ReplaceAll(sql, "\n\n\n", "\n\n")
	}
	return strings.TrimSpace(sql) + "\n"
}

func createNamespace(n Names) string {
	return fmt.Sprintf(`CREATE SCHEMA IF NOT EXISTS "%s"`, n.Namespace)
}

// statements of the migration, one by one: the extended protocol takes no more.
func (m *Migration) statements() []string {
	var all []string
	for s := range strings.SplitSeq(m.SQL, ";\n") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// Grants returns the statements that give a role what a program needs that runs
// no migrations.
func Grants(n Names, d Dialect, role string) []string {
	var all []string
	if n.Namespace != "" {
		all = append(all, fmt.Sprintf(`GRANT USAGE ON SCHEMA "%s" TO %s;`, n.Namespace, role))
	}
	all = append(all,
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE %s TO %s;", n.Records, role),
		fmt.Sprintf("GRANT SELECT ON TABLE %s TO %s;", n.Schema, role))
	if d.isPostgres() {
		all = append(all, fmt.Sprintf("GRANT USAGE ON SEQUENCE %s TO %s;", n.Fence, role))
	}
	return all
}

// Script returns all migrations as one text for people and for other tools, with
// the grants as comments.
func Script(n Names, d Dialect) string {
	var b strings.Builder
	for _, m := range Migrations(n, d) {
		fmt.Fprintf(&b, "-- idem schema, version %d: %s, for %s\n\n%s\n", m.Version, m.Name, d.Name, m.SQL)
	}
	b.WriteString("-- A program that runs no migrations itself needs these rights and no others:\n--\n")
	for _, g := range Grants(n, d, "your_role") {
		b.WriteString("--   " + g + "\n")
	}
	return b.String()
}

func (d Dialect) isPostgres() bool { return d.Name == PostgreSQL().Name }
