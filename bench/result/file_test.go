package result

import (
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestReportSurvivesItsFile(t *testing.T) {
	t.Parallel()
	want := &Report{
		Profile: "quick", Seed: math.MaxUint64, Partial: true, Reason: "stopped",
		Machine:      Machine{CPU: `a "quoted" <cpu> | x`, Memory: 1 << 40},
		Servers:      []Server{{Name: "postgres", Settings: map[string]string{"fsync": "on"}}},
		Strategies:   []Strategy{{Name: "none", Needs: []string{"redis"}}},
		Measurements: []Measurement{{Strategy: "none", Throughput: 1.5, ServerCPU: -1}},
		Experiments:  []Experiment{{Strategy: "none", Verdict: "did not bite"}},
		Skipped:      []Skip{{Strategy: "none", Reason: "no server"}},
	}
	var b strings.Builder
	if err := want.Write(&b); err != nil {
		t.Fatal(err)
	}
	have, err := Read(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("read back:\n%+v\nwritten:\n%+v", have, want)
	}
	if have.Schema != SchemaVersion {
		t.Errorf("the version is %d", have.Schema)
	}
}

func TestWriteRefusesWhatIsNoNumber(t *testing.T) {
	t.Parallel()
	r := &Report{Measurements: []Measurement{{Strategy: "none", Throughput: math.Inf(1)}}}
	if err := r.Write(new(strings.Builder)); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("an infinite throughput: %v, want an error that names the strategy", err)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"another version", `{"schema": 99, "later": true}`, "version 99"},
		{"no version", `{}`, "version 0"},
		{"an unknown field", `{"schema": 1, "throughputs": 3}`, "throughputs"},
		{"no JSON", `# a report`, "no report"},
		{"nothing", ``, "no report"},
		{"the wrong type", `{"schema": 1, "seed": "x"}`, "no report of schema version 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Read(strings.NewReader(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
			if strings.HasPrefix(tt.want, "version ") != errors.Is(err, ErrUnknownVersion) {
				t.Errorf("errors.Is(%v, ErrUnknownVersion) is wrong", err)
			}
		})
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "absent.json")); err == nil || !strings.Contains(err.Error(), "absent.json") {
		t.Errorf("a file that is not there: %v", err)
	}
}
