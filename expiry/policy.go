package expiry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goidem/idem/backend"
)

// Policy maps a scope and an outcome to a [Retention]. It does not change once
// built, and any number of goroutines may use it. A nil *Policy has no rules, and
// neither has the zero Policy: everything is the default.
type Policy struct {
	rules   []compiled // the most specific first
	windows []windows  // of the rules, close together for the lookup's sake
	any     table
	tenants map[string]*table
}

// lint:const what decides where no rule matches; nobody writes to it
var noRule = &compiled{
	Rule:  Rule{Operation: "*", Replay: DefaultReplay, Dedup: DefaultDedup, Failed: DefaultDedup, Abandoned: DefaultDedup},
	index: -1,
}

// compiled is a rule that is filled in, with its pattern.
type compiled struct {
	Rule
	pattern pattern
	index   int // in the order that the rules were given in
}

// table finds the rule among those of one tenant.
type table struct {
	exact    map[string]int32
	prefixes trie
	// Globs are found under their end, and there under their start, so that one by
	// one only those are tried that have both in common.
	globs    trie
	fallback int32 // number of the default rule plus one; 0: none
}

// New builds a policy. The order of the rules does not matter. Every rule that is
// wrong is named, in a joined error of [RuleError]s.
func New(rules ...Rule) (*Policy, error) {
	p := &Policy{}
	var problems []error
	refuse := func(c *compiled, w *problem) {
		problems = append(problems, &RuleError{Index: c.index, Field: w.field, Rule: c.String(), Other: w.other, Text: w.text})
	}
	for i, r := range rules {
		c := compiled{Rule: r, index: i}
		c.Was = slices.Clone(r.Was)
		if w := c.resolve(); w != nil {
			refuse(&c, w)
			continue
		}
		c.pattern = parsePattern(r.Operation)
		p.rules = append(p.rules, c)
	}
	slices.SortFunc(p.rules, func(a, b compiled) int { return a.compare(&b) })
	for i := range p.rules {
		if c, w := p.conflict(i); w != nil {
			refuse(c, w)
		}
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b error) int { return cmp.Compare(a.(*RuleError).Index, b.(*RuleError).Index) })
		return nil, errors.Join(problems...)
	}
	p.index()
	return p, nil
}

// Fixed returns the policy that gives every outcome of every operation the same
// windows, failures and abandoned attempts the dedup window.
func Fixed(r Retention) (*Policy, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return New(Rule{Operation: "*", Replay: r.Replay, Dedup: r.Dedup})
}

// compare is the total order: rules of a tenant, then by pattern, then by text, so
// that the result never depends on the order in a file.
func (c *compiled) compare(d *compiled) int {
	return cmp.Or(
		-cmp.Compare(min(len(c.Tenant), 1), min(len(d.Tenant), 1)),
		c.pattern.compare(&d.pattern),
		cmp.Compare(c.Tenant, d.Tenant),
		cmp.Compare(c.Operation, d.Operation),
		cmp.Compare(c.index, d.index),
	)
}

// conflict refuses a rule that nothing tells from one before it in the order. Of the
// two it blames the one that was given later.
func (p *Policy) conflict(i int) (*compiled, *problem) {
	c := &p.rules[i]
	for j := i - 1; j >= 0; j-- {
		d := &p.rules[j]
		// Rules of one tenant and rank are neighbours, those of one name next to each
		// other.
		if d.Tenant != c.Tenant || d.pattern.compare(&c.pattern) != 0 || c.pattern.kind != glob && d.Operation != c.Operation {
			return nil, nil
		}
		first, last := d, c
		if last.index < first.index {
			first, last = last, first
		}
		if d.Operation == c.Operation {
			return last, wrong("operation", "it has a policy already, rule %d; one of the two must go", first.index+1).with(first.index)
		}
		if c.pattern.meets(&d.pattern) {
			return last, wrong("operation", "it matches operations that %s (rule %d) matches too, and neither is more specific: give one of them more literal text", first.Operation, first.index+1).with(first.index)
		}
	}
	return nil, nil
}

// index builds the tables.
func (p *Policy) index() {
	p.tenants = make(map[string]*table)
	for i := range p.rules {
		c := &p.rules[i]
		p.windows = append(p.windows, c.windows())
		t := &p.any
		if c.Tenant != "" {
			if t = p.tenants[c.Tenant]; t == nil {
				t = &table{}
				p.tenants[c.Tenant] = t
			}
		}
		t.add(c, int32(i))
	}
}

func (t *table) add(c *compiled, i int32) {
	switch {
	case c.pattern.kind == exact:
		if t.exact == nil {
			t.exact = make(map[string]int32)
		}
		t.exact[c.Operation] = i
	case c.pattern.kind == prefix:
		t.prefixes.add(c.pattern.first, i)
	case c.pattern.kind == catchAll:
		t.fallback = i + 1
	default:
		ends := t.globs.node(reversed(c.pattern.last))
		if ends.inner == nil {
			ends.inner = new(trie)
		}
		ends.inner.add(c.pattern.first, i)
	}
}

// find returns the rule that decides, -1 for none. It allocates nothing.
func (t *table) find(p *Policy, op string) int32 {
	if i, ok := t.exact[op]; ok {
		return i
	}
	best := int32(-1)
	for n, left := t.prefixes.next(op); n != nil; n, left = n.next(left) {
		if len(n.rules) > 0 {
			best = n.rules[0] // the deepest is the longest
		}
	}
	if best >= 0 {
		return best
	}
	for n, left := &t.globs, op; n != nil; n, left = n.nextBack(left) {
		for m, rest := n.inner, op; m != nil; m, rest = m.next(rest) {
			best = p.better(best, m.rules, op)
		}
	}
	if best >= 0 {
		return best
	}
	return t.fallback - 1
}

// better returns the first of the rules that matches and comes before best. Rules
// are in their order, so that a smaller number is more specific.
func (p *Policy) better(best int32, rules []int32, op string) int32 {
	for _, i := range rules {
		if best >= 0 && i >= best {
			break
		}
		if p.rules[i].pattern.matches(op) {
			return i
		}
	}
	return best
}

// number returns the number of the rule that decides for a scope, -1 for none.
func (p *Policy) number(tenant, op string) int32 {
	if p == nil {
		return -1
	}
	if tenant != "" {
		if t := p.tenants[tenant]; t != nil {
			if i := t.find(p, op); i >= 0 {
				return i
			}
		}
	}
	return p.any.find(p, op)
}

// rule returns the rule that decides for a scope.
func (p *Policy) rule(tenant, op string) *compiled {
	if i := p.number(tenant, op); i >= 0 {
		return &p.rules[i]
	}
	return noRule
}

// For returns the windows for an outcome: Completed, Failed, or InFlight for an
// attempt that is abandoned under Rerun. The key of the ID does not matter. Other
// states have no window, and get the zero Retention, which is not valid: an
// uncertain key is kept until it is settled, an open one for backend.OpenFor.
//
// It allocates nothing and takes well below a microsecond, whatever the number of
// rules. Only globs that have both their start and their end in common are tried one
// by one.
func (p *Policy) For(id backend.ID, s backend.State) Retention {
	if i := p.number(id.Tenant, id.Operation); i >= 0 {
		return p.windows[i].retention(s)
	}
	w := noRule.windows()
	return w.retention(s)
}

// Rule returns the rule that decides for an ID, filled in: the default of idem where
// none matches. The key of the ID does not matter.
func (p *Policy) Rule(id backend.ID) Rule { return p.rule(id.Tenant, id.Operation).copy() }

// Rules returns all rules, filled in, the most specific first. The caller may keep
// and change the result.
func (p *Policy) Rules() []Rule {
	if p == nil {
		return nil
	}
	rules := make([]Rule, len(p.rules))
	for i := range p.rules {
		rules[i] = p.rules[i].copy()
	}
	return rules
}

func (c *compiled) copy() Rule {
	r := c.Rule
	r.Was = slices.Clone(r.Was)
	return r
}

// Explain returns the rule that decides for an ID and an outcome, filled in, and
// says why: what it matches by, which rules it comes before, and what it gives.
func (p *Policy) Explain(id backend.ID, s backend.State) (Rule, string) {
	c := p.rule(id.Tenant, id.Operation)
	var b strings.Builder
	if c == noRule {
		b.WriteString("no rule matches; the default of idem decides")
	} else {
		fmt.Fprintf(&b, "rule %d (%s) decides: ", c.index+1, c)
		if c.Tenant == "" {
			b.WriteString("any tenant, ")
		} else {
			b.WriteString("this tenant, ")
		}
		b.WriteString(c.pattern.kind.String())
		var passed []string
		for i := range p.rules {
			d := &p.rules[i]
			if d != c && (d.Tenant == "" || d.Tenant == id.Tenant) && d.pattern.matches(id.Operation) {
				passed = append(passed, fmt.Sprintf("rule %d (%s)", d.index+1, d))
			}
		}
		if len(passed) > 0 {
			b.WriteString("; more specific than " + strings.Join(passed, ", "))
		}
	}
	b.WriteString("; ")
	b.WriteString(c.says(s))
	return c.copy(), b.String()
}

// says is what a rule gives for an outcome.
func (c *compiled) says(s backend.State) string {
	switch s {
	case backend.Completed:
		return fmt.Sprintf("completed: replay %s, dedup %s", Show(c.Replay), Show(c.Dedup))
	case backend.Failed:
		return fmt.Sprintf("failed: replayed and recognised for %s", Show(c.Failed))
	case backend.InFlight:
		return fmt.Sprintf("in flight: if abandoned under rerun, remembered for %s after the lease", Show(c.Abandoned))
	case backend.Uncertain:
		return "uncertain: no window until it is settled"
	}
	return s.String() + ": no window by policy"
}
