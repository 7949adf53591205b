package expiry

import (
	"fmt"
	"math"
)

// Measured cost of a record, without its result: 3,000 records that Execute wrote,
// each with a result of 200 bytes, a UUID for a key and an operation of 15 bytes, on
// bbolt 1.5, Redis 7 and PostgreSQL 15. make numbers AREA=expiry measures them again,
// and a test of package numbers holds them to a third of what real stores take, at
// that size of result. Small results take about as much room as those of 200 bytes on
// PostgreSQL, because the pages have room for them anyway.
const (
	// BoltRecord: 530 bytes of the pages in use, less the result of 200.
	BoltRecord = 330
	// RedisRecord: 456 bytes by MEMORY USAGE for a record kept as one string, less
	// the result of 200.
	RedisRecord = 256
	// RedisInline is the longest result that stays in its record until the end of the
	// dedup window; a longer one has a key of its own, which ends with the replay window.
	RedisInline = 1024
	// PostgresRecord: 893 bytes of the table and its two indexes, less the result of
	// 200. Pages are filled to a third by reserves, so that completions stay in them.
	PostgresRecord = 693
	// BoltGenerations: records outstay their window on disk by up to a sixteenth of
	// it, and results theirs, because whole generations are dropped.
	BoltGenerations = 16

	// BoltSweep: expired records per second, 24 generations of 42,000 records dropped.
	BoltSweep = 5_800_000
	// PostgresSweep: expired rows per second, by a Sweeper in batches of 1,000, nobody
	// else being there; 200,000 rows in a table of 220,000.
	PostgresSweep = 142_000
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
	apart := fresh
	if l.ResultSize <= RedisInline {
		apart = known
	}
	const outstay = 1 + 1.0/BoltGenerations
	return []BackendForecast{
		entry(Bolt, known*outstay, fresh*outstay, BoltRecord, BoltSweep,
			fmt.Sprintf("%d B per record; records and results outstay their windows by up to a sixteenth", BoltRecord)),
		entry(Redis, known, apart, RedisRecord, 0,
			fmt.Sprintf("%d B per record; the server expires keys by itself; results up to %d B leave with their records", RedisRecord, RedisInline)),
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
