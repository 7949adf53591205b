// Package result holds what a run of the benchmark found out, as data: the schema of
// its JSON report. It measures and judges nothing.
//
// Durations are in nanoseconds, sizes in bytes, rates per second. A negative number
// means that the figure could not be known.
package result

import "time"

// SchemaVersion is the version of the JSON form. A reader refuses another one.
const SchemaVersion = 1

// Report is one run.
type Report struct {
	Schema   int       `json:"schema"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Profile  string    `json:"profile"` // quick or full
	Seed     uint64    `json:"seed"`
	// Partial is set when the run was interrupted: what is in here is whole, but
	// not everything is in here. Reason says why in one line.
	Partial bool   `json:"partial"`
	Reason  string `json:"reason,omitempty"`

	Machine      Machine       `json:"machine"`
	Servers      []Server      `json:"servers"`
	Strategies   []Strategy    `json:"strategies"`
	Measurements []Measurement `json:"measurements"`
	Experiments  []Experiment  `json:"experiments"`
	// Skipped lists what was asked for and not run, with the reason.
	Skipped []Skip `json:"skipped"`
}

// Machine is where the run took place.
type Machine struct {
	OS         string  `json:"os"`
	Kernel     string  `json:"kernel"`
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"`
	Memory     int64   `json:"memory"`
	FileSystem string  `json:"file_system"` // of the folder that was measured
	SyncRate   float64 `json:"sync_rate"`   // raw 4 KiB overwrites with fdatasync a second
	// Load is the load average of the last minute when the run began, 0 or less when it
	// could not be known: above half the number of processors,
	// others had a share of the processors.
	Load   float64 `json:"load"`
	Go     string  `json:"go"`
	Module string  `json:"module"` // version or commit of idem, with "dirty" where it was
}

// Server is a server that the run used, and how durable it was set to be.
type Server struct {
	Name     string            `json:"name"`
	Version  string            `json:"version"`
	Own      bool              `json:"own"` // started for the run, and thrown away
	Settings map[string]string `json:"settings"`
}

// Strategy describes one strategy, so that a report can be read without the program.
type Strategy struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	Family string `json:"family"`
	// Needs lists the servers that it uses; empty: nothing but a folder on a disk.
	Needs    []string `json:"needs,omitempty"`
	Survives string   `json:"survives"`
	Cost     string   `json:"cost"`
	Floor    string   `json:"floor,omitempty"`
	// Remembers is how many keys it keeps at most; 0: as many as there is room for.
	Remembers int `json:"remembers,omitempty"`
}

// MayForget says whether the strategy may have run some of these operations twice because
// it keeps fewer keys than they had: then that is what it says of itself.
func (s Strategy) MayForget(m *Measurement) bool {
	return s.Remembers > 0 && m.DistinctKeys > int64(s.Remembers)
}

// Skip is something that was not run.
type Skip struct {
	Strategy string `json:"strategy"`
	What     string `json:"what"` // a workload's or an experiment's name; empty for all of it
	Reason   string `json:"reason"`
	// NotReached: the experiment can show nothing about the strategy, which does nothing
	// at that point that the fault could meet.
	NotReached bool `json:"not_reached,omitempty"`
}

// Workload is what was asked of a strategy.
type Workload struct {
	Name       string        `json:"name"`
	Callers    int           `json:"callers"`
	Rate       float64       `json:"rate"`       // intended operations a second; 0: closed loop
	Duplicates float64       `json:"duplicates"` // share of operations that repeat an earlier key
	Hot        float64       `json:"hot"`        // share of duplicates that go to the hottest keys
	Payload    int           `json:"payload"`
	Result     int           `json:"result"`
	Work       string        `json:"work"` // duration or distribution of the operation itself
	Length     time.Duration `json:"length"`
	Seed       uint64        `json:"seed"`
}

// Measurement is one strategy under one workload; its rounds are merged into the
// median round's figures, with the spread beside it.
type Measurement struct {
	Strategy string   `json:"strategy"`
	Workload Workload `json:"workload"`
	Rounds   int      `json:"rounds"`

	Elapsed time.Duration `json:"elapsed"`
	// Throughput counts operations that were answered (executed, replayed or dropped) a second; an
	// error, a mismatch or an in-flight answer is never throughput. Low and High are
	// the slowest and the fastest round.
	Throughput     float64 `json:"throughput"`
	ThroughputLow  float64 `json:"throughput_low"`
	ThroughputHigh float64 `json:"throughput_high"`

	Counts  Counts  `json:"counts"`  // of all rounds, like keys and effects
	Latency Latency `json:"latency"` // of answered operations
	// Lag is by how much the generator itself started operations later than
	// intended; open loop only. Latency counts from the intended start, so it
	// includes Lag.
	Lag Latency `json:"lag"`

	DistinctKeys int64 `json:"distinct_keys"` // keys that were answered as executed or may have been
	Effects      int64 `json:"effects"`
	Duplicates   int64 `json:"duplicates"` // effects beyond one a key
	Lost         int64 `json:"lost"`       // keys acknowledged as done without an effect

	CPUSeconds   float64 `json:"cpu_seconds"`   // of this process
	ServerCPU    float64 `json:"server_cpu"`    // of the servers that the run started
	AllocBytes   float64 `json:"alloc_bytes"`   // an operation
	Allocs       float64 `json:"allocs"`        // an operation
	WireBytes    float64 `json:"wire_bytes"`    // an operation
	Fsyncs       float64 `json:"fsyncs"`        // an operation
	RecordBytes  float64 `json:"record_bytes"`  // stored, a record
	FirstProblem string  `json:"first_problem"` // the first error, for the reader
}

// Counts separates what became of the operations.
type Counts struct {
	Executed int64 `json:"executed"`
	Replayed int64 `json:"replayed"`
	Dropped  int64 `json:"dropped"`
	InFlight int64 `json:"in_flight"`
	Mismatch int64 `json:"mismatch"`
	Unknown  int64 `json:"unknown"`
	Errors   int64 `json:"errors"`
}

// Add adds what became of others.
func (c *Counts) Add(other Counts) {
	c.Executed += other.Executed
	c.Replayed += other.Replayed
	c.Dropped += other.Dropped
	c.InFlight += other.InFlight
	c.Mismatch += other.Mismatch
	c.Unknown += other.Unknown
	c.Errors += other.Errors
}

// Latency holds percentiles.
type Latency struct {
	P50  time.Duration `json:"p50"`
	P90  time.Duration `json:"p90"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// Experiment is one strategy under one kind of fault.
type Experiment struct {
	Strategy string `json:"strategy"`
	Fault    string `json:"fault"` // for example "worker killed after the effect"
	// Promise is what the strategy owes under this fault: "once", "at most once",
	// "at least once" or "none".
	Promise string `json:"promise"`

	Rounds int `json:"rounds"`
	Fired  int `json:"fired"` // faults that were confirmed to have happened
	Keys   int `json:"keys"`

	DuplicateEffects int `json:"duplicate_effects"`
	LostEffects      int `json:"lost_effects"` // acknowledged and not there
	StuckKeys        int `json:"stuck_keys"`   // still not answered when the experiment gave up

	// Trials are what met the confirmed faults, Harmed those of them with a duplicate or
	// lost effect. Unit says what they are: "key", or "round" where a fault meets one
	// operation of a round.
	Unit   string `json:"unit"`
	Trials int    `json:"trials"`
	Harmed int    `json:"harmed"`
	// Upper95 bounds the share of trials with harm from above with 95% confidence
	// (Clopper-Pearson).
	Upper95 float64 `json:"upper_95"`
	// Recovery is the median time from the fault to a definite answer; Longest the
	// longest.
	Recovery time.Duration `json:"recovery"`
	Longest  time.Duration `json:"longest"`

	// Verdict is "kept", "broken", "harm shown" or "did not bite". The last two are
	// of strategies that promise nothing: without harm the experiment proves nothing
	// about the strategies that do. A fault that never fired did not bite either.
	Verdict string `json:"verdict"`
	Note    string `json:"note,omitempty"`
}
