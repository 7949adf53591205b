package main

import (
	"fmt"
	"io"
	"os"
)

// readInput reads a whole file; - is standard input.
func readInput(name string) ([]byte, error) {
	in, err := openInput(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("idem: %s cannot be read: %w; nothing was changed", name, err)
	}
	return data, nil
}

// openInput opens a file; - is standard input.
func openInput(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &usageError{err: fmt.Errorf("idem: the input cannot be opened: %w; nothing was changed", err), hint: "another file, or - for standard input"}
	}
	return f, nil
}
