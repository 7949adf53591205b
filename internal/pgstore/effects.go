package pgstore

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem/backend"
)

// onlyEffects refuses queued statements that would end the transaction under the
// record (R19). block: one of them runs code of the server's that can do so too, CALL
// or DO. Inside BEGIN and COMMIT, which a lone pipeline does without, the server lets
// it not, and everything is rolled back.
//
// Under the simple protocol a queued text can hold several statements.
func onlyEffects(b *pgx.Batch) (block bool, err error) {
	for _, e := range b.QueuedQueries {
		for rest := e.SQL; rest != ""; {
			var word string
			switch word, rest = command(rest); word {
			case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE":
				return false, fmt.Errorf("%w: %s among the queued statements; the transaction is begun and committed by idem, nothing was sent: queue the effects alone", backend.ErrInvalidRequest, word)
			case "CALL", "DO":
				block = true
			}
		}
	}
	return block, nil
}

// command returns the first word of the first statement in sql, in capitals, and what
// comes behind that statement. It reads as the server does: past white space, comments,
// which nest, empty statements and parentheses; a semicolon in a constant, a quoted
// name or a comment ends nothing.
func command(sql string) (word, rest string) {
	for i := 0; i < len(sql); {
		switch c := sql[i]; {
		case c == ';' && word != "":
			return word, sql[i+1:]
		case strings.HasPrefix(sql[i:], "--"):
			i = past(sql, i, "\n")
		case strings.HasPrefix(sql[i:], "/*"):
			i = pastComment(sql, i)
		case c == '\'' || c == '"':
			i = pastQuoted(sql, i, i > 0 && c == '\'' && sql[i-1]|0x20 == 'e' && (i == 1 || !inWord(sql[i-2])))
		case c == '$' && dollarQuote(sql, i) > i:
			body := dollarQuote(sql, i)
			i = past(sql, body, sql[i:body])
		case inWord(c):
			start := i
			for i < len(sql) && inWord(sql[i]) {
				i++
			}
			if word == "" {
				word = strings.ToUpper(sql[start:i])
			}
		default:
			i++
		}
	}
	return word, ""
}

// inWord reports whether c can be in a key word or a name, behind its first letter.
func inWord(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80
}

// past returns the index behind the next end.
func past(sql string, from int, end string) int {
	if i := strings.Index(sql[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(sql)
}

func pastComment(sql string, i int) int {
	for depth := 0; i < len(sql); {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth, i = depth+1, i+2
		case strings.HasPrefix(sql[i:], "*/"):
			if depth, i = depth-1, i+2; depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(sql)
}

// pastQuoted passes what the quote at i begins. A doubled quote ends it and begins the
// next, which comes to the same.
func pastQuoted(sql string, i int, escapes bool) int {
	quote := sql[i]
	for i++; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] == quote && escapes && i+1 < len(sql) && sql[i+1] == quote:
			i++ // still the same constant, with its escapes
		case sql[i] == quote:
			return i + 1
		}
	}
	return len(sql)
}

// dollarQuote returns the index behind the tag that begins at i, or i where none does.
func dollarQuote(sql string, i int) int {
	if i > 0 && inWord(sql[i-1]) {
		return i
	}
	for j := i + 1; j < len(sql); j++ {
		switch c := sql[j]; {
		case c == '$':
			return j + 1
		case !inWord(c) || j == i+1 && c >= '0' && c <= '9':
			return i
		}
	}
	return i
}
