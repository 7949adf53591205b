package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
)

// maxSize bounds the file: more than this is a mistake in the name.
const maxSize = 1 << 20

// Settings are what a file says about how an operation is run. A zero field was not
// given.
type Settings struct {
	// Lease is how long a crash blocks the key.
	Lease time.Duration
	// OnAbandoned is backend.Rerun or backend.Hold.
	OnAbandoned backend.Abandoned
}

// File is what a file of policies says. It does not change once read. A nil *File
// says nothing: everything is the default.
type File struct {
	policy *expiry.Policy
	rules  map[name]entry
	lines  []int // by rule, in the order of the file
}

// name identifies a rule: no two have the same.
type name struct{ tenant, operation string }

// entry is what a file says besides the retention.
type entry struct {
	Settings
	line int
}

// Load reads policies from r, YAML or JSON. The error is an [*Error] with all
// problems, in the order of their lines.
func Load(r io.Reader) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, &Error{Problems: []Problem{{Text: "cannot be read: " + cause(err)}}}
	}
	if len(data) > maxSize {
		return nil, &Error{Problems: []Problem{{Text: fmt.Sprintf("has more than %d bytes; it is no file of policies", maxSize)}}}
	}
	return parse(data)
}

// Open reads the file at path as Load does.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{Path: path, Problems: []Problem{{Text: "cannot be read: " + cause(err)}}}
	}
	defer func() { _ = f.Close() }()
	file, err := Load(f)
	var refused *Error
	if errors.As(err, &refused) {
		refused.Path = path
	}
	return file, err
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

// Policy is the retention policy of the file.
func (f *File) Policy() *expiry.Policy {
	if f == nil {
		return nil
	}
	return f.policy
}

// Settings returns how operations of a scope are run, by the rule that decides about
// their retention, too. The key of the ID does not matter.
func (f *File) Settings(id backend.ID) Settings {
	e, _ := f.entry(id)
	return e.Settings
}

// Line returns the line of the rule that decides for a scope; 0 where none does.
func (f *File) Line(id backend.ID) int {
	e, _ := f.entry(id)
	return e.line
}

// RuleSettings returns what the file says besides the retention of one of its
// policy's rules, and the rule's line; 0 if it is none of them.
func (f *File) RuleSettings(r *expiry.Rule) (Settings, int) {
	if f == nil {
		return Settings{}, 0
	}
	e := f.rules[name{r.Tenant, r.Operation}]
	return e.Settings, e.line
}

func (f *File) entry(id backend.ID) (entry, bool) {
	if f == nil {
		return entry{}, false
	}
	r := f.policy.Rule(id)
	e, ok := f.rules[name{r.Tenant, r.Operation}]
	return e, ok
}

// Remembers compares the file with the one that is in force until now, the time of
// the change, see [expiry.Policy.Remembers]. Its error for rules that forget is an
// [*Error] with the lines of f.
func (f *File) Remembers(old *File, now time.Time) error {
	err := f.Policy().Remembers(old.Policy(), now)
	rules := ruleErrors(err)
	if len(rules) == 0 {
		return err
	}
	var refused Error
	for _, one := range rules {
		refused.Problems = append(refused.Problems, Problem{Line: f.lines[one.Index], Text: one.Rule + ": " + one.Text})
	}
	return &refused
}

// ruleErrors takes apart what package expiry joined.
func ruleErrors(err error) (all []*expiry.RuleError) {
	var one *expiry.RuleError
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			if errors.As(e, &one) {
				all = append(all, one)
			}
		}
	} else if errors.As(err, &one) {
		all = append(all, one)
	}
	return all
}

func byLine(a, b Problem) int { return cmp.Compare(a.Line, b.Line) }
