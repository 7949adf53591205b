package policyfile

import (
	"fmt"
	"strings"
)

// Error is a file of policies that is refused. A retry does not help: the file has
// to be mended.
type Error struct {
	Path     string // empty: not read from a file
	Problems []Problem
}

// Problem is one thing that is wrong in a file.
type Problem struct {
	Line int    `json:"line"` // 0: the file as a whole
	Text string `json:"text"`
}

// Error names the file and the first problem with its line, and says how many more
// there are.
func (e *Error) Error() string {
	if len(e.Problems) == 0 {
		return "idem: configuration" + e.name()
	}
	text := e.Line(e.Problems[0])
	if more := len(e.Problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// Line is the message for one problem.
func (e *Error) Line(p Problem) string {
	if p.Line == 0 {
		return fmt.Sprintf("idem: configuration%s: %s", e.name(), p.Text)
	}
	return fmt.Sprintf("idem: configuration%s, line %d: %s", e.name(), p.Line, p.Text)
}

func (e *Error) name() string {
	if e.Path == "" {
		return ""
	}
	return " " + strings.ToValidUTF8(e.Path, "?")
}
