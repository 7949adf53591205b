package expiry

import (
	"fmt"
	"math"
)

// Measured cost of a record. The sizes are without the result; every record of the
// measurement had a result of 200 bytes. Run make numbers AREA=expiry to measure
// them again.
const (
	// BoltRecord: 412 bytes of file per record loaded in order and 490 at worst when
	// appended in service, less the result of 200. Pages filled to 90 per cent are
	// in it.
	BoltRecord = 290
	// RedisRecord: 484 bytes of server memory per record kept as one string, less the
	// result of 200: key, dictionary entry, allocation class and expiry.
	RedisRecord = 284
	// PostgresRecord: 509 bytes of heap per row at fill factor 70, less the result
	// of 200, and 109 bytes in the two indexes.
	PostgresRecord = 309 + 109
	// BoltGenerations: records outstay their window on disk by up to a sixteenth of
	// it, because whole generations are dropped.
	BoltGenerations = 16

	// BoltSweep: expired records per second, 24 generations of 42,000 records dropped.
	BoltSweep = 5_800_000
	// PostgresSweep: expired rows per second, in keyed batches of 5,000.
	PostgresSweep = 375_000
)

// Bounds of a forecast's input.
const (
	maxRate   = 1e9
	maxResult = 1 << 30
)

// Load is what an operation is going to be asked for.
type Load struct {
	// Rate is how many new keys arrive per second.
	Rate float64
	// ResultSize is the mean size of an encoded result in bytes.
	ResultSize int64
}

// Validate refuses loads that cannot be.
func (l Load) Validate() error {
	if !(l.Rate > 0) || l.Rate > maxRate { // NaN is neither
		return fmt.Errorf("idem: a rate of %v keys per second; it must be positive and at most %.0f", l.Rate, maxRate)
	}
	if l.ResultSize < 0 || l.ResultSize > maxResult {
		return fmt.Errorf("idem: a result of %d bytes; it must be 0 to %d", l.ResultSize, maxResult)
	}
	return nil
}

// Names of backends in a [BackendForecast].
const (
	Bolt     = "bolt"
	Redis    = "redis"
	Postgres = "postgres"
)

// BackendForecast is what a load comes to on one backend, once as much expires as
// arrives: after one dedup window.
type BackendForecast struct {
	// Backend is Bolt, Redis or Postgres. CockroachDB has the rows of PostgreSQL; how
	// much room it needs for them was not measured.
	Backend string
	// Records are those that are stored, WithResult those among them whose result is
	// stored too.
	Records, WithResult int64
	// Bytes is what they occupy: of the file, the server's memory, or the table with
	// its indexes, before replication, logs and dead rows.
	Bytes int64
	// SweepRate is how many records per second have to be removed to keep up.
	SweepRate float64
	// SweepShare is SweepRate as a share of what was measured on one machine with
	// two cores; above 1 clean-up falls behind. Zero: the server expires by itself.
	SweepShare float64
	// Basis says what the numbers rest on.
	Basis string
}

// Forecast returns what a load comes to under the windows of a rule for completed
// operations, on each backend. A rule that comes from [Policy.Rules] or
// [Policy.Explain] is filled in; another is filled in first, and refused as [New]
// would.
func (r Rule) Forecast(l Load) ([]BackendForecast, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	p, err := New(r)
	if err != nil {
		return nil, err
	}
	r = p.rules[0].Rule
	known := l.Rate * r.Dedup.Seconds()
	fresh := l.Rate * r.Replay.Seconds()
	size := float64(l.ResultSize)

	entry := func(name string, records, results, perRecord, sweep float64, basis string) BackendForecast {
		f := BackendForecast{
			Backend: name, Records: whole(records), WithResult: whole(results),
			Bytes: whole(records*perRecord + results*size), SweepRate: l.Rate, Basis: basis,
		}
		if sweep > 0 {
			f.SweepShare = l.Rate / sweep
		}
		return f
	}
	onDisk := known * (1 + 1.0/BoltGenerations)
	return []BackendForecast{
		entry(Bolt, onDisk, onDisk, BoltRecord, BoltSweep,
			fmt.Sprintf("%d B per record; generations outstay their window by up to a sixteenth, and results leave with their records", BoltRecord)),
		entry(Redis, known, fresh, RedisRecord, 0,
			fmt.Sprintf("%d B per record; the server expires keys by itself", RedisRecord)),
		entry(Postgres, known, fresh, PostgresRecord, PostgresSweep,
			fmt.Sprintf("%d B per row with its index entries; space of removed results is used again after vacuum", PostgresRecord)),
	}, nil
}

// whole rounds up, and stops at the largest number.
func whole(f float64) int64 {
	if f >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(math.Ceil(f))
}
