package main

import (
	"github.com/spf13/cobra"

	"github.com/goidem/idem/bench/benchcmd"
)

// newBench compares strategies on servers of its own, so the store that the other
// commands share has no part in it.
func newBench() *cobra.Command {
	cmd := benchcmd.New("bench")
	cmd.GroupID = groupMeasure
	return cmd
}
