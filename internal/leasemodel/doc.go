// Package leasemodel is an explicit-state model of the lease protocol: a few
// attempts on one key, a store, a network that loses, delays and repeats requests
// and replies, processes that crash, leases that end by the store's clock and by
// the holder's, and an operator.
//
// An exploration visits every interleaving breadth first and checks invariants on
// each step. Every clause of the protocol can be turned off by a [Switch]; the
// model then shows the shortest run that goes wrong. To read these runs:
//
//	go test -v -run TestModelSwitches ./internal/leasemodel
//
// The model's store is held against the decisions of package backend on every
// reachable record, so that a statement about the model is one about the code.
// docs/adr/0003-lease-model.md says what was found and what is left out.
package leasemodel
