package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/internal/testdb"
)

const (
	stormProcesses  = 4
	stormGoroutines = 64
	stormKeys       = 50
)

// stormReport is what one process of a storm saw.
type stormReport struct {
	Values   map[string]map[string]int // key, reply, how often
	InFlight int
	Runs     int
	Errors   map[string]int // whatever else came out
}

// storm calls every key from each of 64 goroutines, in orders of their own. Half of
// them wait for who is before them, half fail fast.
func (o pgOrders) storm(ctx context.Context, c *caller) error {
	report := stormReport{Values: make(map[string]map[string]int), Errors: make(map[string]int)}
	for _, key := range o.Keys {
		report.Values[key] = make(map[string]int)
	}
	if err := touch(o.Entered); err != nil {
		return err
	}
	if err := await(ctx, o.Go); err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range stormGoroutines {
		wg.Go(func() {
			var wait time.Duration
			if n%2 == 0 {
				wait = time.Minute
			}
			for _, i := range rand.New(rand.NewPCG(o.Seed, uint64(n))).Perm(len(o.Keys)) {
				key := o.Keys[i]
				a := c.call(ctx, key, wait)
				mu.Lock()
				report.Runs += len(a.runs)
				switch {
				case a.err == nil:
					report.Values[key][a.value]++
				case errors.Is(a.err, idem.ErrInFlight):
					report.InFlight++
				default:
					report.Errors[key+": "+oneLine(a.err)]++ // a second effect is held against these
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(report)
}

// storm lets four processes with 64 goroutines each call the same 50 keys at once. Nobody
// dies in it, so the lease is idem's default: one of a second and a half is missed now and
// then by 512 callers and 64 connections on two busy processors, and then a second run is
// what the policy asks for.
func storm(t *testing.T, r *faultRow, kind pgKind, rounds int, rnd *rand.Rand) {
	pg := testdb.Postgres(t)
	g := newGround(t, pg.Database(t), kind)
	g.open(t, g.url, "migrate").close()
	for n := range rounds {
		round := fmt.Sprintf("%03d-storm", n)
		keys := roundKeys(round, stormKeys)
		signal := filepath.Join(g.dir, round+".go")
		var outputs [stormProcesses]bytes.Buffer
		var waits [stormProcesses]func() error
		for i := range stormProcesses {
			o := pgOrders{Task: "storm", Kind: kind, URL: g.url, Effects: g.ledgerPath(round), Acks: g.ackPath(round), Keys: keys,
				Conns: 8, Seed: rnd.Uint64(), Entered: filepath.Join(g.dir, fmt.Sprintf("%s.%d.ready", round, i)), Go: signal}
			cmd, out := spawn(t, o)
			cmd.Stdout = &outputs[i]
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			waits[i] = func() error {
				if err := cmd.Wait(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			}
			if err := await(t.Context(), o.Entered); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := touch(signal); err != nil {
			t.Fatal(err)
		}
		h := newHistory()
		racing := 0
		for i, wait := range waits {
			if err := wait(); err != nil {
				t.Fatalf("%s: %v", round, err)
			}
			var report stormReport
			if err := json.Unmarshal(outputs[i].Bytes(), &report); err != nil {
				t.Fatal(err)
			}
			for text, times := range report.Errors {
				t.Errorf("%s: %d calls: %s", round, times, text)
			}
			for key, replies := range report.Values {
				for value, times := range replies {
					r.add(func(r *faultRow) { r.calls += times - 1 })
					h.add(key, answer{value: value})
				}
			}
			r.add(func(r *faultRow) { r.calls += report.InFlight })
			if report.Runs > 0 {
				racing++
			}
		}
		took := time.Since(began)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		if racing > 1 { // more than one process got through to some key: they did meet
			r.add(func(r *faultRow) { r.fired++ })
		}
		var unanswered []string
		for _, key := range keys {
			if len(h.acked(key)) == 0 {
				unanswered = append(unanswered, key)
			}
		}
		fresh := g.open(t, g.url, round)
		g.verdict(t, r, round, keys, h, fresh, unanswered)
		fresh.close()
	}
}
