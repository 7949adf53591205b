package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/goidem/idem"
)

// Error is a configuration file that cannot be used.
type Error struct {
	Path string
	Line int // 0: the file as a whole
	Text string
}

// Error names file, line and problem.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("idem: configuration %s: %s; nothing was run", e.Path, e.Text)
	}
	return fmt.Sprintf("idem: configuration %s, line %d: %s; nothing was run", e.Path, e.Line, e.Text)
}

// maxSize bounds the file: more than this is a mistake in the name.
const maxSize = 1 << 20

// Load reads a file of policies, YAML or JSON. It is strict: a name that it does
// not know is refused with its line, because a policy that is silently not applied
// is found out after the accident.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	p := parser{path: path}
	c, err := p.parse(data)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{Path: path, Text: "cannot be read: " + cause(err)}
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, &Error{Path: path, Text: "cannot be read: " + cause(err)}
	}
	if len(data) > maxSize {
		return nil, &Error{Path: path, Text: fmt.Sprintf("has more than %d bytes; it is no file of policies", maxSize)}
	}
	return data, nil
}

// cause is what the system said, without the path, which stands in the message.
func cause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// parser turns nodes of the document into rules, keeping their lines.
type parser struct{ path string }

func (p *parser) fail(n *yaml.Node, format string, args ...any) error {
	return &Error{Path: p.path, Line: n.Line, Text: fmt.Sprintf(format, args...)}
}

func (p *parser) parse(data []byte) (*Config, error) {
	if t := bytes.TrimSpace(data); len(t) > 0 && t[0] == '{' {
		// JSON may be indented with tabs, which YAML refuses. Inside a JSON string
		// there are none.
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, &Error{Path: p.path, Text: "is empty; it needs a list under policies"}
	} else if err != nil {
		return nil, p.syntax(err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, p.fail(&more, "a second document; only one is read")
	} else if !errors.Is(err, io.EOF) {
		return nil, p.syntax(err)
	}
	var c Config
	err := p.fields(doc.Content[0], "the file", []string{"policies"}, func(_ string, v *yaml.Node) error {
		if v.Kind != yaml.SequenceNode {
			return p.fail(v, "policies must be a list")
		}
		return p.rules(v, &c)
	})
	if err == nil && len(c.rules) == 0 {
		err = p.fail(doc.Content[0], "there is no policy in it")
	}
	return &c, err
}

// syntax keeps the line that the decoder names.
func (p *parser) syntax(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if _, scan := fmt.Sscanf(text, "line %d:", &line); scan == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &Error{Path: p.path, Line: line, Text: "neither YAML nor JSON: " + text}
}

func (p *parser) rules(list *yaml.Node, c *Config) error {
	lines := make(map[string]int)
	for _, n := range list.Content {
		r, err := p.rule(n)
		if err != nil {
			return err
		}
		if before := lines[r.Operation]; before != 0 {
			return p.fail(n, "operation %s has a policy already, in line %d", r.Operation, before)
		}
		lines[r.Operation] = n.Line
		c.rules = append(c.rules, r)
	}
	return nil
}

func (p *parser) rule(n *yaml.Node) (Rule, error) {
	var r Rule
	known := []string{"operation", "replay", "dedup", "lease", "onAbandoned"}
	err := p.fields(n, "a policy", known, func(name string, v *yaml.Node) error {
		if v.Kind != yaml.ScalarNode || v.Value == "" {
			return p.fail(v, "%s must be one value", name)
		}
		switch name {
		case "operation":
			if at := strings.IndexByte(v.Value, '*'); at >= 0 && at != len(v.Value)-1 {
				return p.fail(v, "operation %s: a * may stand at the end only", v.Value)
			}
			r.Operation = v.Value
			return nil
		case "replay":
			return p.duration(v, name, &r.Replay)
		case "dedup":
			return p.duration(v, name, &r.Dedup)
		case "lease":
			return p.duration(v, name, &r.Lease)
		}
		switch v.Value {
		case "rerun":
			r.OnAbandoned = idem.Rerun
		case "hold":
			r.OnAbandoned = idem.Hold
		default:
			return p.fail(v, "onAbandoned is %q; it must be rerun or hold", v.Value)
		}
		return nil
	})
	switch {
	case err != nil:
		return r, err
	case r.Operation == "":
		return r, p.fail(n, "a policy without its operation; write operation: NAME, or PREFIX* for all that begin so")
	case r.Lease != 0 && r.Lease < 10*time.Millisecond:
		return r, p.fail(n, "a lease of %v; it must be at least 10ms", r.Lease)
	case r.windows().Replay > r.windows().Dedup:
		return r, p.fail(n, "replay is %v and dedup %v: a result cannot be kept longer than its key", r.Replay, r.Dedup)
	}
	return r, nil
}

// fields calls set for every field of a mapping and refuses the names that are not
// known or given twice.
func (p *parser) fields(n *yaml.Node, what string, known []string, set func(string, *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return p.fail(n, "%s must be made of names and values: %s", what, strings.Join(known, ", "))
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, v := n.Content[i], n.Content[i+1]
		is := false
		for _, k := range known {
			is = is || k == name.Value
		}
		if !is {
			return p.fail(name, "unknown field %q; %s has: %s", name.Value, what, strings.Join(known, ", "))
		}
		if seen[name.Value] {
			return p.fail(name, "%s is given twice", name.Value)
		}
		seen[name.Value] = true
		if err := set(name.Value, v); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) duration(n *yaml.Node, name string, d *time.Duration) error {
	v, err := ParseDuration(n.Value)
	if err != nil {
		return p.fail(n, "%s: %s", name, strings.TrimPrefix(err.Error(), "idem: "))
	}
	if v <= 0 {
		return p.fail(n, "%s is %v; it must be positive: zero is neither for ever nor not at all", name, v)
	}
	*d = v
	return nil
}
