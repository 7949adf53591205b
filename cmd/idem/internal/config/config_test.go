package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/expiry/policyfile"
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

func TestTheMostSpecificRuleCountsAlone(t *testing.T) {
	t.Parallel()
	c, err := load(t, `policies:
  - {operation: "*", dedup: 2d}
  - {operation: bill*, dedup: 20d, lease: 1m}
  - {operation: billing.*, replay: 10d}
  - {operation: billing.close, dedup: 12h, onAbandoned: hold}
  - {operation: billing.*, tenant: acme, dedup: 3d, lease: 2m}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		scope idem.Scope
		keep  expiry.Retention
		set   policyfile.Settings
	}{
		{idem.Scope{Operation: "other"}, expiry.Retention{Replay: day, Dedup: 2 * day}, policyfile.Settings{}},
		{idem.Scope{Operation: "bill"}, expiry.Retention{Replay: day, Dedup: 20 * day}, policyfile.Settings{Lease: time.Minute}},
		{idem.Scope{Operation: "billing.open"}, expiry.Retention{Replay: 10 * day, Dedup: 10 * day}, policyfile.Settings{}},
		{idem.Scope{Operation: "billing.close"}, expiry.Retention{Replay: 12 * time.Hour, Dedup: 12 * time.Hour}, policyfile.Settings{OnAbandoned: idem.Hold}},
		{idem.Scope{Tenant: "acme", Operation: "billing.close"}, expiry.Retention{Replay: day, Dedup: 3 * day}, policyfile.Settings{Lease: 2 * time.Minute}},
	} {
		if got := c.Policy().For(ID(tt.scope), idem.StateCompleted); got != tt.keep {
			t.Errorf("%v: %+v, want %+v", tt.scope, got, tt.keep)
		}
		if got := c.Settings(tt.scope); got != tt.set {
			t.Errorf("%v: %+v, want %+v", tt.scope, got, tt.set)
		}
	}
}

func TestWithoutAFileEverythingIsTheDefault(t *testing.T) {
	t.Parallel()
	var none *Config
	want := expiry.Retention{Replay: idem.DefaultReplay, Dedup: idem.DefaultDedup}
	if got := none.Policy().For(ID(idem.Scope{Operation: "x"}), idem.StateCompleted); got != want {
		t.Errorf("%+v", got)
	}
	if got := none.Settings(idem.Scope{Operation: "x"}); got != (policyfile.Settings{}) {
		t.Errorf("%+v", got)
	}
}

func TestARefusedFileSaysThatNothingWasRun(t *testing.T) {
	t.Parallel()
	_, err := load(t, "policies:\n  - operation: a\n    dedupe: 1h\n")
	var ours *Error
	var file *policyfile.Error
	if !errors.As(err, &ours) || !errors.As(err, &file) || !strings.HasSuffix(err.Error(), "; nothing was run") {
		t.Errorf("%T: %v", err, err)
	}
}
