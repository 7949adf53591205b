//go:build !linux

package crashtest

import (
	"math/rand/v2"
	"testing"
)

func diskFull(t *testing.T, _ *faultRow, _ int, _ *rand.Rand) {
	t.Skip("a small file system is mounted on Linux only: the rows of the full disk are not run")
}
