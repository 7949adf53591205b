// Package crashtest holds the proof by kill -9: processes that use idem over a
// bolt file die at named points, and what they had acknowledged is looked for
// afterwards. The code is all in tests; `make crash` runs the long version.
package crashtest
