//go:build !linux

package bolt

func childFull() error { return nil }
