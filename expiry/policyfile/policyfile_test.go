package policyfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/expiry/policyfile"
)

const day = 24 * time.Hour

const full = `# all fields
policies:
  - operation: billing.*
    replay: 1d
    dedup: 30d
    failed: 14d
    abandoned: 36h
    horizons:
      clientRetry: 1d
      queueRedrive: 14d
      webhookReplay: 3d
      operatorReplay: 7d
      settlement: 10d
  - operation: billing.charge
    tenant: "042"
    preset: stripe
    issued: uuidv7
    skew: 2m30s
    was:
      - 12h
      - {dedup: 6h, until: 2026-03-01T00:00:00+01:00}
  - operation: bank.transfer
    onAbandoned: hold
    lease: 2s
  - {operation: "*", onAbandoned: rerun}
`

const fullJSON = `{
	"policies": [
		{"operation": "billing.*", "replay": "1d", "dedup": "30d", "failed": "14d", "abandoned": "36h",
			"horizons": {"clientRetry": "1d", "queueRedrive": "14d", "webhookReplay": "3d", "operatorReplay": "7d", "settlement": "10d"}},
		{"operation": "billing.charge", "tenant": "042", "preset": "stripe", "issued": "uuidv7", "skew": "2m30s",
			"was": ["12h", {"dedup": "6h", "until": "2026-03-01T00:00:00+01:00"}]},
		{"operation": "bank.transfer", "onAbandoned": "hold", "lease": "2s"},
		{"operation": "*", "onAbandoned": "rerun"}
	]
}
`

func TestEveryField(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC)
	want, err := expiry.New(
		expiry.Rule{Operation: "billing.*", Replay: day, Dedup: 30 * day, Failed: 14 * day, Abandoned: 36 * time.Hour, Horizons: expiry.Horizons{
			ClientRetry: day, QueueRedrive: 14 * day, WebhookReplay: 3 * day, OperatorReplay: 7 * day, Settlement: 10 * day,
		}},
		expiry.Rule{Operation: "billing.charge", Tenant: "042", Preset: "stripe", Issued: expiry.ByUUIDv7, Skew: 150 * time.Second,
			Was: []expiry.Past{{Dedup: 12 * time.Hour}, {Dedup: 6 * time.Hour, Until: until}}},
		expiry.Rule{Operation: "bank.transfer"}, expiry.Rule{Operation: "*"},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"YAML": full, "JSON": fullJSON} {
		f, err := policyfile.Load(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := f.Policy().Rules()
		for i := range got {
			for j := range got[i].Was {
				if at := &got[i].Was[j].Until; !at.IsZero() {
					*at = at.UTC()
				}
			}
		}
		if !reflect.DeepEqual(got, want.Rules()) {
			t.Errorf("%s: %+v\nwant %+v", name, got, want.Rules())
		}
		id := backend.ID{Operation: "bank.transfer"}
		if s := f.Settings(id); s != (policyfile.Settings{Lease: 2 * time.Second, OnAbandoned: backend.Hold}) {
			t.Errorf("%s: %+v", name, s)
		}
		if s := f.Settings(backend.ID{Operation: "x"}); s != (policyfile.Settings{OnAbandoned: backend.Rerun}) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	f, err := policyfile.Load(strings.NewReader(full))
	if err != nil {
		t.Fatal(err)
	}
	for id, line := range map[backend.ID]int{{Operation: "billing.x"}: 3, {Operation: "billing.charge"}: 3, {Operation: "billing.charge", Tenant: "042"}: 14, {Operation: "x"}: 25} {
		if got := f.Line(id); got != line {
			t.Errorf("%v: line %d, want %d", id, got, line)
		}
	}
}

func TestANilFileSaysNothing(t *testing.T) {
	t.Parallel()
	var f *policyfile.File
	if f.Policy() != nil || f.Line(backend.ID{}) != 0 || f.Settings(backend.ID{}) != (policyfile.Settings{}) {
		t.Error("it says something")
	}
	if s, line := f.RuleSettings(&expiry.Rule{}); line != 0 || s != (policyfile.Settings{}) {
		t.Error("it says something")
	}
}

// Every refusal has the line of what is wrong, and says what would be right.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const head = "policies:\n  - operation: a\n"
	for _, tt := range []struct {
		text string
		line int
		want string
	}{
		{"", 0, "is empty; it needs a list under policies"},
		{"# nothing\n", 0, "is empty"},
		{"policies: [\n", 1, "neither YAML nor JSON"},
		{"policies:\n\t- a\n", 2, "neither YAML nor JSON"},
		{"{}", 1, "there is no policy in it"},
		{"policies: []", 1, "there is no policy in it"},
		{"[]", 1, "the file must be made of names and values: policies"},
		{"null", 1, "the file must be made of"},
		{"policies: 1", 1, "policies must be a list"},
		{"policies: [1]", 1, "a policy must be made of names and values"},
		{"policies: [null]", 1, "a policy must be made of"},
		{"policies: []\npolicies: []", 2, "policies is given twice"},
		{"rules: []", 1, `unknown field "rules"; the file has: policies`},
		{"policies: []\n---\npolicies: []", 2, "a second document"},
		{"policies:\n  - dedup: 1h\n", 2, "a policy without its operation"},
		{head + "    dedupe: 1h\n", 3, `unknown field "dedupe"; a policy has: operation, tenant, preset, replay, dedup,`},
		{head + "    dedup: 1h\n    dedup: 2h\n", 4, "dedup is given twice"},
		{head + "    dedup:\n", 3, "dedup must be one value"},
		{head + "    tenant: null\n", 3, "tenant must be one value"},
		{head + "    tenant: ''\n", 3, "tenant must be one value"},
		{head + "    dedup: [1h]\n", 3, "dedup must be one value"},
		{head + "    dedup: 3600\n", 3, `"3600" is no duration; write 90s, 15m, 12h or 30d`},
		{head + "    dedup: 99999999999d\n", 3, "overflows"},
		{head + "    dedup: 40000d\n", 3, "dedup is 40000d; at most a hundred years (36500d) can be kept"},
		{head + "    replay: 0s\n", 3, "replay is 0s; it must be positive: zero is neither for ever nor not at all"},
		{head + "    failed: -1h\n", 3, "failed is -1h0m0s; it must be positive"},
		{head + "    replay: 48h\n    dedup: 24h\n", 3, "replay is 2d and dedup 1d: a result cannot be kept longer than its key; dedup must be at least 2d"},
		{head + "    horizons:\n      settlement: 10d\n    dedup: 5d\n", 5, "dedup is 5d and the settlement horizon 10d"},
		{head + "    horizons:\n      settlement: 40000d\n", 4, "the settlement horizon is 40000d"},
		{head + "    horizons:\n      settlment: 1d\n", 4, `unknown field "settlment"; horizons has: clientRetry, queueRedrive,`},
		{head + "    horizons: 10d\n", 3, "horizons must be made of names and values"},
		{head + "    failed: 5d\n    horizons: {settlement: 6d}\n", 3, "failed is 5d and the settlement horizon 6d"},
		{head + "    preset: strype\n", 3, `there is no preset "strype"; there are stripe, `},
		{head + "    issued: uuid\n", 3, `issued is "uuid"; it must be uuidv7, ulid or explicit`},
		{head + "    skew: 5m\n", 3, "a skew without issued"},
		{head + "    was: [12h]\n", 3, "was without issued"},
		{head + "    issued: ulid\n    was: 12h\n", 4, "was must be a list of earlier dedup windows"},
		{head + "    issued: ulid\n    was: []\n", 4, "was must be a list"},
		{head + "    issued: ulid\n    was: [12h, 0s]\n", 4, "an earlier window is 0s"},
		{head + "    issued: ulid\n    was:\n      - until: 2026-03-01T00:00:00Z\n", 5, "an earlier window without its dedup"},
		{head + "    issued: ulid\n    was:\n      - {dedup: 1h, until: 2026-03-01}\n", 5, `until is "2026-03-01"; it must be a time with its zone`},
		{head + "    issued: ulid\n    was:\n      - {dedup: 1h, till: 2026-03-01}\n", 5, `unknown field "till"`},
		{head + "    lease: 1ms\n", 3, "lease is 1ms; it must be at least 10ms"},
		{head + "    onAbandoned: recover\n", 3, `onAbandoned is "recover"; it must be rerun or hold`},
		{head + "  - operation: a\n    dedup: 2d\n", 3, "operation a: it has a policy already, rule 1; one of the two must go (rule 1 is in line 2)"},
		{"policies:\n  - operation: a*xy\n  - operation: ab*y\n", 3, "operation ab*y: it matches operations that a*xy (rule 1) matches too"},
		{"policies:\n  - operation: a**b\n", 2, "write one"},
		{"a: &a [*a]", 1, "unknown field"},
		{"policies:\n  - &x {operation: b}\n  - *x\n", 3, "a policy must be made of"},
		{"policies:\n  - operation: a\n    <<: {dedup: 1h}\n", 3, `unknown field "<<"`},
		{"? [a]\n: b", 1, "unknown field"},
		{`{"policies": [{"operation": "a", "dedup": "1h",}]} x`, 0, "neither YAML nor JSON"},
		{strings.Repeat("#", 1<<20+1), 0, "has more than 1048576 bytes; it is no file of policies"},
	} {
		f, err := policyfile.Load(strings.NewReader(tt.text))
		var refused *policyfile.Error
		if f != nil || !errors.As(err, &refused) || len(refused.Problems) == 0 {
			t.Errorf("%.60q: %v, %v", tt.text, f, err)
			continue
		}
		if p := refused.Problems[0]; p.Line != tt.line || !strings.Contains(p.Text, tt.want) {
			t.Errorf("%.60q: line %d: %s; want line %d: %s", tt.text, p.Line, p.Text, tt.line, tt.want)
		}
		if !strings.HasPrefix(err.Error(), "idem: configuration") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: %v", tt.text, err)
		}
	}
}

func TestAllProblemsInTheOrderOfTheirLines(t *testing.T) {
	t.Parallel()
	_, err := policyfile.Load(strings.NewReader(`policies:
  - {operation: a, dedup: 1h, horizons: {settlement: 2h}}
  - {operation: b, dedupe: 1h}
  - {operation: c, replay: soon, dedup: -1h}
  - {operation: d}
  - {operation: d}
`))
	var refused *policyfile.Error
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	var lines []int
	for _, p := range refused.Problems {
		lines = append(lines, p.Line)
	}
	if !reflect.DeepEqual(lines, []int{2, 3, 4, 4, 6}) {
		t.Errorf("%v: %+v", lines, refused.Problems)
	}
	if !strings.HasSuffix(err.Error(), "(and 4 more)") {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if _, err := policyfile.Open(path); err == nil || err.Error() != "idem: configuration "+path+": cannot be read: no such file or directory" {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("policies:\n- x: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := policyfile.Open(path); err == nil || !strings.HasPrefix(err.Error(), "idem: configuration "+path+", line 2: unknown field") {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := policyfile.Open(path); err != nil {
		t.Error(err)
	}
	if _, err := policyfile.Open(filepath.Dir(path)); err == nil {
		t.Error("a folder is read")
	}
}

func TestRemembersNamesTheLine(t *testing.T) {
	t.Parallel()
	load := func(text string) *policyfile.File {
		f, err := policyfile.Load(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	old := load("policies:\n  - {operation: pay, dedup: 12h}\n")
	now := load("policies:\n  - {operation: other}\n  - {operation: pay, issued: ulid}\n")
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	var refused *policyfile.Error
	if err := now.Remembers(old, at); !errors.As(err, &refused) || len(refused.Problems) != 1 || refused.Problems[0].Line != 3 {
		t.Errorf("%v", err)
	}
	if err := load("policies:\n  - {operation: pay, issued: ulid, was: [{dedup: 12h, until: 2026-11-30T00:00:00Z}]}\n").Remembers(old, at); !errors.As(err, &refused) || !strings.Contains(err.Error(), "line 2: operation pay: ") {
		t.Errorf("a window in force that is said to be over: %v", err)
	}
	if err := now.Remembers(old, time.Time{}); err == nil || err.Error() == (&policyfile.Error{}).Error() {
		t.Errorf("a change at no time: %v", err)
	}
	if err := load("policies:\n  - {operation: pay, issued: ulid, was: [12h]}\n").Remembers(old, at); err != nil {
		t.Error(err)
	}
}

// Whatever is in a file, it is a policy whose windows are valid, or an *Error, never
// a panic.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		full, fullJSON, "policies:\n  - operation: a\n    dedup: 1h\n", "{}", "[]", "policies: 1", "a: &a [*a]",
		"policies:\n- &x {operation: b}\n- *x", "\t", "---\n---\n", "null", "policies: [null]", "? [a]\n: b",
		"policies: [{operation: a*xy}, {operation: ab*y}]", "policies: [{operation: a, issued: ulid, was: [{dedup: 1h, until: x}]}]",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := policyfile.Load(strings.NewReader(string(data)))
		var refused *policyfile.Error
		if err != nil {
			if !errors.As(err, &refused) || len(refused.Problems) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		for _, r := range file.Policy().Rules() {
			id := backend.ID{Tenant: r.Tenant, Operation: strings.ReplaceAll(r.Operation, "*", "")}
			for _, s := range []backend.State{backend.Completed, backend.Failed, backend.InFlight} {
				if keep := file.Policy().For(id, s); keep.Validate() != nil {
					t.Fatalf("%+v gives %+v", r, keep)
				}
			}
			if _, horizon := r.Horizons.Longest(); horizon > r.Dedup {
				t.Fatalf("%+v is below its horizon", r)
			}
		}
	})
}

func ExampleLoad() {
	f, err := policyfile.Load(strings.NewReader(`
policies:
  - operation: billing.*
    dedup: 30d
    horizons: {queueRedrive: 14d}
`))
	if err != nil {
		panic(err)
	}
	keep := f.Policy().For(backend.ID{Operation: "billing.close"}, backend.Completed)
	fmt.Println(expiry.Show(keep.Replay), expiry.Show(keep.Dedup))
	// Output: 1d 30d
}
