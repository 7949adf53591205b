package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// ErrUnknownVersion is returned for a report in a form that this program does not know.
var ErrUnknownVersion = errors.New("bench: unknown schema version") // lint:const sentinel

// maxBytes bounds what is read as a report: a full one has less than a megabyte.
const maxBytes = 64 << 20

// Write writes r as indented JSON. It sets the schema version.
func (r *Report) Write(w io.Writer) error {
	r.Schema = SchemaVersion
	for i := range r.Measurements {
		if m := &r.Measurements[i]; !finite(m.Throughput, m.ThroughputLow, m.ThroughputHigh, m.CPUSeconds, m.ServerCPU, m.AllocBytes, m.Allocs, m.WireBytes, m.Fsyncs, m.RecordBytes) {
			return fmt.Errorf("bench: a figure of %s under %s is not a number: the report was not written", m.Strategy, m.Workload.Name)
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func finite(xs ...float64) bool {
	for _, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// Read reads a report in JSON. A field that the schema does not have is an error, and so
// is another version: figures that are half understood are compared wrongly.
func Read(from io.Reader) (*Report, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("bench: cannot read the report: %w", err)
	case len(text) > maxBytes:
		return nil, fmt.Errorf("bench: more than %d MiB is no report of idem bench", maxBytes>>20)
	}
	var version struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, fmt.Errorf("bench: this is no report of idem bench: %w", err)
	}
	if version.Schema != SchemaVersion {
		return nil, fmt.Errorf("%w %d: this program reads version %d; use the program that wrote it", ErrUnknownVersion, version.Schema, SchemaVersion)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	r := new(Report)
	if err := dec.Decode(r); err != nil {
		return nil, fmt.Errorf("bench: this is no report of schema version %d: %w", SchemaVersion, err)
	}
	return r, nil
}

// ReadFile reads the report in a file.
func ReadFile(path string) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	r, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return r, nil
}
