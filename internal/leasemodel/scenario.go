package leasemodel

// Scenario says who takes part.
type Scenario struct {
	Attempts int
	Policies []Policy // that each attempt may have
	Prints   int8     // different fingerprints
	Resolve  bool     // an operator may resolve
	Forget   bool     // an operator may forget
	Windows  int8     // ends of a window that may happen
	// NoDeadline adds starts with a record that has no lease deadline, left by a
	// dead attempt (R14).
	NoDeadline bool
}

// Start returns the initial states, one for each choice of policies and
// fingerprints.
func (c Scenario) Start() []State {
	first := State{Windows: c.Windows}
	if c.Resolve {
		first.Operator.May |= orderResolve
	}
	if c.Forget {
		first.Operator.May |= orderForget
	}
	starts := []State{first}
	for i := range c.Attempts {
		var next []State
		for _, s := range starts {
			for _, p := range c.Policies {
				for print := int8(1); print <= c.Prints; print++ {
					if i == 0 && print > 1 {
						continue // names do not matter
					}
					s.Attempt[i] = Attempt{Policy: p, Print: print}
					next = append(next, s)
				}
			}
		}
		starts = next
	}
	if !c.NoDeadline {
		return starts
	}
	for _, s := range starts[:len(starts):len(starts)] {
		a := &s.Attempt[0]
		for _, effect := range []bool{false, true} {
			a.Step, a.Token, a.Ran, a.Effect, a.Stored = ended, 1, true, effect, a.Policy
			s.Rec = Record{
				Phase: InFlight, Owner: 1, Fence: 1, Num: 1,
				Policy: a.Policy, Print: a.Print, Lease: noLease,
			}
			s.Counter, s.Last, s.Bound = 1, 1, a.Print
			starts = append(starts, s)
		}
	}
	return starts
}
