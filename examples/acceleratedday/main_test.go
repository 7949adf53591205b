package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

// A short day shows what a long one is for: retries are answered, what is due goes,
// and the plot is there. Servers that are not installed are left out, and said to be.
func TestDay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-hour", "150ms", "-servers", "-out", dir}, &out); err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{"memory", "bolt", "postgres", "redis"} {
		_, after, ok := strings.Cut(out.String(), store+": a day in 3.6s")
		if !ok && os.Getenv("IDEM_TEST_REQUIRE") == "" && strings.Contains(strings.ToLower(out.String()), "left out: throwaway: "+store) {
			continue
		}
		if !ok {
			t.Fatalf("no day of %s:\n%s", store, &out)
		}
		m := regexp.MustCompile(`(\d+) operations took effect once, (\d+) retries were answered without them; the sweeper removed (\d+) records`).FindStringSubmatch(after)
		if m == nil || m[1] == "0" || m[2] == "0" || (m[3] == "0" && store != "redis") { // Redis removes by itself
			t.Errorf("%s: %v\n%s", store, m, after)
		}
	}
	svg, err := os.Open(filepath.Join(dir, "day.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer svg.Close()
	lines := 0
	for d := xml.NewDecoder(svg); ; {
		tok, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "path" {
			lines++
		}
	}
	if lines < 10 {
		t.Errorf("the plot has %d lines", lines)
	}
}

// No CockroachDB can be started, but one that is there can be named. Here it is
// PostgreSQL behind the face of CockroachDB.
func TestDayOfCockroachDB(t *testing.T) {
	t.Parallel()
	shim := crdbshim.Start(t, testdb.Postgres(t).Database(t), crdbshim.Options{})
	_, address, _ := strings.Cut(shim.URL(), "://")
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-hour", "150ms", "-store", "cockroach://" + address, "-out", t.TempDir()}, &out); err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(out.String(), "cockroach: a day in 3.6s")
	m := regexp.MustCompile(`(\d+) operations took effect once, (\d+) retries were answered without them; the sweeper removed (\d+) records`).FindStringSubmatch(after)
	if m == nil || m[1] == "0" || m[2] == "0" || m[3] == "0" {
		t.Errorf("%v\n%s", m, &out)
	}
	if refused := shim.Refused(); len(refused) > 0 {
		t.Errorf("CockroachDB would refuse %q", refused)
	}
}

// The rate is what -rate says it is: that of an ordinary hour, a third of a rush.
func TestTraffic(t *testing.T) {
	for hour, want := range map[float64]float64{8: 2.2, 9: 3, 12: 1, 13.5: 1, 15: 1, 18: 3, 2: 0.4, 23.9: 0.4} {
		if got := traffic(hour); math.Abs(got-want) > 0.03 {
			t.Errorf("%v:00: %.2f times the rate, want %.2f", hour, got, want)
		}
	}
}

// slow takes its time to answer, and counts calls by the half hour.
type slow struct {
	backend.Backend
	hour     time.Duration
	midnight time.Time
	mu       sync.Mutex
	calls    map[int]int
}

func (s *slow) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	s.mu.Lock()
	s.calls[int(2*time.Since(s.midnight)/s.hour)]++
	s.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	return s.Backend.Reserve(ctx, r)
}

// A store that takes long to answer has its rush all the same: the day says when
// calls come, and not the store.
func TestRushOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hour, rate = 4 * time.Second, 100
		s := &slow{Backend: memory.New(nil), hour: hour, midnight: time.Now(), calls: make(map[int]int)}
		store, err := idem.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 24*hour)
		defer stop()
		l := &load{store: store, rate: rate, hour: hour, midnight: s.midnight}
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() { l.call(ctx, rand.New(rand.NewPCG(uint64(i), 1))) })
		}
		all.Wait()
		if l.failed != nil {
			t.Fatal(l.failed)
		}
		const half = rate * 2                                                  // seconds
		for at, want := range map[int]float64{4: 0.4, 26: 1, 27: 1, 18: 2.9} { // by the half hour
			if got := float64(s.calls[at]) / half; math.Abs(got-want) > want/5 {
				t.Errorf("half hour %d: %.2f times the rate, want about %.1f", at, got, want)
			}
		}
	})
}

func TestBadSettings(t *testing.T) {
	for _, args := range [][]string{{"-hour", "1ms"}, {"-rate", "0"}, {"-store", "mysql://x"}, {"-store", "://secret"}, {"-store", "cockroach://u:secret@127.0.0.1:1/d"}, {"-nonsense"}} {
		err := run(t.Context(), args, io.Discard)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
