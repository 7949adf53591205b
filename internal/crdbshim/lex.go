package crdbshim

import "strings"

type tokenKind uint8

const (
	tokenWord   tokenKind = iota // a key word or a plain name, in lower case
	tokenName                    // a quoted name, without its quotes
	tokenString                  // a string constant, without its quotes
	tokenOther                   // a number, a parameter, or one character of punctuation
)

// token is one token of SQL. Comments and white space lie between tokens, so that a word in them, or
// in a string, is no word.
type token struct {
	kind       tokenKind
	text       string
	start, end int // in the source
}

func (t token) is(word string) bool { return t.kind == tokenWord && t.text == word }
func (t token) punct(c string) bool { return t.kind == tokenOther && t.text == c }
func (t token) named() bool         { return t.kind == tokenWord || t.kind == tokenName }

// lex splits SQL into tokens by PostgreSQL's rules with standard_conforming_strings on. What does not
// end is taken to end with the source: the server is who complains.
func lex(sql string) []token {
	var tokens []token
	add := func(kind tokenKind, text string, start, end int) {
		tokens = append(tokens, token{kind, text, start, end})
	}
	for i := 0; i < len(sql); {
		c := sql[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v':
			i++
		case strings.HasPrefix(sql[i:], "--"):
			i = until(sql, i, "\n")
		case strings.HasPrefix(sql[i:], "/*"):
			i = commentEnd(sql, i)
		case c == '\'':
			text, end := quoted(sql, i, '\'', false)
			add(tokenString, text, i, end)
			i = end
		case (c == 'e' || c == 'E') && i+1 < len(sql) && sql[i+1] == '\'':
			text, end := quoted(sql, i+1, '\'', true)
			add(tokenString, text, i, end)
			i = end
		case c == '"':
			text, end := quoted(sql, i, '"', false)
			add(tokenName, text, i, end)
			i = end
		case c == '$' && dollarTag(sql[i:]) != "":
			tag := dollarTag(sql[i:])
			body := i + len(tag)
			end := until(sql, body, tag)
			add(tokenString, strings.TrimSuffix(sql[body:end], tag), i, end)
			i = end
		case wordByte(c) && (c < '0' || c > '9') && c != '$':
			end := i
			for end < len(sql) && wordByte(sql[end]) {
				end++
			}
			add(tokenWord, strings.ToLower(sql[i:end]), i, end)
			i = end
		case c == '$' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(sql) && (wordByte(sql[end]) || sql[end] == '.') {
				end++
			}
			add(tokenOther, sql[i:end], i, end)
			i = end
		default:
			add(tokenOther, sql[i:i+1], i, i+1)
			i++
		}
	}
	return tokens
}

func wordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 ||
		c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// until returns the index behind the next occurrence of mark at or after i.
func until(sql string, i int, mark string) int {
	n := strings.Index(sql[i:], mark)
	if n < 0 {
		return len(sql)
	}
	return i + n + len(mark)
}

// commentEnd returns the index behind the comment that starts at i. Comments nest.
func commentEnd(sql string, i int) int {
	depth := 0
	for i < len(sql) {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(sql[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return i
}

// quoted returns what stands between the quotes that open at i, and the index behind it.
func quoted(sql string, i int, quote byte, backslash bool) (string, int) {
	var text strings.Builder
	for i++; i < len(sql); i++ {
		switch {
		case sql[i] == quote && i+1 < len(sql) && sql[i+1] == quote:
			text.WriteByte(quote)
			i++
		case sql[i] == quote:
			return text.String(), i + 1
		case backslash && sql[i] == '\\' && i+1 < len(sql):
			i++
			text.WriteByte(sql[i])
		default:
			text.WriteByte(sql[i])
		}
	}
	return text.String(), i
}

// dollarTag returns the tag, such as $$ or $body$, that opens a string at the start of sql, or "".
func dollarTag(sql string) string {
	for i := 1; i < len(sql); i++ {
		switch c := sql[i]; {
		case c == '$':
			return sql[:i+1]
		case !wordByte(c) || i == 1 && c >= '0' && c <= '9':
			return ""
		}
	}
	return ""
}
