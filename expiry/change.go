package expiry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Remembers compares the policy with the one that is in force until now, the time of
// the change, and returns a joined error of [RuleError]s for rules that forget: keys
// of their operations carry their issue time, a dedup window was shorter, and
// [Rule.Was] does not say so for all keys that it applied to. Under such a rule a key
// whose record is gone would count as one that was never used. Run it when a file of
// policies is reviewed: idem policy check --against.
//
// The windows of old itself count for keys issued until now, whatever their rule says
// about earlier ones, and so do those of its Was whose end it does not know. Those
// whose end it knows count for keys issued until then, and may be left out once all
// such keys are late anyway. An end that the new rule gives is taken as it is, as long
// as it is not before now: it has to lie after the last process that uses old.
//
// Nothing is known of policies before old but what its Was says. A rule of old that
// did not declare issue times has none: where its operations begin to declare them,
// windows that were shorter before old have to be added by hand.
//
// Patterns are compared as a whole, so that a rule may be named although no
// operation of it was ever called. One more entry in Was refuses a few late keys
// more, and never runs anything twice. A nil policy is the one without rules.
func (p *Policy) Remembers(old *Policy, now time.Time) error {
	switch {
	case now.IsZero():
		return errors.New("idem: policies cannot be compared without the time of the change")
	case p == nil:
		return nil
	case old == nil:
		old = &Policy{}
	}
	var problems []error
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
		var all []forgotten
		for j := range before {
			o := &before[j]
			switch {
			case o.Tenant != "" && n.Tenant != "" && o.Tenant != n.Tenant, !n.pattern.overlaps(&o.pattern):
				continue // no operation in common
			case was != nil && was.compare(o) < 0 && (o.Tenant == n.Tenant || o.Tenant == ""):
				continue // what this rule matches was decided by a more specific one
			}
			if d := p.ruleOf(o.Tenant, o.Operation); d != nil && d != n && d.compare(n) < 0 {
				continue // what it matched is decided by another rule now
			}
			for _, w := range n.forgets(&o.Rule, now) {
				all = append(all, forgotten{w, o})
			}
		}
		if len(all) > 0 {
			w := missing(all)
			problems = append(problems, &RuleError{Index: n.index, Field: w.field, Rule: n.String(), Other: -1, Text: w.text})
		}
	}
	slices.SortStableFunc(problems, func(a, b error) int { return cmp.Compare(a.(*RuleError).Index, b.(*RuleError).Index) })
	return errors.Join(problems...)
}

// forgotten is a window that a new rule leaves out, and the rule that had it. Without
// an Until it was in force until the change, as far as anybody knows.
type forgotten struct {
	Past
	by *compiled
}

// forgets returns the windows of old, in force until now, that r does not count for
// all keys they applied to. Each is asked for by itself: a shorter one that ended long
// ago says nothing about the keys of today.
func (r *Rule) forgets(old *Rule, now time.Time) (all []Past) {
	today := r.shortest(now)
	if d := min(old.Dedup, old.Failed, old.Abandoned); d < today {
		all = append(all, Past{Dedup: d})
	}
	for _, w := range old.Was {
		counts := today
		if !w.Until.IsZero() {
			// A key of its time is at least as old as its end. If that is late under r,
			// it need not be remembered why.
			if counts = r.shortest(w.Until); now.Sub(w.Until) >= counts {
				continue
			}
		}
		if w.Dedup < counts {
			all = append(all, w)
		}
	}
	return all
}

// missing says what has to be added: the shortest window first, without those that it
// makes good.
func missing(all []forgotten) *problem {
	slices.SortStableFunc(all, func(a, b forgotten) int { return cmp.Compare(a.Dedup, b.Dedup) })
	var add []string
	var kept []forgotten
	for _, f := range all {
		if slices.ContainsFunc(kept, func(k forgotten) bool {
			return k.Until.IsZero() || !f.Until.IsZero() && !k.Until.Before(f.Until)
		}) {
			continue
		}
		kept = append(kept, f)
		if f.Until.IsZero() {
			add = append(add, Show(f.Dedup))
		} else {
			add = append(add, fmt.Sprintf("{dedup: %s, until: %s}", Show(f.Dedup), f.Until.Format(time.RFC3339Nano)))
		}
	}
	first, until := kept[0], "now"
	if !first.Until.IsZero() {
		until = first.Until.Format(time.RFC3339Nano)
	}
	return wrong("was", "its operations had a dedup window of %v before (%s), and it does not say so for all keys issued until %s: keys whose records are gone would count as new; add was: [%s]", Show(first.Dedup), first.by, until, strings.Join(add, ", "))
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
