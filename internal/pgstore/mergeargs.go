package pgstore

import (
	"encoding/hex"
	"strconv"
)

// list is an array on its way to the server, as the text that every driver sends as a
// string: no driver's own array type is needed, and nothing is boxed.
type list []byte

func (l *list) next() {
	c := byte(',')
	if len(*l) == 0 {
		c = '{'
	}
	*l = append(*l, c)
}

func (l *list) token(t token) {
	l.next()
	*l = hex.AppendEncode(*l, t[:])
}

func (l *list) int(n int64) {
	l.next()
	*l = strconv.AppendInt(*l, n, 10)
}

func (l *list) null() {
	l.next()
	*l = append(*l, "NULL"...)
}

func (l *list) text(s string) {
	l.next()
	b := append(*l, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	*l = append(b, '"')
}

// arg is the argument. It is used once: l starts anew.
func (l *list) arg() string {
	if len(*l) == 0 {
		return "{}"
	}
	return string(append(*l, '}'))
}

// pieces are byte strings packed into one argument, which travels in binary where the
// driver can: an array of them would be twice as long in text. Row i is the size[i]
// bytes at at[i], or NULL where size[i] is 0.
type pieces struct {
	all      []byte
	at, size list
}

func (p *pieces) add(b []byte) {
	p.at.int(int64(len(p.all)) + 1) // the server counts from 1
	p.size.int(int64(len(b)))
	p.all = append(p.all, b...)
}

// blob is the argument: never NULL.
func (p *pieces) blob() []byte {
	if p.all == nil {
		return []byte{}
	}
	return p.all
}

// piece is the SQL of one of the pieces: the packed argument and the columns at and
// size.
func piece(arg string) string {
	return "CASE WHEN q.size > 0 THEN substring(" + arg + "::bytea FROM q.at FOR q.size) END"
}
