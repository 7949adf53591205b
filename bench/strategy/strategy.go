// Package strategy holds the ways of keeping an operation from taking effect
// twice that the benchmark compares: from none at all, through the ones that
// people write by hand, to the modes of idem.
//
// A [Strategy] is opened against the servers of a run and gives a [Runner].
// Workloads and guarantee experiments see nothing else of it, so that all
// strategies are measured by the same code.
package strategy

import (
	"context"
	"errors"
	"time"
)

// Family says what kind of promise a strategy makes.
type Family string

// The families, from the weakest promise to the strongest. A floor makes none: it is
// what people write by hand on such a store, without deciding anything.
const (
	Floor         Family = "floor"         // hand-written, no decision
	Naive         Family = "naive"         // what people write first
	Window        Family = "window"        // a claim without completion or result
	Lease         Family = "lease"         // record and effect are two writes
	Transactional Family = "transactional" // record and effect are one commit
)

// Server names what a strategy needs beside the process itself.
type Server string

// The servers.
const (
	Postgres  Server = "postgres"
	Redis     Server = "redis"
	Cockroach Server = "cockroach"
)

// Info describes a strategy to the reader of a report.
type Info struct {
	Name   string // as on the command line, for example "pg-tx-queued"
	Title  string // as in a table, for example "idem transactional on PostgreSQL, queued"
	Family Family
	Needs  []Server // empty: nothing but a folder on a disk

	// Survives says, in a few words, what a completed key outlives: "nothing",
	// "a process crash", "a power cut".
	Survives string
	// Cost names the round trips and flushes of a new key and of a duplicate, in words.
	Cost string
	// Floor is the name of the hand-written strategy that this one is held against;
	// empty when there is none.
	Floor string
	// Remembers is how many keys it keeps at most, however young they are; 0: as many as
	// there is room for.
	Remembers int
	// AtOnce: nothing is sent before the operation has been described in full, so a
	// process that dies before that leaves nothing behind.
	AtOnce bool
}

// Reaches says whether a fault at this point of an operation can meet anything: what a
// strategy that sends all at once passes before that is in its own process only, and is
// gone with it like a request that never came.
func (i Info) Reaches(at Point) bool { return !i.AtOnce || at == AfterComplete }

// Strategy is one way of deduplicating.
type Strategy interface {
	Info() Info
	// Open prepares the strategy in an empty place of its own: a folder, a schema, a
	// prefix. Opening again with the same Env.Place, as a process does that takes
	// over from a dead one, finds what the earlier Runner stored.
	// ctx governs the opening only. ErrNoServer: a server that it needs is not there.
	Open(ctx context.Context, env Env) (Runner, error)
}

// ErrNoServer is returned by Open when Env lacks a server that the strategy needs.
var ErrNoServer = errors.New("bench: server not available") // lint:const sentinel

// Env is what a run offers to strategies.
type Env struct {
	Dir   string            // a folder on the disk that is measured
	URLs  map[Server]string // the servers that there are
	Place string            // name of this strategy's own place: [a-z0-9_], at most 32 bytes

	// LeaseTTL is the lease, or the lifetime of a lock; 0 means 30 s.
	LeaseTTL time.Duration
	// Known is how long a key is remembered; 0 means 24 h.
	Known time.Duration
	// Conns is the size of a pool of connections; 0 means 8.
	Conns int

	// AcceptEviction names the maxmemory-policy of a Redis that idem is to use although
	// it may remove records before their time, for the experiment that shows it.
	// Without it, idem refuses such a server.
	AcceptEviction string
	// Sleep lets Op.Work pass; nil means a timer. It returns the error of ctx when
	// that ends first.
	Sleep func(ctx context.Context, d time.Duration) error

	// Now, when set, is the clock of strategies that keep time themselves, in this
	// process; an experiment steps it. Those whose server keeps time ignore it.
	Now func() time.Time

	// Effects is the ledger to which strategies without a transaction apply their
	// effects. Those of the family Transactional keep their own, inside their
	// store, because only there can the effect commit with the record.
	Effects Ledger
}

// Op is one request as a client sends it; a retry is an equal Op.
type Op struct {
	Key     string
	Payload []byte        // what is fingerprinted
	Result  int           // bytes of the result that the operation returns
	Work    time.Duration // how long the operation takes before its effect
	// Caller names who applies the effect, for the ledger; a retry may have another.
	Caller string
	// Pause, when set, is called inside the operation at the named points, so that an
	// experiment can stop or kill the process there. It returns an error to make
	// the operation fail. Strategies call it through their operation, not around it.
	Pause func(ctx context.Context, at Point) error
}

// Point is a place inside one operation.
type Point string

// The points of an operation at which an experiment may act.
const (
	AfterReserve  Point = "after reserve"  // the key is owned, nothing was done
	AfterEffect   Point = "after effect"   // applied (or written, uncommitted), not recorded
	AfterComplete Point = "after complete" // recorded, the caller has not heard
)

// Outcome says what became of an Op that did not fail.
type Outcome string

// The outcomes. Whatever else happens is an error of Do.
const (
	Executed Outcome = "executed"  // the effect was applied by this call
	Replayed Outcome = "replayed"  // a duplicate, answered with the first result
	Dropped  Outcome = "dropped"   // a duplicate, recognised, without a result
	InFlight Outcome = "in flight" // another call is at it
	Mismatch Outcome = "mismatch"  // the key was used for another payload
	Unknown  Outcome = "unknown"   // nobody can say yet; a retry will
)

// Runner runs operations under one strategy.
type Runner interface {
	// Do handles one request. It is safe for concurrent use. ctx governs the call.
	Do(ctx context.Context, op Op) (Outcome, error)

	// Effects returns the ledger in which the effects of this Runner are: Env.Effects,
	// or the one inside the store.
	Effects() Ledger

	// Usage returns what the store holds. Fields that cannot be known for this strategy are
	// negative. It reads the whole store.
	Usage(ctx context.Context) (Usage, error)

	// Flushes returns how often this process or its server has flushed to the disk since
	// Open; negative: unknown. It may open connections, and asks the server, so it does not
	// belong into what is measured.
	Flushes(ctx context.Context) (int64, error)

	// Wire returns the bytes sent and received on sockets since Open; negative: unknown.
	// It costs nothing.
	Wire() int64

	// Close gives everything back that Open took, except what is stored.
	Close() error
}

// Ledger counts effects. It has no unique constraint and no memory of its own
// about keys: an effect that is applied twice is there twice.
type Ledger interface {
	// Apply notes one effect of key. When it returns nil the effect outlives the
	// process, unless the ledger is in memory only.
	Apply(ctx context.Context, key, caller string) error
	// Counts returns how often each key took effect.
	Counts(ctx context.Context) (map[string]int, error)
}

// Usage is what a store holds.
type Usage struct {
	Records     int64 // records in the store
	StoredBytes int64 // bytes that they take there, indexes included
}
