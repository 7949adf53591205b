// Package config reads the policies of operations from a file: how long keys and
// results are kept, how long a lease is, and what becomes of an abandoned attempt.
package config

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/expiry"
)

// Env is the environment variable that names the file where no flag does.
const Env = "IDEM_CONFIG"

// Rule is the policy of the operations that match Operation. A zero field was not
// given.
type Rule struct {
	// Operation is matched as it is, or, with a * at its end, as a prefix.
	Operation string
	// Replay and Dedup are the two windows of a settled key.
	Replay, Dedup time.Duration
	// Lease is how long a crash blocks the key.
	Lease time.Duration
	// OnAbandoned is Rerun or Hold.
	OnAbandoned idem.Abandoned
}

// Config is a set of rules. A nil *Config has none: everything is the default.
type Config struct {
	rules []Rule
}

// Rule returns the policy of an operation. The most particular rule counts, alone:
// the exact name, else the longest prefix. What that rule leaves out is the default
// of idem, with windows completed so that they fit each other. The zero fields of
// the result are Lease and OnAbandoned where the rule says nothing about them.
func (c *Config) Rule(operation string) Rule {
	var best Rule
	if c != nil {
		length := -1
		for _, r := range c.rules {
			prefix, isPrefix := strings.CutSuffix(r.Operation, "*")
			switch {
			case !isPrefix && r.Operation == operation:
				best, length = r, len(operation)+1
			case isPrefix && strings.HasPrefix(operation, prefix) && len(prefix) > length:
				best, length = r, len(prefix)
			}
		}
	}
	return best.windows()
}

// windows fills in the windows that are not given: a longer replay window takes
// the dedup window with it, a shorter dedup window the replay window.
func (r Rule) windows() Rule {
	given := r.Replay
	r.Replay = cmp.Or(r.Replay, idem.DefaultReplay)
	r.Dedup = cmp.Or(r.Dedup, max(idem.DefaultDedup, r.Replay))
	if given == 0 {
		r.Replay = min(r.Replay, r.Dedup)
	}
	return r
}

// Retention is the windows of a scope, for idem.Options.
func (c *Config) Retention(scope idem.Scope, _ idem.State) expiry.Retention {
	r := c.Rule(scope.Operation)
	return expiry.Retention{Replay: r.Replay, Dedup: r.Dedup}
}

// Options returns the options of a store that is used for one scope: lease,
// abandonment and windows by its rule, and windows by their own rules for every
// other scope.
func (c *Config) Options(scope idem.Scope) *idem.Options {
	r := c.Rule(scope.Operation)
	return &idem.Options{Retention: c.Retention, LeaseTTL: r.Lease, OnAbandoned: r.OnAbandoned}
}

// ParseDuration reads a duration as Go writes it, and whole days such as 30d.
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days+" ", "%d ", &n); err == nil && fmt.Sprint(n) == days && n <= 36500 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("idem: %q is no duration; write 90s, 15m, 12h or 30d", text)
	}
	return d, nil
}
