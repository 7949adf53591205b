package report

import (
	"fmt"
	"html"
	"strings"
)

// table is rows of cells, for Markdown and for HTML alike.
type table struct {
	Head []string
	Rows [][]cell
	Note string // below it
}

// cell is text with a colour: good, weak, bad, mute, or none.
type cell struct {
	Text  string
	Class string
	About string // shown by a mouse; HTML only
}

// Classes are the cell's classes on the page.
func (c cell) Classes() string {
	const long = 30 // what is longer is broken into lines
	if len(c.Text) > long {
		return strings.TrimSpace(c.Class + " long")
	}
	return c.Class
}

func plain(text string) cell { return cell{Text: text} }

// markdown writes the table in the form of GitHub. The colour of a cell is in its text.
func (t table) markdown(b *strings.Builder) {
	if len(t.Rows) == 0 {
		b.WriteString("Nothing.\n")
		return
	}
	row := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	head := make([]string, len(t.Head))
	rule := make([]string, len(t.Head))
	for i, h := range t.Head {
		head[i], rule[i] = escapeMarkdown(h), "---"
	}
	row(head)
	row(rule)
	for _, cells := range t.Rows {
		texts := make([]string, len(cells))
		for i, c := range cells {
			texts[i] = escapeMarkdown(c.Text)
			if c.Class == "bad" && c.Text != "" {
				texts[i] = "**" + texts[i] + "**"
			}
		}
		row(texts)
	}
	if t.Note != "" {
		fmt.Fprintf(b, "\n%s\n", escapeMarkdown(t.Note))
	}
}

// escapeMarkdown makes text that stays text: in a table, and where HTML is let through.
func escapeMarkdown(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			b.WriteByte(' ')
		case r < ' ' || r == 0x7f:
			// left out
		case strings.ContainsRune("<>&", r):
			b.WriteString(html.EscapeString(string(r)))
		case strings.ContainsRune("\\`*_[]|#~", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
