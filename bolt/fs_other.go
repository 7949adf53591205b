//go:build !linux

package bolt

// fileSystem cannot tell on this system.
func fileSystem(string) (name string, kind int) { return "not known", fsUnknown }
