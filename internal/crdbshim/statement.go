package crdbshim

import "strings"

type kind uint8

const (
	ordinary kind = iota
	begin
	commit
	rollback
	savepoint
	release
	rollbackTo
	setting // SET, whose effect a restart must repeat
	copyIn
)

// restartSavepoint is the savepoint whose release commits.
const restartSavepoint = "cockroach_restart"

// statement is one statement of a client, and what becomes of it.
type statement struct {
	text    string // as the client wrote it
	server  string // as the server is sent it
	kind    kind
	restart bool     // it is about the savepoint cockroach_restart
	writes  bool     // outside a transaction block, its end is a commit that matters
	refusal *pgError // it is not for CockroachDB
	ttl     []ttlParameter
}

// commits reports whether the statement ends a transaction block by committing it.
func (st *statement) commits() bool {
	return st.kind == commit || st.kind == release && st.restart
}

// analyze splits sql into its statements. A nil face leaves them as they are, as PostgreSQL's own.
func analyze(sql string, f *face) []*statement {
	var all []*statement
	tokens := lex(sql)
	depth, from := 0, 0
	cut := func(to int) {
		if to > from {
			all = append(all, newStatement(sql, tokens[from:to], f))
		}
		from = to + 1
	}
	for i, t := range tokens {
		switch {
		case t.punct("("):
			depth++
		case t.punct(")"):
			depth--
		case t.punct(";") && depth == 0:
			cut(i)
		}
	}
	cut(len(tokens))
	return all
}

// newStatement reads one statement. Its text begins and ends with its first and last token.
func newStatement(sql string, source []token, f *face) *statement {
	start, end := source[0].start, source[len(source)-1].end
	tokens := make([]token, len(source))
	for i, t := range source {
		t.start -= start
		t.end -= start
		tokens[i] = t
	}
	st := &statement{text: sql[start:end], server: sql[start:end]}
	st.kind, st.restart = classify(tokens, f != nil)
	st.writes = writes(tokens)
	if f != nil {
		f.show(st, tokens)
	}
	return st
}

func classify(tokens []token, face bool) (kind, bool) {
	word := func(i int) string {
		if i < len(tokens) && tokens[i].kind == tokenWord {
			return tokens[i].text
		}
		return ""
	}
	// named reports whether the savepoint at i is CockroachDB's, on whose name it insists without case.
	named := func(i int) bool {
		return face && i < len(tokens) && tokens[i].named() && strings.EqualFold(tokens[i].text, restartSavepoint)
	}
	switch word(0) {
	case "begin":
		return begin, false
	case "start":
		return begin, false
	case "commit", "end":
		if word(1) == "prepared" {
			return ordinary, false
		}
		return commit, false
	case "abort":
		return rollback, false
	case "rollback":
		at := 1
		if word(at) == "work" || word(at) == "transaction" {
			at++
		}
		if word(at) == "prepared" {
			return ordinary, false
		}
		if word(at) != "to" {
			return rollback, false
		}
		if at++; word(at) == "savepoint" {
			at++
		}
		return rollbackTo, named(at)
	case "savepoint":
		return savepoint, named(1)
	case "release":
		if word(1) == "savepoint" {
			return release, named(2)
		}
		return release, named(1)
	case "set":
		return setting, false
	case "copy":
		for i := range tokens {
			if word(i) == "from" && word(i+1) == "stdin" {
				return copyIn, false
			}
		}
	}
	return ordinary, false
}

// writes reports whether the statement changes what others can see, as far as its words tell.
func writes(tokens []token) bool {
	for i, t := range tokens {
		if t.kind != tokenWord {
			continue
		}
		switch t.text {
		case "insert", "delete", "merge", "truncate", "upsert":
			return true
		case "update":
			if !rowLock(tokens, i) {
				return true
			}
		case "create", "alter", "drop", "grant", "revoke", "comment", "copy", "import":
			if i == 0 {
				return true
			}
		}
	}
	return false
}

// rowLock reports whether UPDATE at i belongs to FOR UPDATE or FOR NO KEY UPDATE.
func rowLock(tokens []token, i int) bool {
	return i > 0 && (tokens[i-1].is("for") || tokens[i-1].is("key"))
}
