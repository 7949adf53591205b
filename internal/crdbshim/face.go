package crdbshim

import (
	"slices"
	"strings"
)

// face turns statements for CockroachDB into statements for PostgreSQL, and refuses those that
// CockroachDB would.
type face struct {
	version  string // what version() says
	advisory bool   // advisory locks succeed and lock nothing
}

// edit replaces a part of a statement.
type edit struct {
	start, end int
	text       string
}

// show puts into st what the server is sent, or why CockroachDB would refuse it.
func (f *face) show(st *statement, tokens []token) {
	if st.restart {
		// The server prepares this in the client's place, for it may be prepared in an aborted
		// transaction, too, and returns no rows. It runs only where the shim means to commit.
		st.server = "COMMIT"
		return
	}
	for _, check := range []func([]token) *pgError{refusedCommand, refusedWords, refusedCalls(f), refusedSettings, twoMutations} {
		if st.refusal = check(tokens); st.refusal != nil {
			return
		}
	}
	edits := f.identity(tokens)
	edits = append(edits, isolation(st, tokens)...)
	if f.advisory {
		edits = append(edits, advisoryNoop(tokens)...)
	}
	more, ttl, refusal := storage(tokens)
	st.ttl, st.refusal = ttl, refusal
	edits = append(edits, more...)
	st.server = apply(st.text, edits)
}

func apply(text string, edits []edit) string {
	slices.SortFunc(edits, func(a, b edit) int { return a.start - b.start })
	var out strings.Builder
	at := 0
	for _, e := range edits {
		if e.start < at {
			continue // within one that was made
		}
		out.WriteString(text[at:e.start])
		out.WriteString(e.text)
		at = e.end
	}
	out.WriteString(text[at:])
	return out.String()
}

// identity makes version() and SHOW crdb_version name CockroachDB.
func (f *face) identity(tokens []token) []edit {
	literal := "'" + strings.ReplaceAll(f.version, "'", "''") + "'::text"
	if len(tokens) == 2 && tokens[0].is("show") && tokens[1].is("crdb_version") {
		return []edit{{tokens[0].start, tokens[1].end, "SELECT " + literal + " AS crdb_version"}}
	}
	var edits []edit
	for i := range tokens {
		if i+2 >= len(tokens) || !tokens[i].is("version") || !tokens[i+1].punct("(") || !tokens[i+2].punct(")") {
			continue
		}
		from := i
		if i >= 2 && tokens[i-1].punct(".") {
			if !tokens[i-2].is("pg_catalog") {
				continue
			}
			from = i - 2
		}
		edits = append(edits, edit{tokens[from].start, tokens[i+2].end, "(SELECT " + literal + " AS version)"})
	}
	return edits
}

// isolation raises REPEATABLE READ to SERIALIZABLE, as CockroachDB does.
func isolation(st *statement, tokens []token) []edit {
	if st.kind != begin && st.kind != setting {
		return nil
	}
	var edits []edit
	for i := range len(tokens) - 1 {
		if tokens[i].is("repeatable") && tokens[i+1].is("read") {
			edits = append(edits, edit{tokens[i].start, tokens[i+1].end, "SERIALIZABLE"})
		}
	}
	return edits
}

// advisoryNoop makes calls of advisory lock functions succeed and lock nothing, which is what some
// of them do on CockroachDB.
func advisoryNoop(tokens []token) []edit {
	var edits []edit
	for i, t := range tokens {
		if !call(tokens, i) || !advisoryFunction(t.text) {
			continue
		}
		end, commas := arguments(tokens, i+1)
		cast := ")::bigint"
		if len(commas) > 0 {
			cast = ")::int"
		}
		result, close := "(CASE WHEN num_nulls((", " >= 0 THEN ''::text END)"
		if strings.Contains(t.text, "try") || strings.Contains(t.text, "unlock") {
			result, close = "(num_nulls((", " >= 0)"
		}
		edits = append(edits, edit{t.start, tokens[i+1].end, result})
		for _, comma := range commas {
			edits = append(edits, edit{tokens[comma].start, tokens[comma].end, cast + ", ("})
		}
		edits = append(edits, edit{tokens[end].start, tokens[end].end, cast + ")" + close})
	}
	return edits
}

// arguments returns the index of the parenthesis that closes the one at open, or of the last token,
// and the commas on its level.
func arguments(tokens []token, open int) (end int, commas []int) {
	depth := 0
	for i := open; i < len(tokens); i++ {
		switch {
		case tokens[i].punct("("):
			depth++
		case tokens[i].punct(")"):
			if depth--; depth == 0 {
				return i, commas
			}
		case tokens[i].punct(",") && depth == 1:
			commas = append(commas, i)
		}
	}
	return len(tokens) - 1, commas
}

// call reports whether the token at i is the name of a function that is called.
func call(tokens []token, i int) bool {
	return i+1 < len(tokens) && tokens[i].kind == tokenWord && tokens[i+1].punct("(")
}
