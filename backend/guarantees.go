package backend

import (
	"fmt"
	"strings"
)

// Survival says what happens to an acknowledged record in an accident. Higher is
// better, so that requirements can be compared; the zero value means that it
// could not be checked.
type Survival uint8

// The grades of survival.
const (
	// Unchecked: could not be found out. It satisfies no requirement.
	Unchecked Survival = iota
	// Lost: everything acknowledged may be gone.
	Lost
	// Recent: the last moments may be gone, commonly about a second.
	Recent
	// Survives: what was acknowledged is there.
	Survives
)

// String returns the grade in words.
func (s Survival) String() string {
	switch s {
	case Unchecked:
		return "could not check"
	case Lost:
		return "lost"
	case Recent:
		return "may lose the last moments"
	case Survives:
		return "survives"
	}
	return fmt.Sprintf("survival %d", uint8(s))
}

// Guarantees says what a store gives, as found out when it was opened. As a
// requirement, the zero value of a field asks for nothing.
type Guarantees struct {
	ProcessCrash Survival // of the process that holds the store, or of the server
	MachineCrash Survival // power loss, kernel panic
	Failover     Survival // promotion of a replica; Survives where there is none to fail over to
	// Atomic: effect and record can commit together (Transactional).
	Atomic bool
	// ServerClock: leases and windows are judged by the store's clock, not by the
	// clocks of its callers.
	ServerClock bool
	// Shared: several processes may use the store at the same time.
	Shared bool
	// Findings tell in words what was looked at. Not part of a requirement.
	Findings []Finding
}

// Finding is one thing that was looked at when the store was opened.
type Finding struct {
	Setting string // what was looked at: "appendfsync", "file mode"
	Value   string // what it is
	Want    string // what would be better; empty where nothing is
	Text    string // what it means
}

// Check compares what a store gives with what a caller requires. The error
// matches ErrGuarantee and names every shortfall together with the settings that
// cause it and the values that would do.
func (g *Guarantees) Check(require *Guarantees) error {
	var short []string
	grade := func(what string, have, want Survival) {
		if want > have {
			short = append(short, fmt.Sprintf("%s: required %q, found %q", what, want, have))
		}
	}
	grade("process crash", g.ProcessCrash, require.ProcessCrash)
	grade("machine crash", g.MachineCrash, require.MachineCrash)
	grade("failover", g.Failover, require.Failover)
	flag := func(what string, have, want bool) {
		if want && !have {
			short = append(short, what+" is required and not given")
		}
	}
	flag("effect and record in one commit", g.Atomic, require.Atomic)
	flag("the store's own clock", g.ServerClock, require.ServerClock)
	flag("sharing between processes", g.Shared, require.Shared)
	if len(short) == 0 {
		return nil
	}
	for _, f := range g.Findings {
		if f.Want != "" {
			short = append(short, fmt.Sprintf("%s is %s, set it to %s", f.Setting, f.Value, f.Want))
		}
	}
	return fmt.Errorf("%w: %s", ErrGuarantee, strings.Join(short, "; "))
}
