package view

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Colour is what a cell is drawn in, on a terminal.
type Colour string

// The colours: each one is the end of an ANSI sequence.
const (
	Plain  Colour = ""
	Bold   Colour = "1"
	Dim    Colour = "2"
	Red    Colour = "31"
	Green  Colour = "32"
	Yellow Colour = "33"
	Cyan   Colour = "36"
)

// Paint returns text in the colour.
func (c Colour) Paint(text string) string {
	if c == Plain {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Coloured reports whether colours belong on w: on a terminal, unless NO_COLOR is
// set or the terminal knows none.
func Coloured(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(w)
}

// Cell is a piece of text in a colour.
type Cell struct {
	Text   string
	Colour Colour
}

// C returns a plain cell.
func C(text string) Cell { return Cell{Text: text} }

// Table is text in columns. A column is as wide as its widest cell; the last one
// is not filled up.
type Table struct {
	Header []string // none: no header
	Rows   [][]Cell
}

// Add appends a row.
func (t *Table) Add(cells ...Cell) { t.Rows = append(t.Rows, cells) }

// Write prints the table, with colours if w is a terminal.
func (t *Table) Write(w io.Writer) error {
	coloured := Coloured(w)
	rows := t.Rows
	if t.Header != nil {
		header := make([]Cell, len(t.Header))
		for i, h := range t.Header {
			header[i] = Cell{h, Bold}
		}
		rows = append([][]Cell{header}, rows...)
	}
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			text := c.Text
			if coloured {
				text = c.Colour.Paint(text)
			}
			b.WriteString(text)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.Text)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Text makes stored text safe for a terminal: what could move the cursor, or is
// not valid, is shown quoted.
func Text(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) && utf8.ValidString(s) {
		return s
	}
	return strconv.Quote(s)
}

// Bytes is a size as people read it.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	size, names := float64(n)/unit, "KMGTPE"
	for size >= unit && len(names) > 1 {
		size, names = size/unit, names[1:]
	}
	return fmt.Sprintf("%.1f %ciB", size, names[0])
}
