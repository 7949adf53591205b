//go:build race

package main

// raceEnabled: the program under test is this test binary, and the race detector
// keeps several bytes of its own for each byte of memory.
const raceEnabled = true
