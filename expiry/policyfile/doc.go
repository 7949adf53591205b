// Package policyfile reads retention policies from a file, YAML or JSON.
//
//	policies:
//	  - operation: billing.*
//	    replay: 1d
//	    dedup: 30d
//	    failed: 14d
//	    abandoned: 7d
//	    horizons:
//	      clientRetry: 1d
//	      queueRedrive: 14d
//	      settlement: 10d
//	  - operation: billing.charge
//	    tenant: acme
//	    preset: stripe
//	    issued: uuidv7
//	    skew: 5m
//	    was:
//	      - 12h
//	      - {dedup: 6h, until: 2026-03-01T00:00:00Z}
//	  - operation: bank.transfer
//	    onAbandoned: hold
//	    lease: 2s
//
// The fields are those of [expiry.Rule], and two that say how an operation is run:
// lease and onAbandoned (rerun or hold). Exactly one rule decides for a scope, and
// their order does not matter; package expiry says which. Durations are written as
// Go writes them (90s, 12h), or in whole days (30d).
//
// The loader is strict. A name that it does not know, a value of the wrong kind, a
// window that cannot be: all are refused, with their lines, because a policy that is
// silently not applied is found out after the accident.
//
// It is a package of its own so that a program that states its policy in Go links
// no YAML parser.
package policyfile
