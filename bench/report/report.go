// Package report turns the data of a run into what people read: Markdown, one HTML page
// with plots, the tables of docs/choosing.md, and the comparison of two runs.
//
// The page is self-contained: its plots are SVG inside it, it loads nothing and runs no
// script, and it follows the reader's choice of a light or a dark screen. Whatever comes
// from the data is escaped, for a report may come from somebody else.
package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goidem/idem/bench/result"
)

// Names of the files of a report, in its folder.
const (
	JSONFile     = "report.json"
	MarkdownFile = "report.md"
	HTMLFile     = "report.html"
)

// WriteDir writes the three forms of r into a folder, which it makes when it is not there.
// Each file appears whole or not at all, so that a reader who looks while a later run
// replaces it never sees half of one.
func WriteDir(dir string, r *result.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		return err
	}
	if err := replace(filepath.Join(dir, JSONFile), text.Bytes()); err != nil {
		return err
	}
	if err := replace(filepath.Join(dir, MarkdownFile), []byte(Markdown(r))); err != nil {
		return err
	}
	page, err := HTML(r)
	if err != nil {
		return err
	}
	return replace(filepath.Join(dir, HTMLFile), page)
}

func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".bench-*")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer os.Remove(f.Name()) // nothing is there when the renaming was done
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
