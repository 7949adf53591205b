package main

import (
	"testing"
	"time"

	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// The forecast is within a third of what records really take: a bolt file's pages,
// Redis by MEMORY USAGE, a PostgreSQL table with its indexes.
func TestForecastAgainstRealStores(t *testing.T) {
	testdb.Postgres(t) // skips where the servers are not there
	testdb.Redis(t)
	const n = 2000
	p, err := expiry.New(expiry.Rule{Operation: "*", Replay: n * time.Second, Dedup: n * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	forecast, err := p.Rules()[0].Forecast(expiry.Load{Rate: 1, ResultSize: resultSize})
	if err != nil {
		t.Fatal(err)
	}
	r := &report{dir: t.TempDir()}
	measure := map[string]func(int) (float64, error){expiry.Bolt: r.boltBytes, expiry.Redis: redisBytes, expiry.Postgres: pgBytes}
	for _, f := range forecast {
		each, err := measure[f.Backend](n)
		if err != nil {
			t.Fatalf("%s: %v", f.Backend, err)
		}
		t.Logf("%s: %.0f bytes each, forecast %.0f", f.Backend, each, float64(f.Bytes)/float64(f.Records))
		if ratio := each * float64(f.Records) / float64(f.Bytes); ratio > 4.0/3 || ratio < 3.0/4 {
			t.Errorf("%s: %d records take %.0f bytes, %.2f of the forecast", f.Backend, f.Records, each*float64(f.Records), ratio)
		}
	}
}
