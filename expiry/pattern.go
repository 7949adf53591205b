package expiry

import (
	"cmp"
	"strings"
)

// kind is how an operation is matched, the most specific first.
type kind uint8

const (
	exact kind = iota
	prefix
	glob
	catchAll
)

// String names the kind in explanations.
func (k kind) String() string {
	return [...]string{"exact name", "prefix", "glob", "default rule"}[k]
}

// pattern is an operation of a rule, taken apart at its stars.
type pattern struct {
	kind        kind
	first, last string   // literal start and end
	middle      []string // literal parts between stars, in order
	literal     int      // bytes that are not stars
}

func parsePattern(text string) pattern {
	parts := strings.Split(text, "*")
	p := pattern{first: parts[0], literal: len(text) - len(parts) + 1}
	switch {
	case len(parts) == 1:
		p.kind = exact
	case text == "*":
		p.kind = catchAll
	case len(parts) == 2 && parts[1] == "":
		p.kind = prefix
	default:
		p.kind = glob
		p.middle, p.last = parts[1:len(parts)-1], parts[len(parts)-1]
	}
	return p
}

// matches decides by the text alone. The lookup uses it for globs only; tests
// compare everything else with it.
func (p *pattern) matches(op string) bool {
	switch p.kind {
	case exact:
		return op == p.first
	case prefix, catchAll:
		return strings.HasPrefix(op, p.first)
	}
	if len(op) < len(p.first)+len(p.last) || !strings.HasPrefix(op, p.first) || !strings.HasSuffix(op, p.last) {
		return false
	}
	rest := op[len(p.first) : len(op)-len(p.last)]
	for _, part := range p.middle {
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

// compare orders patterns, the more specific first. Zero between two different
// globs means that neither is.
func (p *pattern) compare(q *pattern) int {
	return cmp.Or(
		cmp.Compare(p.kind, q.kind),
		cmp.Compare(q.literal, p.literal),
		cmp.Compare(len(p.middle), len(q.middle)),
	)
}

// meets reports whether some text matches both globs. With a star in each, any two
// middles fit one behind the other, so that only the ends can exclude each other.
func (p *pattern) meets(q *pattern) bool {
	starts := strings.HasPrefix(p.first, q.first) || strings.HasPrefix(q.first, p.first)
	ends := strings.HasSuffix(p.last, q.last) || strings.HasSuffix(q.last, p.last)
	return starts && ends
}
