//go:build !linux

package strategy

import "os"

// flush makes what was written durable.
func flush(f *os.File) error { return f.Sync() }
