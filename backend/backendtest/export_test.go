package backendtest

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
