package crdbshim

import (
	"slices"
	"strings"
)

// refusedCommand refuses statements by their first words.
func refusedCommand(tokens []token) *pgError {
	word := func(i int) string {
		if i < len(tokens) && tokens[i].kind == tokenWord {
			return tokens[i].text
		}
		return ""
	}
	switch first := word(0); first {
	case "listen", "notify", "unlisten", "reindex":
		return unimplemented(strings.ToUpper(first))
	case "do":
		return unimplemented("DO (which only newer versions have)")
	case "lock", "vacuum", "cluster", "merge":
		return refuse("42601", "at or near %q: syntax error", first)
	case "prepare", "commit", "rollback":
		if second := word(1); second == "transaction" && first == "prepare" || second == "prepared" {
			return unimplemented("two-phase commit")
		}
	case "create":
		switch word(1) {
		case "temp", "temporary":
			return unimplemented("a temporary table")
		case "domain", "rule", "publication", "subscription", "operator", "aggregate", "tablespace":
			return unimplemented("CREATE " + strings.ToUpper(word(1)))
		}
	}
	return nil
}

// systemColumns are PostgreSQL's, and not CockroachDB's.
func systemColumn(name string) bool {
	switch name {
	case "ctid", "xmin", "xmax", "cmin", "cmax":
		return true
	}
	return false
}

// refusedWords refuses columns and clauses that CockroachDB does not have.
func refusedWords(tokens []token) *pgError {
	ddl := len(tokens) > 0 && (tokens[0].is("create") || tokens[0].is("alter"))
	next := func(i int, word string) bool { return i < len(tokens) && tokens[i].is(word) }
	for i, t := range tokens {
		if t.named() && systemColumn(t.text) && !call(tokens, i) {
			return refuse("42703", "column %q does not exist", t.text)
		}
		if !ddl || t.kind != tokenWord {
			continue
		}
		switch {
		case t.text == "deferrable" || t.text == "deferred":
			return unimplemented("a deferrable constraint")
		case t.text == "exclude" && i > 0:
			return unimplemented("an exclusion constraint")
		case t.text == "partition" && (next(i+1, "of") || next(i+1, "by") && next(i+2, "hash")):
			return unimplemented("partitioning by hash or by child tables")
		case t.text == "using" && next(i+1, "hash") && i+2 < len(tokens) && tokens[i+2].punct("("):
			return unimplemented("index using hash (a hash-sharded index says USING HASH after its columns)")
		case t.text == "using" && (next(i+1, "brin") || next(i+1, "spgist")):
			return unimplemented("index using " + tokens[i+1].text)
		}
	}
	return nil
}

func advisoryFunction(name string) bool {
	return strings.HasPrefix(name, "pg_advisory_") || strings.HasPrefix(name, "pg_try_advisory_")
}

// missingFunction reports whether CockroachDB lacks one of PostgreSQL's functions.
func missingFunction(name string) bool {
	switch name {
	case "pg_notify", "pg_cancel_backend", "pg_terminate_backend", "pg_current_snapshot",
		"pg_export_snapshot", "pg_visible_in_snapshot", "pg_switch_wal",
		"pg_relation_size", "pg_table_size", "pg_total_relation_size", "pg_indexes_size",
		"pg_database_size", "pg_size_pretty", "pg_size_bytes":
		return true
	}
	for _, prefix := range []string{
		"txid_", "pg_current_xact", "pg_xact_", "pg_snapshot_", "pg_current_wal", "pg_last_wal",
		"pg_last_xact", "pg_wal_", "pg_logical_", "pg_replication_",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// refusedCalls refuses functions that CockroachDB does not have.
func refusedCalls(f *face) func([]token) *pgError {
	return func(tokens []token) *pgError {
		for i, t := range tokens {
			if !call(tokens, i) {
				continue
			}
			if missingFunction(t.text) || advisoryFunction(t.text) && !f.advisory {
				return refuse("42883", "unknown function: %s(): function undefined", t.text)
			}
		}
		return nil
	}
}

// serverSetting reports whether a setting is about files and processes that only PostgreSQL has.
func serverSetting(name string) bool {
	switch name {
	case "fsync", "full_page_writes", "wal_level", "wal_sync_method", "wal_writer_delay", "shared_buffers",
		"synchronous_standby_names", "data_directory", "track_commit_timestamp", "in_hot_standby",
		"deadlock_timeout", "max_prepared_transactions", "transaction_timeout":
		return true
	}
	return false
}

// refusedSettings refuses to show or set what CockroachDB has no setting for.
func refusedSettings(tokens []token) *pgError {
	unknown := func(name string) *pgError {
		return refuse("42704", "unrecognized configuration parameter %q", name)
	}
	switch {
	case len(tokens) == 0:
	case tokens[0].is("show") || tokens[0].is("set") || tokens[0].is("reset"):
		at := 1
		for at < len(tokens) && (tokens[at].is("local") || tokens[at].is("session")) {
			at++
		}
		if at < len(tokens) && tokens[at].named() && serverSetting(tokens[at].text) {
			return unknown(tokens[at].text)
		}
	}
	for i, t := range tokens {
		if (t.is("current_setting") || t.is("set_config")) && call(tokens, i) && i+2 < len(tokens) &&
			tokens[i+2].kind == tokenString && serverSetting(strings.ToLower(tokens[i+2].text)) {
			return unknown(tokens[i+2].text)
		}
	}
	return nil
}

// twoMutations refuses a statement whose parts change one table more than once, unless all of them
// are plain inserts: CockroachDB could lose one of the changes, and therefore forbids it.
func twoMutations(tokens []token) *pgError {
	if len(tokens) == 0 || !tokens[0].is("with") {
		return nil
	}
	var inserted, changed []string
	for i, t := range tokens {
		switch {
		case t.is("insert") && i+1 < len(tokens) && tokens[i+1].is("into"):
			name, at := tableName(tokens, i+2)
			if upserts(tokens[at:]) {
				changed = append(changed, name)
			} else {
				inserted = append(inserted, name)
			}
		case t.is("delete") && i+1 < len(tokens) && tokens[i+1].is("from"):
			name, _ := tableName(tokens, i+2)
			changed = append(changed, name)
		case t.is("update") && !rowLock(tokens, i) && (i == 0 || !tokens[i-1].is("do")):
			name, _ := tableName(tokens, i+1)
			changed = append(changed, name)
		}
	}
	for i, name := range changed {
		if slices.Contains(changed[:i], name) || slices.Contains(inserted, name) {
			return refuse("0A000", "multiple mutations of the same table %q are not supported unless they all use INSERT without ON CONFLICT", name)
		}
	}
	return nil
}

// upserts reports whether the INSERT that tokens continue has ON CONFLICT, before it ends.
func upserts(tokens []token) bool {
	depth := 0
	for i, t := range tokens {
		switch {
		case t.punct("("):
			depth++
		case t.punct(")"):
			if depth--; depth < 0 {
				return false
			}
		case t.is("on") && depth == 0 && i+1 < len(tokens) && tokens[i+1].is("conflict"):
			return true
		}
	}
	return false
}

// tableName reads a name, perhaps with a schema, at i, and returns the index behind it.
func tableName(tokens []token, i int) (string, int) {
	for i < len(tokens) && (tokens[i].is("only") || tokens[i].is("if") || tokens[i].is("not") || tokens[i].is("exists")) {
		i++
	}
	var name strings.Builder
	for i < len(tokens) && (tokens[i].named() || tokens[i].punct(".")) {
		if tokens[i].named() && name.Len() > 0 && !strings.HasSuffix(name.String(), ".") {
			break
		}
		name.WriteString(tokens[i].text)
		i++
	}
	return name.String(), i
}
