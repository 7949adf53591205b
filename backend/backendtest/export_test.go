package backendtest

import "testing"

// Names returns the names of all subtests, for the suite's own tests.
func Names() (names []string) {
	for _, c := range checks() {
		names = append(names, c.name)
	}
	for _, c := range txChecks[int]() {
		names = append(names, c.name)
	}
	return names
}

// RunOne runs one subtest of Run.
func RunOne(t *testing.T, name string, fresh func(t testing.TB) *Harness) {
	for _, c := range checks() {
		if c.name == name {
			runCheck(t, c, fresh)
			return
		}
	}
	t.Fatalf("no subtest %q", name)
}
