//go:build !linux

package testdb

const parentDeathSignal = false
