package batch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/goidem/idem"
)

// Templates make the key and the command line of a record.
type Templates struct {
	key  *one
	args []*one
}

// one is one template. Most are plain text or one field, which are filled in
// without the machinery.
type one struct {
	name  string
	plain string
	field string
	t     *template.Template
}

// lone matches a template that is one field and nothing else.
func lone(text string) (field string, ok bool) {
	text, ok = strings.CutPrefix(text, "{{")
	text, ok2 := strings.CutSuffix(text, "}}")
	text = strings.TrimSpace(text)
	if !ok || !ok2 || len(text) < 2 || text[0] != '.' {
		return "", false
	}
	for _, r := range text[1:] {
		if r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return "", false
		}
	}
	return text[1:], true
}

// functions are what templates may call besides those of text/template.
func functions() template.FuncMap {
	return template.FuncMap{
		"join": func(parts ...any) (string, error) {
			words := make([]string, len(parts))
			for i, p := range parts {
				if words[i] = fmt.Sprint(p); words[i] == "" {
					return "", errors.New("an empty part in join")
				}
			}
			return string(idem.JoinKey(words...)), nil
		},
		"lower": strings.ToLower,
		"upper": strings.ToUpper,
		"trim":  strings.TrimSpace,
		"env":   os.Getenv,
	}
}

// Parse parses the template of the key and those of the command line.
func Parse(key string, args []string) (*Templates, error) {
	t := new(Templates)
	var err error
	if t.key, err = parseOne("--key", key); err != nil {
		return nil, err
	}
	if t.key.t == nil && t.key.field == "" {
		return nil, fmt.Errorf("idem: --key %q is the same for every record; name a field, such as {{.line}} or {{.id}}", key)
	}
	for i, a := range args {
		one, err := parseOne(fmt.Sprintf("argument %d", i), a)
		if err != nil {
			return nil, err
		}
		t.args = append(t.args, one)
	}
	return t, nil
}

func parseOne(name, text string) (*one, error) {
	if !strings.Contains(text, "{{") {
		return &one{name: name, plain: text}, nil
	}
	if field, ok := lone(text); ok {
		return &one{name: name, field: field}, nil
	}
	t, err := template.New(name).Option("missingkey=error").Funcs(functions()).Parse(text)
	if err != nil {
		_, problem, _ := strings.Cut(err.Error(), name+":")
		return nil, fmt.Errorf("idem: the template of %s cannot be read: %s", name, problem)
	}
	return &one{name: name, t: t}, nil
}

// Program is the program to run if it is the same for every record.
func (t *Templates) Program() (name string, same bool) {
	first := t.args[0]
	return first.plain, first.t == nil && first.field == ""
}

// Fill makes key and command line of a record.
func (t *Templates) Fill(r *Record) (idem.Key, []string, error) {
	key, err := t.key.fill(r)
	if err != nil {
		return "", nil, err
	}
	args := make([]string, len(t.args))
	for i, a := range t.args {
		if args[i], err = a.fill(r); err != nil {
			return "", nil, err
		}
	}
	return idem.Key(key), args, nil
}

func (o *one) fill(r *Record) (string, error) {
	switch {
	case o.field != "":
		v, ok := r.Fields[o.field]
		if !ok {
			return "", o.unknown(o.field, r)
		}
		if s, ok := v.(string); ok {
			return s, nil
		}
		return fmt.Sprint(v), nil
	case o.t == nil:
		return o.plain, nil
	}
	var text strings.Builder
	if err := o.t.Execute(&text, r.Fields); err != nil {
		if m := regexp.MustCompile(`map has no entry for key "(.*)"$`).FindStringSubmatch(err.Error()); m != nil {
			return "", o.unknown(m[1], r)
		}
		_, problem, _ := strings.Cut(err.Error(), ": executing ")
		return "", fmt.Errorf("idem: the template of %s fails: %s", o.name, problem)
	}
	return text.String(), nil
}

// unknown says that a record has no such field.
func (o *one) unknown(field string, r *Record) error {
	return &FieldError{Template: o.name, Field: field, Known: slices.Sorted(maps.Keys(r.Fields))}
}

// FieldError is a template that names a field which a record does not have.
type FieldError struct {
	Template, Field string
	Known           []string
}

// Error names the field and those that there are.
func (e *FieldError) Error() string {
	return fmt.Sprintf("idem: the template of %s names the field %q, which is not there (or null); there are: %s", e.Template, e.Field, strings.Join(e.Known, ", "))
}
