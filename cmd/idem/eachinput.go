package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/batch"
	"github.com/goidem/idem/cmd/idem/internal/storage"
)

// records is the input of idem each.
type records struct {
	file   *os.File
	source batch.Source
	total  int64 // negative: not known
}

// Close closes the file.
func (r *records) Close() { _ = r.file.Close() }

// openRecords opens the input. A file is read through once before anything is run:
// its records are counted, a broken one is found, and so is a field that the first
// of them does not have. Of other inputs the first record alone is looked at.
func openRecords(name, format string, t *batch.Templates) (*records, error) {
	r := &records{file: os.Stdin, total: -1}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &usageError{err: fmt.Errorf("idem: the input cannot be opened: %w; nothing was run", err), hint: "another file, or - for standard input"}
		}
		r.file = f
	}
	err := r.look(format, t)
	if err != nil {
		r.Close()
		return nil, &usageError{err: fmt.Errorf("%w; nothing was run", err), hint: "idem help each"}
	}
	return r, nil
}

func (r *records) look(format string, t *batch.Templates) error {
	source, err := batch.NewSource(format, r.file)
	if err != nil {
		return err
	}
	first, err := source.Next()
	if err == nil {
		_, _, err = t.Fill(first)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	start, serr := r.file.Seek(0, io.SeekCurrent)
	info, ierr := r.file.Stat()
	if serr != nil || ierr != nil || !info.Mode().IsRegular() || start == 0 {
		r.source = &pushedBack{Source: source, first: first}
		return nil
	}
	n := int64(0)
	for ; err == nil; n++ {
		_, err = source.Next()
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	r.total = n
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("idem: the input cannot be read again: %w", err)
	}
	r.source, err = batch.NewSource(format, r.file)
	return err
}

// pushedBack is a source whose first record has been read already.
type pushedBack struct {
	batch.Source
	first *batch.Record
}

// Next returns the next record.
func (p *pushedBack) Next() (*batch.Record, error) {
	if r := p.first; r != nil {
		p.first = nil
		return r, nil
	}
	return p.Source.Next()
}

// openFailed makes the file for records that did not succeed.
func (o *eachFlags) openFailed(in *records) (*os.File, error) {
	if o.failed == "" {
		return nil, nil
	}
	have, err := os.Stat(o.failed)
	if info, ierr := in.file.Stat(); err == nil && ierr == nil && os.SameFile(have, info) {
		return nil, o.wrong("--failed names the input itself, which would be lost")
	}
	f, err := os.OpenFile(o.failed, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, o.wrong("--failed: %v", err)
	}
	return f, nil
}

// rehearse says what a batch would do.
func (o *eachFlags) rehearse(cmd *cobra.Command, storeName string, in *records, t *batch.Templates) error {
	s, err := lookStore(cmd.Context(), storeName)
	var missing *storage.MissingError
	if err != nil && !errors.As(err, &missing) {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer out.Flush()
	counts := map[string]int{}
	seen := map[idem.Key]bool{}
	for {
		r, err := in.source.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		key, args, err := t.Fill(r)
		what := ""
		switch {
		case err != nil:
			what = "refused"
		case seen[key]:
			what = "same key"
		case s == nil:
			what = "run"
		default:
			if what, err = wouldDo(cmd, s, o.scope, key); err != nil {
				return err
			}
		}
		seen[key] = true
		counts[what]++
		if what == "refused" {
			fmt.Fprintf(out, "%s\tline %d\t%v\n", what, r.Number, err)
			continue
		}
		line := quote(string(key)) + "\t"
		for i, a := range args {
			if i > 0 {
				line += " "
			}
			line += quote(a)
		}
		fmt.Fprintf(out, "%s\t%s\n", what, line)
	}
	fmt.Fprintf(os.Stderr, "idem: nothing was run: %d to run, %d done before, %d in flight, %d unresolved, %d with the key of an earlier record, %d refused\n",
		counts["run"], counts["done"], counts["in flight"], counts["unresolved"], counts["same key"], counts["refused"])
	return nil
}

// wouldDo says what a run of the key would come to.
func wouldDo(cmd *cobra.Command, s *idem.Store, scope idem.Scope, key idem.Key) (string, error) {
	rec, err := s.Get(cmd.Context(), scope, key)
	switch {
	case errors.Is(err, idem.ErrNotFound):
		return "run", nil
	case errors.Is(err, idem.ErrInvalidKey):
		return "refused", nil
	case err != nil:
		return "", err
	case rec.State == idem.StateOpen:
		return "run", nil
	case rec.State == idem.StateInFlight:
		return "in flight", nil
	case rec.State == idem.StateUncertain:
		return "unresolved", nil
	}
	return "done", nil
}
