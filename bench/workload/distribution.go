package workload

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// distribution turns a number from [0, 1) into how long an operation takes.
type distribution func(u float64) time.Duration

// parseDistribution reads "5ms", "exp:5ms" (exponential with this mean, at most
// twenty times it) or "uniform:1ms-9ms". Empty and "0" give nil: no time at all.
func parseDistribution(s string) (distribution, error) {
	bad := func(err error) (distribution, error) {
		return nil, fmt.Errorf("workload: the duration of an operation is %q: it must be like 5ms, exp:5ms or uniform:1ms-9ms, and not negative (%v)", s, err)
	}
	shape, rest, found := strings.Cut(s, ":")
	if !found {
		shape, rest = "", s
	}
	parts := strings.Split(rest, "-")
	var ds []time.Duration
	for _, part := range parts {
		if part == "" && s == "" {
			return nil, nil
		}
		d, err := time.ParseDuration(part)
		if err != nil {
			return bad(err)
		}
		ds = append(ds, d)
	}
	switch {
	case shape == "" && len(ds) == 1:
		if ds[0] == 0 {
			return nil, nil
		}
		return func(float64) time.Duration { return ds[0] }, nil
	case shape == "exp" && len(ds) == 1:
		mean := float64(ds[0])
		return func(u float64) time.Duration { return time.Duration(min(-math.Log1p(-u), 20) * mean) }, nil
	case shape == "uniform" && len(ds) == 2 && ds[0] <= ds[1]:
		return func(u float64) time.Duration { return ds[0] + time.Duration(u*float64(ds[1]-ds[0])) }, nil
	}
	return bad(fmt.Errorf("form %q with %d durations", shape, len(ds)))
}
