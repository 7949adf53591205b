package backend

import (
	"errors"
	"strings"
	"testing"
)

func TestGuaranteesCheck(t *testing.T) {
	strong := Guarantees{ProcessCrash: Survives, MachineCrash: Survives, Failover: Survives, Atomic: true, ServerClock: true, Shared: true}
	weak := Guarantees{
		ProcessCrash: Survives, MachineCrash: Recent, Failover: Unchecked, Shared: true,
		Findings: []Finding{
			{Setting: "appendfsync", Value: "everysec", Want: "always", Text: "the last second may be lost"},
			{Setting: "version", Value: "7.4", Text: "fine"},
		},
	}
	for _, c := range []struct {
		name          string
		have, require Guarantees
		names         []string // of the shortfalls; nil: met
	}{
		{"nothing required", weak, Guarantees{}, nil},
		{"nothing given, nothing required", Guarantees{}, Guarantees{}, nil},
		{"all required of a strong store", strong, strong, nil},
		{"what it has", weak, Guarantees{ProcessCrash: Survives, MachineCrash: Recent, Shared: true}, nil},
		{"less than it has", weak, Guarantees{ProcessCrash: Lost, MachineCrash: Lost}, nil},
		{"a machine crash", weak, Guarantees{MachineCrash: Survives}, []string{"machine crash", "survives", "appendfsync", "everysec", "always"}},
		{"what was not checked", weak, Guarantees{Failover: Lost}, []string{"failover", "could not check"}},
		{"atomic", weak, Guarantees{Atomic: true}, []string{"one commit"}},
		{"the store's clock", weak, Guarantees{ServerClock: true}, []string{"clock"}},
		{"sharing", Guarantees{}, Guarantees{Shared: true}, []string{"sharing"}},
		{"everything of nothing", Guarantees{}, strong, []string{"process crash", "machine crash", "failover", "one commit", "clock", "sharing"}},
		{"findings are no requirement", weak, Guarantees{Findings: []Finding{{Setting: "x"}}}, nil},
	} {
		err := c.have.Check(&c.require)
		if (err == nil) != (c.names == nil) || err != nil && !errors.Is(err, ErrGuarantee) {
			t.Errorf("%s: %v; want met: %v", c.name, err, c.names == nil)
			continue
		}
		for _, name := range c.names {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v does not name %q", c.name, err, name)
			}
		}
		if err != nil && strings.Contains(err.Error(), "7.4") {
			t.Errorf("%s: %v names a setting that is as it should be", c.name, err)
		}
	}
}
