package experiment

import "github.com/goidem/idem/bench/strategy"

// Experiment describes one kind of fault.
type Experiment struct {
	Name  string
	About string // what is done, in a sentence
	// Needs is the server that it hurts: only strategies on it are concerned.
	Needs []strategy.Server
}

// faults is the list of experiments.
func faults() []fault {
	e := func(name, about string, needs ...strategy.Server) Experiment { return Experiment{name, about, needs} }
	return []fault{
		{Experiment: e(faultStorm, "many callers, in two processes where a server allows it, ask for the same key at once"),
			quick: 3, full: 25, abreast: 2, each: true, play: storm},
		{Experiment: e(faultAfterReserve, "a worker process is killed when it owns the key and has done nothing; another one asks again, at once and after the lease"),
			quick: 3, full: 30, abreast: 8, play: killed(strategy.AfterReserve)},
		{Experiment: e(faultAfterEffect, "a worker process is killed when the effect is there and nobody knows; another one asks again, at once and after the lease"),
			quick: 3, full: 30, abreast: 8, play: killed(strategy.AfterEffect)},
		{Experiment: e(faultAfterComplete, "a worker process is killed when all is recorded and the caller was not told; another one asks again, at once and after the lease"),
			quick: 3, full: 30, abreast: 8, play: killed(strategy.AfterComplete)},
		{Experiment: e(faultServer, "the server is killed in the middle of an operation and started again; callers ask until they know", strategy.Postgres, strategy.Redis),
			quick: 3, full: 30, concerns: needing(strategy.Postgres, strategy.Redis), play: serverKilled},
		{Experiment: e(faultCut, "the connection is cut before a commit arrives, or after it was done and before the answer; callers ask until they know", strategy.Postgres, strategy.Cockroach),
			quick: 4, full: 40, abreast: 2, concerns: needing(strategy.Postgres, strategy.Cockroach), play: cutAtCommit},
		{Experiment: e(faultVolatile, "as above, with a server that writes nothing to its disk", strategy.Redis),
			quick: 2, full: 10, concerns: needing(strategy.Redis), play: volatileKilled},
		{Experiment: e(faultFlushed, "FLUSHALL while one operation is under way and others are done; all are asked for again", strategy.Redis),
			quick: 2, full: 10, concerns: needing(strategy.Redis), each: true, play: flushed},
		{Experiment: e(faultFailover, "the master dies after its replica was cut off and promoted; all keys are asked for again there", strategy.Redis),
			quick: 1, full: 5, concerns: needing(strategy.Redis), play: failedOver},
		{Experiment: e(faultEvicting, "a server with little memory and allkeys-lru is filled up; all keys are asked for again", strategy.Redis),
			quick: 1, full: 5, concerns: needing(strategy.Redis), play: evicting},
		{Experiment: e(faultSlow, "an operation takes several leases, and a duplicate comes after the first"),
			quick: 1, full: 10, abreast: 8, each: true, play: slow},
		{Experiment: e(faultClock, "the clock jumps an hour ahead while an operation is under way, and two hours back; a duplicate comes each time"),
			quick: 2, full: 10, abreast: 4, play: clockStepped},
		{Experiment: e(faultExpired, "a key is asked for again when it is no longer remembered"),
			quick: 1, full: 3, abreast: 16, each: true, play: expired},
	}
}
