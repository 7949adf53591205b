package benchcmd

import (
	"errors"
	"strings"
	"testing"

	"github.com/goidem/idem/bench/result"
)

// Effects twice in a workload, where no fault excuses anybody, are a broken promise too.
func TestBrokenPromises(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		m    result.Measurement
		want string // in the error; empty: none
	}{
		{"a naive one twice", result.Measurement{Strategy: "none", Duplicates: 7}, ""},
		{"a floor twice", result.Measurement{Strategy: "pg-two", Duplicates: 7}, ""},
		{"a lease kept", result.Measurement{Strategy: "pg-lease"}, ""},
		{"a lease lost", result.Measurement{Strategy: "pg-lease", Lost: 1}, "pg-lease"},
		{"a transaction twice", result.Measurement{Strategy: "pg-tx", Duplicates: 1}, "pg-tx"},
		{"a window twice", result.Measurement{Strategy: "redis-window", Duplicates: 1}, "redis-window"},
		{"more keys than it keeps", result.Measurement{Strategy: "lru-window", Duplicates: 7, DistinctKeys: 101}, ""},
		{"no more keys than it keeps", result.Measurement{Strategy: "lru-window", Duplicates: 7, DistinctKeys: 100}, "lru-window"},
		{"more keys than it keeps, lost", result.Measurement{Strategy: "lru-window", Lost: 1, DistinctKeys: 101}, "lru-window"},
	} {
		r := &runner{report: &result.Report{
			Strategies: []result.Strategy{{Name: "none", Family: "naive"}, {Name: "pg-two", Family: "floor"}, {Name: "lru-window", Family: "window", Remembers: 100},
				{Name: "redis-window", Family: "window"}, {Name: "pg-lease", Family: "lease"}, {Name: "pg-tx", Family: "transactional"}},
			Measurements: []result.Measurement{tt.m},
		}}
		err := r.brokenPromises()
		var e *Error
		if found := errors.As(err, &e) && e.Code == ExitFound && strings.Contains(err.Error(), tt.want); found != (tt.want != "") || err == nil != (tt.want == "") {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}
