//go:build !race

package idem_test

// raceEnabled: the race detector allocates on its own account.
const raceEnabled = false
