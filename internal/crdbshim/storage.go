package crdbshim

import "strings"

// ttlParameter is one storage parameter of row-level TTL.
type ttlParameter struct {
	key, value string
	remove     bool
}

// onlyCockroach reports whether a storage parameter is one that only CockroachDB has.
func onlyCockroach(key string) bool {
	return rowTTL(key) || key == "bucket_count" || key == "shard_columns" || key == "schema_locked" ||
		key == "exclude_data_from_backup" || strings.HasPrefix(key, "sql_stats_")
}

func rowTTL(key string) bool { return key == "ttl" || strings.HasPrefix(key, "ttl_") }

// ignoredStorage reports whether a storage parameter is one that CockroachDB accepts and ignores.
func ignoredStorage(key string) bool { return key == "fillfactor" || key == "autovacuum_enabled" }

// storage takes out of CREATE and ALTER what PostgreSQL does not know: row-level TTL and hash-sharded
// indexes. It refuses storage parameters that CockroachDB does not know.
func storage(tokens []token) (edits []edit, ttl []ttlParameter, refusal *pgError) {
	if len(tokens) == 0 || !tokens[0].is("create") && !tokens[0].is("alter") {
		return nil, nil, nil
	}
	alter := tokens[0].is("alter")
	table := ""
	for i, t := range tokens {
		switch {
		case t.is("table") && table == "":
			table, _ = tableName(tokens, i+1)
		case t.is("using") && i+1 < len(tokens) && tokens[i+1].is("hash"):
			edits = append(edits, edit{t.start, tokens[i+1].end, ""})
		case i+1 == len(tokens) || !tokens[i+1].punct("("):
		case t.is("with"), alter && (t.is("set") || t.is("reset")):
			list := parseStorage(tokens, i+1)
			var keep []string
			for _, p := range list.parameters {
				switch {
				case rowTTL(p.key):
					ttl = append(ttl, ttlParameter{table + "." + p.key, p.value, t.is("reset")})
				case onlyCockroach(p.key):
				case ignoredStorage(p.key):
					keep = append(keep, p.text)
				default:
					return nil, nil, refuse("22023", "invalid storage parameter %q", p.key)
				}
			}
			if len(keep) == len(list.parameters) {
				continue
			}
			e := edit{t.start, tokens[list.end].end, ""}
			switch {
			case len(keep) > 0:
				e.text = t.text + " (" + strings.Join(keep, ", ") + ")"
			case t.is("set"): // an action of ALTER must remain, and this one says what is so by default
				e.text = "SET (autovacuum_enabled = true)"
			case t.is("reset"):
				e.text = "RESET (autovacuum_enabled)"
			}
			edits = append(edits, e)
		}
	}
	return edits, ttl, nil
}

type storageList struct {
	parameters []storageParameter
	end        int // the parenthesis that closes it
}

type storageParameter struct{ key, value, text string }

// parseStorage reads (key = value, ...), whose parenthesis opens at i.
func parseStorage(tokens []token, i int) storageList {
	end, commas := arguments(tokens, i)
	var list storageList
	list.end = end
	from := i + 1
	for _, to := range append(commas, end) {
		if to > from {
			list.parameters = append(list.parameters, newStorageParameter(tokens[from:to]))
		}
		from = to + 1
	}
	return list
}

func newStorageParameter(tokens []token) storageParameter {
	var key, value, text strings.Builder
	side := &key
	for _, t := range tokens {
		quote := ""
		if t.kind == tokenString {
			quote = "'"
		}
		text.WriteString(quote + strings.ReplaceAll(t.text, "'", "''") + quote + " ")
		if t.punct("=") && side == &key {
			side = &value
			continue
		}
		side.WriteString(t.text)
	}
	return storageParameter{key.String(), value.String(), strings.TrimSpace(text.String())}
}
