package expiry

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Remembers compares the policy with the one that was in force before it, and
// returns a joined error of [RuleError]s for rules that have forgotten: their
// operations had a shorter dedup window before, keys carry their issue time, and
// [Rule.Was] does not say so. Under such a rule a key whose record is gone would
// count as one that was never used. Run it when a file of policies is reviewed:
// idem policy check --against.
//
// Patterns are compared as a whole, so that a rule may be named although no
// operation of it was ever called. One more entry in Was refuses a few late keys
// more, and never runs anything twice.
func (p *Policy) Remembers(old *Policy) error {
	var problems []error
	if p == nil || old == nil {
		return nil
	}
	before := old.rules
	if old.ruleOf("", "*") == nil {
		before = append(slices.Clip(before), compiled{Rule: noRule.Rule, pattern: parsePattern("*"), index: -1})
	}
	for i := range p.rules {
		n := &p.rules[i]
		if n.Issued == NotDeclared {
			continue
		}
		was := old.ruleOf(n.Tenant, n.Operation)
		var worst *compiled
		for j := range before {
			o := &before[j]
			switch {
			case o.Tenant != "" && n.Tenant != "" && o.Tenant != n.Tenant, !n.pattern.overlaps(&o.pattern):
				continue // no operation in common
			case was != nil && was.compare(o) < 0 && (o.Tenant == n.Tenant || o.Tenant == ""):
				continue // what this rule matches was decided by a more specific one
			}
			if now := p.ruleOf(o.Tenant, o.Operation); now != nil && now != n && now.compare(n) < 0 {
				continue // what it matched is decided by another rule now
			}
			if worst == nil || o.shortest(time.Time{}) < worst.shortest(time.Time{}) {
				worst = o
			}
		}
		if worst == nil {
			continue
		}
		if d := worst.shortest(time.Time{}); d < n.shortest(time.Time{}) {
			w := wrong("was", "its operations had a dedup window of %v before (%s), and it does not say so: keys whose records are gone would count as new; add was: [%v]", Show(d), worst, Show(d))
			problems = append(problems, &RuleError{Index: n.index, Field: w.field, Rule: n.String(), Other: -1, Text: w.text})
		}
	}
	slices.SortStableFunc(problems, func(a, b error) int { return cmp.Compare(a.(*RuleError).Index, b.(*RuleError).Index) })
	return errors.Join(problems...)
}

// ruleOf returns the rule with exactly this tenant and operation.
func (p *Policy) ruleOf(tenant, operation string) *compiled {
	for i := range p.rules {
		if c := &p.rules[i]; c.Tenant == tenant && c.Operation == operation {
			return c
		}
	}
	return nil
}

// overlaps reports whether some operation matches both patterns.
func (p *pattern) overlaps(q *pattern) bool {
	switch {
	case p.kind == exact:
		return q.matches(p.first)
	case q.kind == exact:
		return p.matches(q.first)
	}
	return p.meets(q)
}
