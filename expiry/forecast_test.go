package expiry

import (
	"math"
	"testing"
	"time"
)

func TestForecast(t *testing.T) {
	t.Parallel()
	r := mustNew(t, Rule{Operation: "o", Replay: day, Dedup: 16 * day}).Rules()[0]
	got, err := r.Forecast(Load{Rate: 10, ResultSize: 200})
	if err != nil {
		t.Fatal(err)
	}
	const perDay = 10 * 86400
	want := []BackendForecast{
		// Generations outstay 16 days by one, and those of results one day by its sixteenth.
		{Backend: Bolt, Records: 17 * perDay, WithResult: perDay + perDay/16, Bytes: 17*perDay*BoltRecord + (perDay+perDay/16)*200, SweepRate: 10, SweepShare: 10.0 / BoltSweep},
		{Backend: Redis, Records: 16 * perDay, WithResult: 16 * perDay, Bytes: 16 * perDay * (RedisRecord + 200), SweepRate: 10},
		{Backend: Postgres, Records: 16 * perDay, WithResult: perDay, Bytes: 15*perDay*PostgresRecord + perDay*(PostgresRecord+200), SweepRate: 10, SweepShare: 10.0 / PostgresSweep},
	}
	for i := range want {
		if got[i].Basis == "" {
			t.Errorf("%s: no basis", got[i].Backend)
		}
		got[i].Basis = ""
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}

// Long results of Redis leave at the end of the replay window.
func TestForecastOfLongResults(t *testing.T) {
	t.Parallel()
	f, err := Rule{Operation: "o", Replay: day, Dedup: 16 * day}.Forecast(Load{Rate: 10, ResultSize: RedisInline + 1})
	if err != nil || f[1].WithResult != 864000 || f[1].Records != 16*864000 {
		t.Errorf("%+v, %v", f[1], err)
	}
}

func TestForecastIsMonotonic(t *testing.T) {
	t.Parallel()
	base := Rule{Operation: "o", Replay: day, Dedup: 7 * day}
	at := func(r Rule, l Load) []BackendForecast {
		f, err := r.Forecast(l)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	low := at(base, Load{10, 100})
	longer := base
	longer.Dedup = 8 * day
	for i, f := range at(base, Load{20, 100}) {
		if f.Bytes < 2*low[i].Bytes-1 {
			t.Errorf("%s: twice the rate is %d after %d", f.Backend, f.Bytes, low[i].Bytes)
		}
	}
	for i, f := range at(base, Load{10, 200}) {
		if f.Bytes <= low[i].Bytes || f.Records != low[i].Records {
			t.Errorf("%s: larger results: %+v after %+v", f.Backend, f, low[i])
		}
	}
	for i, f := range at(longer, Load{10, 100}) {
		if f.Bytes <= low[i].Bytes || f.Records <= low[i].Records {
			t.Errorf("%s: a longer window: %+v after %+v", f.Backend, f, low[i])
		}
	}
}

func TestForecastRefuses(t *testing.T) {
	t.Parallel()
	r := Rule{Operation: "o"}
	for _, l := range []Load{{}, {-1, 1}, {math.NaN(), 1}, {math.Inf(1), 1}, {1e10, 1}, {1, -1}, {1, 1 << 40}} {
		if _, err := r.Forecast(l); err == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
	if _, err := (Rule{Operation: "o", Replay: 2 * time.Hour, Dedup: time.Hour}).Forecast(Load{1, 1}); err == nil {
		t.Error("a wrong rule is accepted")
	}
	f, err := Rule{Operation: "o", Dedup: MaxWindow, Replay: MaxWindow}.Forecast(Load{1e9, 1 << 30})
	if err != nil || f[0].Bytes != math.MaxInt64 || f[0].Records <= 0 {
		t.Errorf("%+v, %v: too much must stop at the largest number", f, err)
	}
}
