// Package batch runs a command once for each record of an input: it reads the
// records, makes key and command line of each by templates, runs several at a time
// and says how it goes.
package batch

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Record is one record of the input.
type Record struct {
	Number int // of the line it begins on, from 1; the header of a CSV file counts
	Fields map[string]any
	raw    []string // cells of a CSV record, else the line
}

// Source reads records.
type Source interface {
	// Next returns the next record, or io.EOF.
	Next() (*Record, error)
	// Names are the fields that every record has; nil where each has its own.
	Names() []string
	// Write writes a record so that the same kind of source reads it again.
	Write(w io.Writer, r *Record) error
	// Begin writes what goes before the first record.
	Begin(w io.Writer) error
}

// Formats are the names of the formats that [NewSource] takes.
func Formats() []string { return []string{"lines", "csv", "jsonl"} }

// NewSource returns the source of one of the [Formats] over in.
func NewSource(format string, in io.Reader) (Source, error) {
	// A file that an editor of another system wrote may begin with a mark.
	buffered := bufio.NewReaderSize(in, 64<<10)
	if mark, _ := buffered.Peek(3); string(mark) == "\xef\xbb\xbf" {
		_, _ = buffered.Discard(3)
	}
	switch format {
	case "lines":
		return &lines{in: buffered}, nil
	case "jsonl":
		return &jsonLines{lines{in: buffered}}, nil
	case "csv":
		return newCSV(buffered)
	}
	return nil, fmt.Errorf("idem: --format takes %s, not %q", strings.Join(Formats(), ", "), format)
}

// maxLine bounds one record.
const maxLine = 16 << 20

// lines are records of one line each; empty lines are no records.
type lines struct {
	in     *bufio.Reader
	number int
}

func (l *lines) next() (string, error) {
	for {
		line, err := l.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long := bytes.Clone(line)
			for errors.Is(err, bufio.ErrBufferFull) && len(long) <= maxLine {
				line, err = l.in.ReadSlice('\n')
				long = append(long, line...)
			}
			if line = long; len(long) > maxLine {
				return "", fmt.Errorf("idem: line %d of the input is longer than %d MiB", l.number+1, maxLine>>20)
			}
		}
		if len(line) == 0 && err != nil {
			return "", err
		}
		l.number++
		if text := strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"); text != "" {
			return text, nil
		}
	}
}

func (l *lines) Next() (*Record, error) {
	text, err := l.next()
	if err != nil {
		return nil, err
	}
	return &Record{Number: l.number, Fields: map[string]any{"line": text, "number": l.number}, raw: []string{text}}, nil
}

func (l *lines) Names() []string { return []string{"line", "number"} }

func (l *lines) Begin(io.Writer) error { return nil }

func (l *lines) Write(w io.Writer, r *Record) error {
	_, err := io.WriteString(w, r.raw[0]+"\n")
	return err
}

// jsonLines are records that are JSON objects, one a line.
type jsonLines struct{ lines }

func (l *jsonLines) Next() (*Record, error) {
	text, err := l.next()
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber() // as written: 1e21 and 9007199254740993 stay what they are
	var fields map[string]any
	if err := dec.Decode(&fields); err != nil || fields == nil {
		return nil, fmt.Errorf("idem: line %d of the input is no JSON object: %.60s", l.number, text)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("idem: line %d of the input has something behind its JSON object", l.number)
	}
	dropNulls(fields)
	if _, ok := fields["number"]; !ok {
		fields["number"] = l.number
	}
	return &Record{Number: l.number, Fields: fields, raw: []string{text}}, nil
}

func (l *jsonLines) Names() []string { return nil }

// dropNulls takes out what is null: it must not become part of a key.
func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, e any) bool { return e == nil })
		for _, e := range v {
			dropNulls(e)
		}
	case []any:
		for _, e := range v {
			dropNulls(e)
		}
	}
}

// table is a CSV file with a header.
type table struct {
	in    *csv.Reader
	names []string
}

func newCSV(in io.Reader) (*table, error) {
	t := &table{in: csv.NewReader(in)}
	names, err := t.in.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("idem: the input is empty; a CSV file begins with a line of column names")
	case err != nil:
		return nil, fmt.Errorf("idem: the header of the CSV input cannot be read: %w", err)
	}
	seen := map[string]bool{}
	for i, n := range names {
		if n == "" || seen[n] {
			return nil, fmt.Errorf("idem: the header of the CSV input: column %d has no name of its own (%q)", i+1, n)
		}
		seen[n] = true
	}
	t.names = names
	return t, nil
}

func (t *table) Next() (*Record, error) {
	cells, err := t.in.Read()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("idem: the CSV input cannot be read: %w", err)
	}
	r := &Record{Fields: make(map[string]any, len(cells)+1), raw: cells}
	r.Number, _ = t.in.FieldPos(0)
	r.Fields["number"] = r.Number
	for i, c := range cells {
		r.Fields[t.names[i]] = c
	}
	return r, nil
}

func (t *table) Names() []string {
	if slices.Contains(t.names, "number") {
		return t.names
	}
	return append(slices.Clone(t.names), "number")
}

func (t *table) Begin(w io.Writer) error { return writeCSV(w, t.names) }

func (t *table) Write(w io.Writer, r *Record) error { return writeCSV(w, r.raw) }

func writeCSV(w io.Writer, cells []string) error {
	c := csv.NewWriter(w)
	_ = c.Write(cells) // kept by c
	c.Flush()
	return c.Error()
}
