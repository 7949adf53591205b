package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goidem/idem"
)

const day = 24 * time.Hour

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestTheMostParticularRuleCountsAlone(t *testing.T) {
	t.Parallel()
	c, err := load(t, `policies:
  - {operation: "*", dedup: 2d}
  - {operation: bill*, dedup: 20d, lease: 1m}
  - {operation: billing.*, replay: 10d}
  - {operation: billing.close, dedup: 12h, onAbandoned: hold}
`)
	if err != nil {
		t.Fatal(err)
	}
	for operation, want := range map[string]Rule{
		"other":         {Replay: day, Dedup: 2 * day},
		"bill":          {Replay: day, Dedup: 20 * day, Lease: time.Minute},
		"billing.open":  {Replay: 10 * day, Dedup: 10 * day},
		"billing.close": {Replay: 12 * time.Hour, Dedup: 12 * time.Hour, OnAbandoned: idem.Hold},
	} {
		got := c.Rule(operation)
		got.Operation = ""
		if got != want {
			t.Errorf("%s: %+v, want %+v", operation, got, want)
		}
		o := c.Options(idem.Scope{Operation: operation})
		if keep := o.Retention(idem.Scope{Operation: operation}, idem.StateCompleted); keep.Validate() != nil || keep.Dedup != want.Dedup || o.LeaseTTL != want.Lease {
			t.Errorf("%s: options %+v, %+v", operation, o, keep)
		}
	}
}

func TestWithoutAFileEverythingIsTheDefault(t *testing.T) {
	t.Parallel()
	var none *Config
	if got, want := none.Rule("x"), (Rule{Replay: idem.DefaultReplay, Dedup: idem.DefaultDedup}); got != want {
		t.Errorf("%+v", got)
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30d": 30 * day, "0d": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "-1h": -time.Hour} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "1.5d", "30 d", "1d12h", "-1d ", "+3d", "99999999d", "soon", "1"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// Whatever is in the file, it is a policy or a *Error, never a panic.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{"policies:\n  - operation: a\n    dedup: 1h\n", "{}", "[]", "policies: 1", "a: &a [*a]", "policies:\n- &x {operation: b}\n- *x", "\t", "---\n---\n", "null", "policies: [null]", "? [a]\n: b"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := parser{path: "f"}
		c, err := p.parse(data)
		var ours *Error
		if err != nil && !errors.As(err, &ours) {
			t.Fatalf("%T: %v", err, err)
		}
		if err == nil {
			for _, r := range c.rules {
				if keep := c.Retention(idem.Scope{Operation: r.Operation}, idem.StateCompleted); keep.Validate() != nil {
					t.Fatalf("%+v gives %+v", r, keep)
				}
			}
		}
	})
}
