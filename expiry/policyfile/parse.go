package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// minLease is what idem asks for at least.
const minLease = 10 * time.Millisecond

// parser turns nodes of the document into rules, keeping their lines.
type parser struct {
	problems []Problem
	rules    []expiry.Rule
	settings []Settings
	lines    []map[string]int // by rule: field to line, "" is the rule itself
}

// refuse notes a problem and goes on: people want to hear of all at once.
func (p *parser) refuse(n *yaml.Node, format string, args ...any) {
	p.problems = append(p.problems, Problem{Line: n.Line, Text: fmt.Sprintf(format, args...)})
}

func parse(data []byte) (*File, error) {
	root, problem := document(data)
	if problem != nil {
		return nil, &Error{Problems: []Problem{*problem}}
	}
	var p parser
	p.fields(root, "the file", []string{"policies"}, func(_ string, v *yaml.Node) {
		if v.Kind != yaml.SequenceNode {
			p.refuse(v, "policies must be a list")
			return
		}
		for _, n := range v.Content {
			p.rule(n)
		}
	})
	if len(p.rules) == 0 && len(p.problems) == 0 {
		p.refuse(root, "there is no policy in it")
	}
	policy, err := expiry.New(p.rules...)
	for _, e := range ruleErrors(err) {
		if p.lines[e.Index] == nil { // its fields were refused already
			continue
		}
		line, ok := p.lines[e.Index][e.Field]
		if !ok {
			line = p.lines[e.Index][""]
		}
		text := e.Text
		if e.Field == "operation" && p.rules[e.Index].Operation != "" {
			text = p.rules[e.Index].String() + ": " + text
		}
		if e.Other >= 0 && p.lines[e.Other] != nil {
			text += fmt.Sprintf(" (rule %d is in line %d)", e.Other+1, p.lines[e.Other][""])
		}
		p.problems = append(p.problems, Problem{Line: line, Text: text})
	}
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, byLine)
		return nil, &Error{Problems: p.problems}
	}
	f := &File{policy: policy, rules: make(map[name]entry)}
	for i, r := range p.rules {
		line := p.lines[i][""]
		f.rules[name{r.Tenant, r.Operation}] = entry{p.settings[i], line}
		f.lines = append(f.lines, line)
	}
	return f, nil
}

// document returns the only node of the only document.
func document(data []byte) (*yaml.Node, *Problem) {
	if t := bytes.TrimSpace(data); len(t) > 0 && t[0] == '{' {
		// JSON may be indented with tabs, which YAML refuses. Inside a JSON string
		// there are none.
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, &Problem{Text: "is empty; it needs a list under policies"}
	} else if err != nil {
		return nil, syntax(err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, &Problem{Line: more.Line, Text: "a second document; only one is read"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntax(err)
	}
	return doc.Content[0], nil
}

// syntax keeps the line that the decoder names.
func syntax(err error) *Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if _, scan := fmt.Sscanf(text, "line %d:", &line); scan == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &Problem{Line: line, Text: "neither YAML nor JSON: " + text}
}

// rule reads one policy. One with a field that cannot be read keeps its place, so
// that the numbers of the others stay, and its other problems are not reported: they
// may be consequences.
func (p *parser) rule(n *yaml.Node) {
	var (
		r     expiry.Rule
		s     Settings
		lines = map[string]int{"": n.Line}
		count = len(p.problems)
	)
	known := []string{
		"operation", "tenant", "preset", "replay", "dedup", "failed", "abandoned", "horizons",
		"issued", "skew", "was", "lease", "onAbandoned",
	}
	p.fields(n, "a policy", known, func(name string, v *yaml.Node) {
		lines[name] = v.Line
		switch name {
		case "horizons":
			p.horizons(v, &r.Horizons, lines)
		case "was":
			p.was(v, &r)
		case "replay":
			p.window(v, name, &r.Replay)
		case "dedup":
			p.window(v, name, &r.Dedup)
		case "failed":
			p.window(v, name, &r.Failed)
		case "abandoned":
			p.window(v, name, &r.Abandoned)
		case "skew":
			p.window(v, name, &r.Skew)
		case "lease":
			if p.window(v, name, &s.Lease) && s.Lease < minLease {
				p.refuse(v, "lease is %v; it must be at least %v", s.Lease, minLease)
			}
		default:
			p.word(v, name, &r, &s)
		}
	})
	if len(p.problems) > count {
		r, lines = expiry.Rule{}, nil
	}
	p.rules, p.settings, p.lines = append(p.rules, r), append(p.settings, s), append(p.lines, lines)
}

// word reads a field that holds a name.
func (p *parser) word(v *yaml.Node, name string, r *expiry.Rule, s *Settings) {
	if !p.scalar(v, name) {
		return
	}
	switch name {
	case "operation":
		r.Operation = v.Value
	case "tenant":
		r.Tenant = v.Value
	case "preset":
		r.Preset = v.Value
	case "issued":
		issued, err := expiry.ParseIssued(v.Value)
		if err != nil {
			p.refuse(v, "%s", strings.TrimPrefix(err.Error(), "idem: "))
		}
		r.Issued = issued
	case "onAbandoned":
		switch v.Value {
		case "rerun":
			s.OnAbandoned = backend.Rerun
		case "hold":
			s.OnAbandoned = backend.Hold
		default:
			p.refuse(v, "onAbandoned is %q; it must be rerun or hold", v.Value)
		}
	}
}

func (p *parser) horizons(n *yaml.Node, h *expiry.Horizons, lines map[string]int) {
	into := map[string]*time.Duration{
		"clientRetry": &h.ClientRetry, "queueRedrive": &h.QueueRedrive, "webhookReplay": &h.WebhookReplay,
		"operatorReplay": &h.OperatorReplay, "settlement": &h.Settlement,
	}
	known := []string{"clientRetry", "queueRedrive", "webhookReplay", "operatorReplay", "settlement"}
	p.fields(n, "horizons", known, func(name string, v *yaml.Node) {
		lines["horizons."+name] = v.Line
		p.window(v, "horizon "+name, into[name])
	})
}

// was reads the earlier windows: 12h, or {dedup: 12h, until: TIME}.
func (p *parser) was(n *yaml.Node, r *expiry.Rule) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.refuse(n, "was must be a list of earlier dedup windows, such as [12h]")
		return
	}
	for _, v := range n.Content {
		var past expiry.Past
		if v.Kind != yaml.MappingNode {
			p.window(v, "an earlier window", &past.Dedup)
			r.Was = append(r.Was, past)
			continue
		}
		given := false
		p.fields(v, "an earlier window", []string{"dedup", "until"}, func(name string, v *yaml.Node) {
			if name == "dedup" {
				given = true
				p.window(v, "an earlier window", &past.Dedup)
			} else if p.scalar(v, name) {
				p.until(v, &past.Until)
			}
		})
		if !given {
			p.refuse(v, "an earlier window without its dedup; write {dedup: 12h, until: 2026-03-01T00:00:00Z}")
		}
		r.Was = append(r.Was, past)
	}
}

func (p *parser) until(v *yaml.Node, into *time.Time) {
	t, err := time.Parse(time.RFC3339, v.Value)
	if err != nil || t.IsZero() {
		p.refuse(v, "until is %q; it must be a time with its zone, such as 2026-03-01T00:00:00Z", v.Value)
		return
	}
	*into = t
}

// fields calls set for every field of a mapping and refuses the names that are not
// known or given twice.
func (p *parser) fields(n *yaml.Node, what string, known []string, set func(string, *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.refuse(n, "%s must be made of names and values: %s", what, strings.Join(known, ", "))
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, v := n.Content[i], n.Content[i+1]
		switch {
		case name.Kind != yaml.ScalarNode || !slices.Contains(known, name.Value):
			p.refuse(name, "unknown field %q; %s has: %s", name.Value, what, strings.Join(known, ", "))
		case seen[name.Value]:
			p.refuse(name, "%s is given twice", name.Value)
		default:
			seen[name.Value] = true
			set(name.Value, v)
		}
	}
}

// scalar refuses what is not one value: lists, references, nothing at all.
func (p *parser) scalar(v *yaml.Node, name string) bool {
	if v.Kind != yaml.ScalarNode || v.Value == "" || v.ShortTag() == "!!null" {
		p.refuse(v, "%s must be one value", name)
		return false
	}
	return true
}

// window reads a duration. A file that says zero means something, and nobody can
// know what.
func (p *parser) window(v *yaml.Node, name string, d *time.Duration) bool {
	if !p.scalar(v, name) {
		return false
	}
	parsed, err := expiry.ParseWindow(v.Value)
	switch {
	case err != nil:
		p.refuse(v, "%s: %s", name, strings.TrimPrefix(err.Error(), "idem: "))
	case parsed <= 0:
		p.refuse(v, "%s is %v; it must be positive: zero is neither for ever nor not at all", name, parsed)
	default:
		*d = parsed
		return true
	}
	return false
}
